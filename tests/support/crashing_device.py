"""A device that crashes as native code does, when it is told to; to be put in a process of its own.

It is TEMPLATE otherwise. The path of a creation function is ``tests.support.crashing_device:NAME``.
It imports nothing of `headrace.testing`: pytest would take a sixth of the start of each worker.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from headrace.plugins.template.executable_network import TemplateNetwork
from headrace.plugins.template.plugin import TemplatePlugin
from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.compiled_plugin import Support
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job
from headrace.runtime.metrics.counters import NetworkCounters
from headrace.runtime.metrics.series import Family, Series
from headrace.runtime.network.network import Network

CRASH = -666.0
"""In an input, kills the process that computes with it."""
STALL = -777.0
"""In an input, keeps the run from ending, and from hearing that it should."""
CRASHING_LAYER = "crash"
"""A layer of this name kills the process that compiles it."""
CRASHING_QUERY = "crash_query"
"""A layer of this name kills the process that is asked whether it supports it."""
HELD = "hold:"
"""A layer whose name is this and a path is compiled when there is no such file any more."""


RUNS = Family("crashing_runs_total", "counter", ("kind",), "Runs that did not crash.")
MEMORY_BYTES = 12345
"""What the device says that its networks hold."""


class CrashingNetwork(TemplateNetwork):
    _runs: Series | None = None

    def count_as(self, name: str, counters: NetworkCounters) -> None:
        super().count_as(name, counters)
        self._runs = counters.series.get(RUNS, "whole")

    def _infer(self, job: Job) -> None:
        for value in job.inputs.values():
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                if (value == CRASH).any():
                    segfault()
                while (value == STALL).any():
                    time.sleep(3600)
        super()._infer(job)
        if self._runs is not None:
            self._runs.add(1)


class CrashingPlugin(TemplatePlugin):
    full_name = "Crashing Device"

    def _add_extension(self, functions: Sequence[ir.Function]) -> None:
        """Takes any, as the evaluator does."""

    def _memory_bytes(self, device_id: str) -> int:
        return MEMORY_BYTES

    def _support(self, network: Network, config: Configuration) -> Support:
        if CRASHING_QUERY in network.layer_names:
            segfault()
        return super()._support(network, config)

    def _compile(self, network: Network, config: Configuration, _: CancelToken) -> CrashingNetwork:
        if CRASHING_LAYER in network.layer_names:
            segfault()
        for name in network.layer_names:
            while name.startswith(HELD) and Path(name.removeprefix(HELD)).exists():
                time.sleep(0.005)
        return CrashingNetwork(network, config, self)


def segfault() -> None:
    ctypes.string_at(0)


@plugin_api(1)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    print(f"{name} lives in process {os.getpid()}", flush=True)
    return CrashingPlugin(name, services, config)


@plugin_api(1)
def create_crashing(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    segfault()
    raise AssertionError("it lives")


@plugin_api(1)
def create_without_driver(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    raise OSError("libdriver.so.1 is not installed; install the driver")


@plugin_api(1, isolated=True)
def create_isolated(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    return CrashingPlugin(name, services, config)


@plugin_api(1, isolated="by default", late=True)
def create_late(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    print(f"{name} lives in process {os.getpid()}", flush=True)
    return CrashingPlugin(name, services, config)
