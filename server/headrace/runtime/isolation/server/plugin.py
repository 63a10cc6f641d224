"""The server's side of a device whose plugin lives in a worker.

A *late* device starts its worker only when something needs it. Until then a plugin in the server's
own process, its *stub*, supplies the configuration keys and metrics. The stub loads no backend.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import onnx_ir as ir

from headrace.runtime.config.schema import ConfigSchema, Configuration, ParameterValue
from headrace.runtime.config.standard_keys import (
    DEVICE_ID,
    INFERENCE_PRECISION_HINT,
    ISOLATION,
    PROCESS,
)
from headrace.runtime.device.cached_load import cached
from headrace.runtime.device.device import Device
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load, LoadResult
from headrace.runtime.device.metrics import Metric, standard_metrics
from headrace.runtime.device.places import Places
from headrace.runtime.device.plugin import AS_IT_IS, Plugin
from headrace.runtime.device.services import Readers, Services
from headrace.runtime.device.state import DeviceState
from headrace.runtime.errors import HeadraceError, Internal, Unavailable, forget_frames, public_text
from headrace.runtime.isolation.server.blame import Work
from headrace.runtime.isolation.server.host import WorkerHost
from headrace.runtime.isolation.server.lanes import WatchedLanes
from headrace.runtime.isolation.server.network import IsolatedNetwork
from headrace.runtime.isolation.server.process import WorkerLost, WorkerProcess
from headrace.runtime.isolation.server.telemetry import Telemetry
from headrace.runtime.isolation.server.worker_network import WorkerNetwork, ask_about
from headrace.runtime.isolation.server.workers import Launch
from headrace.runtime.isolation.wire.descriptions import (
    parameter_from_json,
    schema_from_json,
)
from headrace.runtime.network.extension import write_functions
from headrace.runtime.network.network import Network
from headrace.runtime.system.backoff import Backoff
from headrace.runtime.system.load_stages import current_stages
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.transform.query import QueryResult

_OURS: Final = frozenset(
    (
        "SUPPORTED_METRICS",
        "SUPPORTED_CONFIG_KEYS",
        "NUMBER_OF_WAITING_INFER_REQUESTS",
        "NUMBER_OF_EXEC_INFER_REQUESTS",
    )
)
"""Metrics that the server's side answers, because the queue is here."""


class IsolatedPlugin(Device):
    """Queue, streams, admission and counters are here; transformations, compiling and runs are in
    the worker. Thread-safe: `_setting` guards `_changes` and the start, and is taken before
    `_lock`. It is held while the first worker starts, so that other threads wait for the start.

    Args:
        name, services, config: as `Device`.
        path: the creation function, as ``module:function``.
        stub: the stub of a late device; None for a device that starts its worker at once.
        backoff, launch: as `WorkerHost`.
        places: as `Device`.

    Raises:
        Unavailable: the plugin did not start in its worker. The message has its reason.
    """

    def __init__(
        self,
        name: str,
        services: Services,
        config: Mapping[str, str],
        path: str,
        *,
        stub: Plugin | None = None,
        backoff: Backoff | None = None,
        launch: Launch = WorkerProcess,
        places: Places | None = None,
    ) -> None:
        self._setting = threading.RLock()
        self._changes: Mapping[str, str] = {}
        self._start_config = {**config, ISOLATION.name: PROCESS}
        self._open = False
        self._host = WorkerHost(
            name,
            path,
            self._worker_settings,
            services,
            backoff,
            launch if services.readers is None else partial(_launch, launch, services.readers),
        )
        self._telemetry = Telemetry(self._host.worker)
        self._stub = stub
        self._facts: Mapping[str, Any] = {}
        self._refusal: HeadraceError | None = None
        if stub is not None:
            self._show(stub.schema, stub.backend_version, stub.metrics())
            self.imports_native = stub.imports_native
            self.native_version = stub.native_version
        try:
            if stub is None:
                self._used_host()
            super().__init__(name, services, self._start_config, places)
        except BaseException:
            self._host.stop()
            raise
        self._open = True

    # -- what it says of itself --

    @property
    def full_name(self) -> str:
        return str(self._described()["full_name"])

    @property
    def architecture(self) -> str:
        return str(self._described()["architecture"])

    @property
    def capabilities(self) -> tuple[str, ...]:
        return tuple(self._described()["capabilities"])

    def announce(self) -> None:
        """Announces the device's ids once they are known. Until then they are shown as one."""
        if self._facts:
            super().announce()

    def set_config(self, changes: Mapping[str, str]) -> None:
        """As `Device.set_config`. The worker makes the device's own checks, so it is started if
        only it can judge a change.

        Raises:
            Unavailable: the worker is being restarted.
        """
        if any(changes.get(key.name) for key in (DEVICE_ID, INFERENCE_PRECISION_HINT)):
            self._used_host()
        with self._setting:
            self._changes = dict(changes)
            super().set_config(changes)
        if changes:
            self._host.trials.renew()  # not before, because workers start with what is set

    def query_network(
        self, network: Network, config: Mapping[str, str], options: NetworkOptions = AS_IT_IS
    ) -> QueryResult:
        host = self._used_host()
        place = config.get(DEVICE_ID.name) or self.device_id(self.config)
        ask = partial(ask_about, network, config, options)
        return host.query(Work(network, place, "queried"), ask)

    def load_network(self, load: Load) -> ExecutableNetwork:
        config = self._configuration(load.config)
        if load.native:
            return self._opened(load, config, partial(self._load, load, config))
        make = cached(
            self,
            load,
            config,
            lambda native, *_: self._load(replace(load, native=native), config),
            lambda *_: self._load(load, config),
        )
        return self._opened(load, config, partial(make, lambda: load.network, config, load.token))

    def add_extension(self, functions: Sequence[ir.Function]) -> None:
        self._used_host().extend(write_functions(functions))
        self.extensions.add(functions)

    # -- inside --

    def _load(self, load: Load, effective: Configuration) -> LoadResult:
        host = self._used_host()
        worker_network = WorkerNetwork(load, self.device_id(effective))
        facts = host.load(worker_network, load.token)
        if (stages := current_stages()) is not None:
            stages.add(facts["stages"])
        try:
            loaded = IsolatedNetwork(
                load.network,
                effective,
                self.executor(effective),
                self.share(effective),
                self._host,
                worker_network,
                facts,
                self._telemetry,
            )
        except BaseException:
            self._host.unload(worker_network)
            raise
        # From now on the network's own configuration counts, not the device's.
        worker_network.config = loaded.load_config
        return LoadResult(loaded, tuple(facts["notes"]), facts["restored"])

    def _used_host(self) -> WorkerHost:
        """The host of the device's worker. Starts the worker on the first call.

        Raises:
            Unavailable: the worker does not start. If the plugin gave a reason, no later call tries
                again.
        """
        if not self._facts and not self._refusal:
            with self._setting:
                first = not self._facts and not self._refusal
                if first:
                    self._start()
            if first:
                self._tell()
        if self._refusal:
            raise Unavailable(public_text(self._refusal)) from self._refusal
        return self._host

    def _start(self) -> None:
        try:
            facts = self._host.start()
        except WorkerLost:
            raise
        except (Unavailable, Internal) as error:
            if self._stub is None:
                raise
            forget_frames(error)
            self._refusal = error
            return
        self._show(schema_from_json(facts["schema"]), facts["backend_version"], facts["metrics"])
        self.imports_native = facts["imports_native"]
        self.native_version = facts["native_version"]
        self._changed(facts)
        self._facts = facts

    def _tell(self) -> None:
        """Reports the result of a late start."""
        if self._stub is None or not self._open:
            return
        if self._refusal:
            self.services.states.set(self.name, DeviceState.DOWN, public_text(self._refusal))
            return
        self.set_config({})  # the worker knows how many streams there are by default
        self.announce()

    def _described(self) -> Mapping[str, Any]:
        self._used_host()
        return self._facts

    def _show(self, schema: ConfigSchema, backend_version: str, metrics: Iterable[str]) -> None:
        self.schema = schema
        self.backend_version = backend_version
        self._metric_names = tuple(metrics)

    def _changed(self, facts: Mapping[str, Any]) -> None:
        self._ids = list(facts["device_ids"])
        self._auto_streams = int(facts["default_streams"])

    def _worker_settings(self) -> Mapping[str, str]:
        return self.config.explicit_strings() if self._open else self._start_config

    def _set_config(self, config: Configuration) -> None:  # noqa: ARG002 - the worker resolves it
        if self._open and self._facts and self._changes:  # it was created with what was set
            facts, _ = self._host.call("set_config", {"changes": dict(self._changes)})
            self._changed(facts)

    def _device_ids(self) -> list[str]:
        self._used_host()
        return list(self._ids)

    def _memory_bytes(self, device_id: str) -> int:
        """The bytes that the worker reports. Until it has answered, the size of the weights."""
        told = self._telemetry.counts()
        if told is None:
            return super()._memory_bytes(device_id)
        return told.memory_bytes.get(device_id, 0)

    def _default_streams(self) -> int:
        if not self._facts and self._stub is not None:
            return self._stub.default_streams()
        return self._auto_streams

    def _metrics(self) -> Mapping[str, Metric]:
        standard = standard_metrics(self)
        return {
            name: partial(self._metric, name, standard.get(name))
            for name in self._metric_names
            if name not in _OURS
        }

    def _metric(
        self, name: str, known: Metric | None, options: Mapping[str, str]
    ) -> ParameterValue:
        """The worker's answer, or what the server knows while there is no worker."""
        try:
            facts, _ = self._used_host().call("metric", {"name": name, "options": dict(options)})
        except Unavailable:
            if known is None:
                raise
            return known(options)
        return parameter_from_json(facts)

    def kill(self) -> None:
        self._host.kill()

    def _close(self) -> None:
        self._host.stop()


def _launch(launch: Launch, readers: Readers, device: str) -> WorkerProcess:
    worker = launch(device)
    worker.watched = WatchedLanes(partial(worker.connect, within=0.0), readers)
    return worker
