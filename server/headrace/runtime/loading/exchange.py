"""Turns a loaded network into an export blob, and checks a blob that is imported."""

from __future__ import annotations

import json
from collections.abc import Sequence

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.loading.blob import Blob
from headrace.runtime.loading.life import Record
from headrace.runtime.loading.registry import NetworkEntry
from headrace.runtime.network.network import Port
from headrace.runtime.transform.options import NetworkOptions, options_from_json, options_to_json


def export_blob(entry: NetworkEntry, plugin: Plugin) -> Blob:
    """The blob of a ready network. The caller holds a reference to the network."""
    executable = entry.executable
    record: Record = entry.record
    assert executable is not None
    return Blob(
        device=str(record.request.device),
        architecture=plugin.architecture,
        backend_version=plugin.backend_version,
        network=tuple(record.given.chunks()),
        native=executable.export(),
        config=record.request.config,
        inputs=_told(executable.inputs),
        outputs=_told(executable.outputs),
        meta={"options": json.dumps(options_to_json(record.request.options))},
    )


def blob_options(blob: Blob) -> NetworkOptions:
    """The options that the network of the blob was loaded with.

    Raises:
        InvalidArgument: the options cannot be read.
    """
    try:
        return options_from_json(json.loads(blob.meta["options"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument("its options cannot be read", field="blob") from error


def why_not_native(blob: Blob, plugin: Plugin, device: DeviceName) -> tuple[str, ...]:
    """Notes that say why the network is compiled again. Empty if the native bytes can be used."""
    if blob.native is None:
        return ("compiled anew: the blob was not signed with this server's key",)
    try:
        blob.check_device(str(device), plugin.architecture, plugin.backend_version)
    except InvalidArgument as error:
        return (f"compiled anew: {error.message}",)
    return ()


def check_ports(blob: Blob, executable: ExecutableNetwork) -> None:
    """Closes the network if its inputs and outputs differ from those in the blob.

    Raises:
        InvalidArgument: they differ.
    """
    ours = _told(executable.inputs), _told(executable.outputs)
    if ours != (blob.inputs, blob.outputs):
        executable.close()
        raise InvalidArgument("its inputs and outputs are not those of its network", field="blob")


def _told(ports: Sequence[Port]) -> tuple[tuple[str, str], ...]:
    return tuple((port.name, port.dtype.name) for port in ports)
