"""Loads a whole network on devices of a list, and exports it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.plugins.multi.device_list import Candidate, Failure
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.state import DeviceEvent, DeviceState
from headrace.runtime.errors import (
    FailedPrecondition,
    HeadraceError,
    Internal,
    InvalidArgument,
    InvalidModel,
    NotFound,
    ResourceExhausted,
    Unavailable,
    UnsupportedLayer,
    UnsupportedLayers,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.loading import auto_batching
from headrace.runtime.network.network import Network, Port
from headrace.runtime.virtual.exports import ExportFormat, MemberExport
from headrace.runtime.virtual.networks import taken_by

_log = logging.getLogger(__name__)
_FORMAT: Final = ExportFormat(b"\x89MULTI\r\n\x1a\n", 2, "the devices'")

Ports = tuple[tuple[Port, ...], tuple[Port, ...]]


@dataclass(frozen=True, slots=True)
class DeviceNetwork:
    """A network loaded on one device of a list.

    Attributes:
        name: the device, as in the list.
        count: how many requests it gets at once; None means as many as it runs.
        takes: the inputs that it takes.
        architecture, backend_version: the device's, for an export.
    """

    name: str
    executable: ExecutableNetwork
    count: int | None = None
    architecture: str = ""
    backend_version: str = ""
    takes: frozenset[str] = frozenset()

    def is_told_of(self, event: DeviceEvent) -> bool:
        """Whether the event is about a device that the member needs."""
        return event.device in self._needs()

    def down(self, events: Mapping[str, DeviceEvent]) -> str:
        """The reason why the member cannot work, as its devices report it; empty if it can."""
        for device in sorted(self._needs()):
            event = events.get(device)
            if event is not None and event.state is not DeviceState.UP:
                return event.reason or event.state.value
        return ""

    def _needs(self) -> set[str]:
        """The names under which its devices report their state, for example CPU.1 and the type
        CPU."""
        physical = DeviceName.parse(self.name).physical()
        return {name for device in physical for name in (str(device), device.type)}


def load_member(
    network: Network,
    candidate: Candidate,
    token: CancelToken,
    exported: MemberExport | None = None,
    ports: Ports | None = None,
) -> tuple[DeviceNetwork, tuple[str, ...]]:
    """The network on one device, and the notes about it.

    Args:
        exported: the device's export of an import, if there is one.
        ports: the network's ports on the devices that have loaded it before.

    Raises:
        What the device raises; Internal if the network has other inputs and outputs on this device.
    """
    target, plugin = candidate.target, candidate.target.plugin
    native, why = exported.usable_by(plugin) if exported is not None else (b"", "")
    notes = [f"compiled anew: {why}"] if why else []
    load = Load(network, target.config, target.options, native, token)
    executable = auto_batching.load(target.device, load, plugin.services.devices)
    try:
        if ports is not None and _kinds(ports_of(executable)) != _kinds(ports):
            raise Internal(f"{target.name} gives the network other inputs or outputs")
    except BaseException:
        executable.close()
        raise
    notes += executable.notes
    member = DeviceNetwork(
        target.name,
        executable,
        candidate.count,
        plugin.architecture,
        plugin.backend_version,
        taken_by(executable),
    )
    return member, tuple(f"{target.name}: {note}" for note in notes)


def load_some(
    network: Network,
    candidates: Sequence[Candidate],
    token: CancelToken,
    exports: Mapping[str, MemberExport],
    *,
    all_of_them: bool,
    strict: bool,
) -> tuple[list[DeviceNetwork], list[Failure], list[str]]:
    """The network on every device that loads it, or only on the first one that does; the failures
    of the others, and the notes.

    Args:
        exports: of an import, by device.
        strict: raise the first failure.

    Raises:
        The error that cancelled `token`, or what a device raises about the caller's request. With
        `strict`, whatever a device raises. After an error, nothing stays loaded.
    """
    members: list[DeviceNetwork] = []
    failures: list[Failure] = []
    notes: list[str] = []
    try:
        for candidate in candidates:
            exported = exports.get(candidate.name)
            ports = ports_of(members[0].executable) if members else None
            try:
                if token.error is not None:
                    raise token.error
                member, said = load_member(network, candidate, token, exported, ports)
            except HeadraceError as error:
                if token.error is not None or strict or _is_callers(error):
                    raise
                failures.append(Failure(candidate.name, error))
                bug = error if isinstance(error, Internal) else None
                _log.warning("%s", failures[-1], exc_info=bug)
                continue
            members.append(member)
            notes += said
            if not all_of_them:
                break
    except BaseException:
        for member in members:
            member.executable.close()
        raise
    return members, failures, notes


def _is_callers(error: HeadraceError) -> bool:
    """Whether the request for the load is wrong. If it is not, the device can be skipped."""
    return isinstance(error, InvalidArgument | NotFound) and not isinstance(error, InvalidModel)


def none_serves(device: str, failures: Sequence[Failure]) -> HeadraceError:
    """The error to raise if no device of a list loads a network.

    If the list has one device, it is that device's error. Otherwise it is an error of the class
    that all errors have in common, with all the reasons.
    """
    errors = [failure.error for failure in failures]
    if not errors:
        return Unavailable(f"{device} has no device that works")
    if len(errors) == 1:
        return errors[0]
    if all(isinstance(error, UnsupportedLayers) for error in errors):
        return UnsupportedLayers(device, _unsupported(failures))
    reasons = "; ".join(f"{failure.device}: {failure.reason}" for failure in failures)
    text = f"no device of {device} loads the network: {reasons}"
    for kind in (InvalidModel, Unavailable, ResourceExhausted, Internal):
        if all(isinstance(error, kind) for error in errors):
            return kind(text, field="model")
    return FailedPrecondition(text, field="device")


def _unsupported(failures: Sequence[Failure]) -> list[UnsupportedLayer]:
    """Each layer that some device does not run, once, with the reasons of all such devices."""
    layers: dict[tuple[str, str], dict[str, list[str]]] = {}
    for failure in failures:
        if isinstance(failure.error, UnsupportedLayers):
            for layer in failure.error.layers:
                reasons = layers.setdefault((layer.layer, layer.op_type), {})
                reasons.setdefault(layer.reason, []).append(failure.device)
    return [
        UnsupportedLayer(
            *key, "; ".join(f"{', '.join(devices)}: {why}" for why, devices in reasons.items())
        )
        for key, reasons in layers.items()
    ]


def ports_of(executable: ExecutableNetwork) -> Ports:
    return executable.inputs, executable.outputs


def _kinds(ports: Ports) -> list[list[tuple[object, ...]]]:
    return [[(port.name, port.dtype, port.kind) for port in side] for side in ports]


def export(members: Iterable[DeviceNetwork]) -> bytes:
    """The devices' own bytes of the network. A device that exports none will compile the network
    again."""
    return _FORMAT.write(
        ([member.name, member.architecture, member.backend_version], member.executable.export())
        for member in members
    )


def read_exports(native: bytes) -> dict[str, MemberExport]:
    """Reads the exports that `export` wrote, by device. Raises as `ExportFormat.read`."""
    return {exported.device: exported for exported in _FORMAT.read(native, _export)}


def _export(facts: Any, native: bytes) -> MemberExport:
    device, architecture, backend_version = map(str, facts)
    return MemberExport(device, architecture, backend_version, native)
