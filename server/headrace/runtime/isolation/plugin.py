"""A device whose plugin lives in a worker, as the server sees it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NoReturn

import onnx_ir as ir

from headrace.runtime import onnx_bytes
from headrace.runtime.cancel import CancelToken
from headrace.runtime.config import Configuration, ParameterValue
from headrace.runtime.device_metrics import Metric, standard_metrics
from headrace.runtime.errors import Internal, Unavailable
from headrace.runtime.executable_network import ExecutableNetwork
from headrace.runtime.isolation.backoff import Backoff
from headrace.runtime.isolation.descriptions import (
    parameter_from_json,
    query_from_json,
    schema_from_json,
)
from headrace.runtime.isolation.host import Launch, WorkerHost
from headrace.runtime.isolation.network import IsolatedNetwork
from headrace.runtime.isolation.process import WorkerProcess
from headrace.runtime.isolation.resident import Resident
from headrace.runtime.isolation.shared_memory import write_file
from headrace.runtime.isolation.telemetry import Telemetry
from headrace.runtime.network import Network
from headrace.runtime.network_options import NetworkOptions, options_to_json
from headrace.runtime.plugin import Plugin, Support
from headrace.runtime.query import QueryResult
from headrace.runtime.services import Services
from headrace.runtime.standard_keys import ISOLATION, PROCESS

_AS_IT_IS: Final = NetworkOptions()
_OURS: Final = frozenset(
    (
        *("SUPPORTED_METRICS", "SUPPORTED_CONFIG_KEYS"),
        *("NUMBER_OF_WAITING_INFER_REQUESTS", "NUMBER_OF_EXEC_INFER_REQUESTS"),
    )
)
"""Metrics that the server's side answers: the queue is here."""


class IsolatedPlugin(Plugin):
    """Queue, streams, admission and counters are here; transformations, compiling and runs are in
    the worker. Thread-safe: `_setting` guards `_changes`, and is taken before `_lock`.

    Args:
        name, services, config: as `Device`.
        path: of the creation function, as ``module:function``.
        backoff, launch: as `WorkerHost`.

    Raises:
        Unavailable: the plugin did not start in its worker; with its reason.
    """

    def __init__(
        self,
        name: str,
        services: Services,
        config: Mapping[str, str],
        path: str,
        *,
        backoff: Backoff | None = None,
        launch: Launch = WorkerProcess,
    ) -> None:
        self._setting = threading.Lock()
        self._changes: Mapping[str, str] = {}
        self._start_config = {**config, ISOLATION.name: PROCESS}
        self._open = False
        self._host = WorkerHost(
            name,
            path,
            self._worker_settings,
            services.states,
            backoff,
            launch,
            services.folder,
        )
        self._telemetry = Telemetry(self._host.worker)
        self._host.start()
        try:
            facts, _ = self._host.call("describe", {})
            self._describe(facts)
            super().__init__(name, services, self._start_config)
        except BaseException:
            self._host.stop()
            raise
        self._open = True

    def set_config(self, changes: Mapping[str, str]) -> None:
        """As `Device.set_config`; the device's own checks are the worker's.

        Raises:
            Unavailable: the worker is being started again.
        """
        with self._setting:
            self._changes = dict(changes)
            super().set_config(changes)

    def query_network(
        self,
        network: Network,
        config: Mapping[str, str],
        options: NetworkOptions = _AS_IT_IS,
    ) -> QueryResult:
        worker = self._host.worker()
        arguments = {"config": dict(config), "options": options_to_json(options)}
        with write_file(onnx_bytes.serialize(network.model)) as file:
            facts, _ = worker.call("query", arguments, [file])
        return query_from_json(facts)

    def load_network(
        self,
        network: Network,
        config: Mapping[str, str],
        options: NetworkOptions = _AS_IT_IS,
        token: CancelToken | None = None,
    ) -> ExecutableNetwork:
        effective = self._configuration(config)
        load = self._cached(
            network,
            effective,
            options,
            lambda network, native, _, token: self._load(network, native, config, options, token),
            lambda network, _, token: self._load(network, None, config, options, token),
        )
        return load(network, effective, token or CancelToken())

    def import_network(
        self,
        network: Network,
        native: bytes,
        config: Mapping[str, str],
        options: NetworkOptions = _AS_IT_IS,
        token: CancelToken | None = None,
    ) -> ExecutableNetwork:
        if not native:
            return self.load_network(network, config, options, token)
        return self._load(network, native, config, options, token or CancelToken())

    # -- inside --

    def _load(
        self,
        network: Network,
        native: bytes | None,
        config: Mapping[str, str],
        options: NetworkOptions,
        token: CancelToken,
    ) -> ExecutableNetwork:
        effective = self._configuration(config)
        resident = Resident(network, config, options, native)
        try:
            facts = self._host.load(resident, token)
        except Exception as error:
            if token.error is not None:
                raise token.error from error
            raise
        try:
            loaded = IsolatedNetwork(
                network,
                effective,
                self.executor(effective),
                self.share(effective),
                self._host,
                resident,
                facts,
                self._telemetry,
            )
        except BaseException:
            self._host.unload(resident)
            raise
        # From now on what counts is what it was loaded with, whatever the device is set to.
        resident.config = lambda: _of_a_load(loaded.config)
        return self._opened(loaded, effective, token)

    def _describe(self, facts: Mapping[str, Any]) -> None:
        self.schema = schema_from_json(facts["schema"])  # type: ignore[misc]  # of this instance
        self.full_name = facts["full_name"]
        self.architecture = facts["architecture"]
        self.backend_version = facts["backend_version"]
        self.capabilities = tuple(facts["capabilities"])
        self.imports_native = facts["imports_native"]  # type: ignore[misc]
        self.native_version = facts["native_version"]  # type: ignore[misc]
        self._metric_names = tuple(facts["metrics"])
        self._changed(facts)

    def _changed(self, facts: Mapping[str, Any]) -> None:
        self._ids = list(facts["device_ids"])
        self._auto_streams = int(facts["default_streams"])

    def _worker_settings(self) -> Mapping[str, str]:
        return self.config.explicit_strings() if self._open else self._start_config

    def _set_config(self, config: Configuration) -> None:  # noqa: ARG002 - the worker resolves it
        if self._open:  # a worker is created with what was set before
            facts, _ = self._host.call("set_config", {"changes": dict(self._changes)})
            self._changed(facts)

    def _device_ids(self) -> list[str]:
        return list(self._ids)

    def _memory_bytes(self, device_id: str) -> int:
        """What the worker tells; the weights until it has told anything."""
        told = self._telemetry.told()
        if told is None:
            return super()._memory_bytes(device_id)
        return told.memory_bytes.get(device_id, 0)

    def _default_streams(self) -> int:
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
        """The worker's answer; what is known here while there is no worker."""
        try:
            facts, _ = self._host.call("metric", {"name": name, "options": dict(options)})
        except Unavailable:
            if known is None:
                raise
            return known(options)
        return parameter_from_json(facts)

    def _add_extension(self, functions: Sequence[ir.Function]) -> None:
        carrier = ir.Model(
            ir.Graph([], [], nodes=[], opset_imports=_opsets(functions), name="extension"),
            ir_version=10,
            functions=[function.clone() for function in functions],
        )
        self._host.extend(b"".join(onnx_bytes.serialize(carrier)))

    def kill(self) -> None:
        self._host.kill()

    def _close(self) -> None:
        self._host.stop()

    def _support(self, network: Network, config: Configuration) -> Support:  # noqa: ARG002
        self._elsewhere()

    def _compile(
        self,
        network: Network,  # noqa: ARG002
        config: Configuration,  # noqa: ARG002
        token: CancelToken,  # noqa: ARG002
    ) -> ExecutableNetwork:
        self._elsewhere()

    def _elsewhere(self) -> NoReturn:
        raise Internal(f"the plugin of {self.name} is in its worker")


def _opsets(functions: Sequence[ir.Function]) -> dict[str, int]:
    opsets = {"": 1}
    for function in functions:
        for domain, version in function.opset_imports.items():
            opsets[domain] = max(version, opsets.get(domain, 0))
        opsets.setdefault(function.domain, 1)
    return opsets


def _of_a_load(config: Configuration) -> dict[str, str]:
    keys = (key for key in config.schema if key.scope == "network")
    texts = config.to_strings()
    return {key.name: texts[key.name] for key in keys}
