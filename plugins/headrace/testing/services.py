"""The runtime's services for a plugin that runs without a server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.cache.weights import WeightFiles
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.device.services import Services
from headrace.runtime.device.state import DeviceStates
from headrace.runtime.execution.executor_manager import ExecutorManager
from headrace.runtime.execution.timer import Timer
from headrace.runtime.loading.executor import LoadExecutor
from headrace.runtime.loading.plugin_registry import PluginRegistry
from headrace.runtime.metrics.counters import Counters

_PATIENCE_SECONDS = 60.0  # if a device does not release its threads


@contextmanager
def services(
    sources: Iterable[PluginSource] = (),
    cache: NetworkCache | None = None,
    weights: WeightFiles | None = None,
) -> Iterator[Services]:
    """Real executors, timer, counters and states, which end with the context.

    Args:
        sources: of the other devices that the plugin may delegate to.
        cache, weights: for all of them.
    """
    plugins = PluginRegistry()
    loads = LoadExecutor()
    offered = Services(
        ExecutorManager(),
        Timer(),
        Counters(),
        DeviceStates(),
        plugins,
        cache,
        weights,
        loads=loads,
    )
    plugins.start(sources, offered)
    try:
        yield offered
    finally:
        loads.stop()
        offered.executors.stop(_PATIENCE_SECONDS)
        plugins.close()
        offered.timer.stop()
