"""Metrics and configuration of a device or a network. The request's target names it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.config.schema import ParameterValue
from headrace.runtime.core import Core
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.loading.entry import NetworkEntry
from headrace.runtime.loading.life import Record
from headrace.runtime.loading.store import NetworkStore
from headrace.server.access.networks import Networks
from headrace.v1 import inference_engine_pb2 as pb


class Targets:
    """Reads metrics, and reads and changes configuration.

    Thread-safe, because the core is. Do not call it on the event loop: a device may have to wait
    for its worker or its backend.

    All methods raise NotFound for an unknown target, name or key, and InvalidArgument for a bad
    value or a request that breaks the protocol.
    """

    def __init__(self, core: Core, networks: Networks) -> None:
        self._core = core
        self._networks = networks

    def metric(self, request: pb.GetMetricRequest) -> ParameterValue:
        if _is_network(request.target):
            with self._network(request.target) as network:
                return network.get_metric(request.name)
        device = _device(request.target)
        plugin = self._core.plugin(device)
        return plugin.get_metric(request.name, _options(device, request.options))

    def config(self, request: pb.GetConfigRequest) -> ParameterValue:
        if _is_network(request.target):
            with self._network(request.target) as network:
                return network.config.get_parameter(request.name)
        device = _device(request.target)
        plugin = self._core.plugin(device)
        return plugin.get_config(request.name, _options(device, request.options))

    def set_config(self, request: pb.SetConfigRequest) -> None:
        """Changes keys."""
        changes = dict(request.config)
        if _is_network(request.target):
            self._networks.changeable(request.target.network)
            with self._entry(request.target) as entry:
                configure(self._core, entry, changes, self._core.store)
        else:
            self._networks.check_operator("the configuration of a device")
            self._core.set_config(_device(request.target), changes)

    @contextmanager
    def _network(self, target: pb.Target) -> Iterator[ExecutableNetwork]:
        with self._entry(target) as entry:
            assert entry.executable is not None
            yield entry.executable

    @contextmanager
    def _entry(self, target: pb.Target) -> Iterator[NetworkEntry]:
        entry = self._networks.acquire(target.network, target.version)
        try:
            yield entry
        finally:
            self._networks.release(entry)


def configure(
    core: Core, entry: NetworkEntry, changes: Mapping[str, str], store: NetworkStore | None
) -> None:
    """Changes configuration keys of a loaded network, for its later loads, and in the store, if
    there is one.

    The caller holds a reference to the network.

    Raises:
        NotFound, InvalidArgument: as `ExecutableNetwork.set_config`.
    """
    assert entry.executable is not None
    entry.executable.set_config(changes)
    core.networks.change_record(entry, partial(_changed, changes))
    if store is not None:
        store.save_changes(entry.key.name, entry.key.version, changes)


def _changed(changes: Mapping[str, str], record: Record) -> Record:
    request = record.request
    return replace(record, request=replace(request, config={**request.config, **changes}))


def _is_network(target: pb.Target) -> bool:
    return bool(target.WhichOneof("target") == "network")


def _device(target: pb.Target) -> DeviceName:
    if target.WhichOneof("target") is None:
        raise InvalidArgument("give a device or a network", field="target")
    return DeviceName.parse(target.device, field="target.device")


def _options(device: DeviceName, options: Mapping[str, str]) -> dict[str, str]:
    return {**({"DEVICE_ID": device.id} if device.id else {}), **options}
