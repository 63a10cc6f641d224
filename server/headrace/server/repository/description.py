"""Reads ``network.toml``, which says how to load a network and which of its versions serve."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import onnx_ir as ir

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.config.key import as_text
from headrace.runtime.config.table import check_table
from headrace.runtime.errors import InvalidArgument, NotFound
from headrace.runtime.loading.entry import USUAL, Residence
from headrace.runtime.loading.shadows.shadow import NO_SHADOW, PERCENT, Shadow, check_shadow
from headrace.runtime.loading.versions import check_shares
from headrace.runtime.sequences.keys import ROWS, STATES, Declaration, written
from headrace.runtime.transform.options import (
    InputOptions,
    LoadRequest,
    NetworkOptions,
    OutputOptions,
    Presentation,
    Reference,
)
from headrace.runtime.transform.warm_up import WarmUp
from headrace.server.repository.model_config import ModelSettings
from headrace.server.repository.named_files import file_inside, labels_inside, read_bounded
from headrace.server.repository.policy import LATEST, VersionPolicy, parse_policy
from headrace.server.toml import parse_toml

FILE: Final = "network.toml"
START: Final = "start"
FIRST_REQUEST: Final = "first_request"
_MAX_IDLE_SECONDS: Final = 365 * 24 * 3600
_MAX_BYTES: Final = 1 << 20
_MAX_BATCH: Final = 2**31 - 1
_MAX_WARM_UPS: Final = 1000
KEYS: Final = {
    "device": "the device; default: `CPU`, for a [pipeline](pipelines.md) `PIPELINE`",
    "config": "table: configuration keys",
    "inputs": "table of tables: preprocessing of each input",
    "outputs": "table of tables: how each output is given, and its `label_filename`",
    "affinities": "table: layer to device, for `HETERO`",
    "states": "table: inputs that the server keeps for a sequence, each with its output, or with a "
    "table of `output`, `shape` and `initial`",
    "version_policy": '`"all"`, `{latest = N}` or `{specific = [1, 3]}`; default: `{latest = 1}`',
    "traffic": "table: version to per cent of the requests that name no version",
    "shadow": "table: the `version` or `device` that a [shadow](../run/shadow.md) of the requests "
    "goes to, and the `percent` of them; default: 5",
    "warmup": "table, or a file beside the versions: requests that run before READY",
    "max_batch_size": "the most rows of a batch, the first dimension of all ports; default: 0, for "
    "no limit. A request with more rows is refused, in every protocol. On "
    "[BATCH](batch.md), a first dimension that the model fixes at 1 then takes any size",
    "load": "`start` or `first_request`: when the network is loaded; default: `first_request` if "
    "its device has a `--memory-budget`, and otherwise `start`",
    "pinned": "whether the network stays in memory once it is loaded; default: false",
    "min_idle_seconds": "for how long nobody must have used the network before it may leave memory "
    "for another one; default: 0",
    "label_filename": "file with the labels of every output, one a line",
}
"""Every key of the file, and what it means."""


@dataclass(frozen=True, slots=True)
class Description:
    """
    Attributes:
        request: how to load each version. It has the network's name and the first version.
        policy: which versions serve.
        traffic: the per cent of the requests that each version gets.
        shadow: what gets a share of the requests too.
        residence: how it stays in memory.
        load: `START` or `FIRST_REQUEST`; empty if the file does not say.
    """

    request: LoadRequest
    policy: VersionPolicy = LATEST
    traffic: Mapping[str, int] = field(default_factory=dict)
    residence: Residence = USUAL
    load: str = ""
    shadow: Shadow = NO_SHADOW

    def of(self, version: str) -> LoadRequest:
        """How to load a version."""
        return replace(self.request, version=version)

    def as_said(self, name: str, reference: Reference) -> Description:
        """Merges a client's options for `name` with the file's. The client's options come first.

        Raises:
            InvalidArgument: `reference.device` is not a device name.
        """
        said, described = reference.options, self.request
        options = replace(
            said,
            inputs={**described.options.inputs, **said.inputs},
            outputs={**described.options.outputs, **said.outputs},
            affinities={**described.options.affinities, **said.affinities},
        )
        device = DeviceName.parse(reference.device) if reference.device else described.device
        request = replace(
            described,
            name=name,
            device=device,
            config={**described.config, **reference.config},
            options=options,
            origin="client",
            reference=reference,
        )
        return replace(self, request=request)


def read_description(name: str, folder: Path, settings: ModelSettings) -> Description:
    """Reads the description of a network in `folder`. Without a file, it has only defaults.

    Args:
        settings: what the network's ``config.pbtxt`` says. The file's own words come first.

    Raises:
        FailedPrecondition: the file cannot be read.
        InvalidArgument, NotFound: a value in the file is wrong. The error names the key.
    """
    path, facts = folder / FILE, {}
    if os.path.lexists(path):
        try:
            facts = parse_toml(read_bounded(path, FILE, _MAX_BYTES))
        except ValueError as error:
            raise InvalidArgument(str(error), field=FILE) from error
    check_table(facts, KEYS, FILE)
    labels = {
        output: labels_inside(folder, file, settings.place)
        for output, file in settings.label_files.items()
    }
    if "device" in facts:
        device = DeviceName.parse(str(facts["device"]), field=f"{FILE}: device")
        settings = replace(settings, device=str(device))
    if "version_policy" in facts:
        settings = replace(settings, policy=None)
    described = LoadRequest(name, DeviceName.parse("CPU"), origin="repository")
    base = settings.applied(described, labels)
    config, outputs = _table(facts, "config"), _table(facts, "outputs")
    options = NetworkOptions(
        {
            **base.options.inputs,
            **{key: _input(each, key) for key, each in _table(facts, "inputs").items()},
        },
        {
            **base.options.outputs,
            **{key: _output(output, key) for key, output in outputs.items()},
        },
        {key: str(each) for key, each in _table(facts, "affinities").items()},
    )
    texts = {key: as_text(value) for key, value in config.items()}
    if states := _table(facts, "states"):
        texts[STATES.name] = written([_state(states, name) for name in states])
    request = replace(
        base,
        config={**base.config, **texts},
        options=options,
        presentation=_presentation(facts, outputs, folder, base.presentation),
        warm_ups=(_warm_up(facts["warmup"], folder),) if "warmup" in facts else base.warm_ups,
    )
    policy = settings.policy or parse_policy(facts.get("version_policy"), f"{FILE}: version_policy")
    return Description(
        request, policy, _traffic(facts), _residence(facts), _load(facts), _shadow(facts)
    )


def _traffic(facts: Mapping[str, Any]) -> dict[str, int]:
    where, traffic = f"{FILE}: traffic", _table(facts, "traffic")
    for version, share in traffic.items():
        if type(share) is not int:
            message = f"version {version} gets {share!r}; a share is a whole number, per cent"
            raise InvalidArgument(message, field=where)
    return check_shares(traffic, where)


def _shadow(facts: Mapping[str, Any]) -> Shadow:
    where = f"{FILE}: shadow"
    if "shadow" not in facts:
        return NO_SHADOW
    shadow = _table(facts, "shadow")
    check_table(shadow, {"version", "device", "percent"}, where)
    version, percent = shadow.get("version", ""), shadow.get("percent", PERCENT)
    if type(version) not in (int, str):
        raise InvalidArgument(f"must be a number, not {version!r}", field=f"{where}.version")
    if type(percent) is not int:
        message = f"must be a whole number, per cent, not {percent!r}"
        raise InvalidArgument(message, field=f"{where}.percent")
    wanted = Shadow(str(version), _text(shadow, "device", "shadow"), percent)
    return check_shadow(wanted, f"{where}.")


def _residence(facts: Mapping[str, Any]) -> Residence:
    pinned, seconds = facts.get("pinned", False), facts.get("min_idle_seconds", 0)
    if type(pinned) is not bool:
        message = f"must be true or false, not {pinned!r}"
        raise InvalidArgument(message, field=f"{FILE}: pinned")
    if not _is_number(seconds) or not 0 <= seconds <= _MAX_IDLE_SECONDS:
        message = f"must be a number of seconds from 0 to {_MAX_IDLE_SECONDS}, not {seconds!r}"
        raise InvalidArgument(message, field=f"{FILE}: min_idle_seconds")
    return Residence(pinned, float(seconds))


def _load(facts: Mapping[str, Any]) -> str:
    load = _text(facts, "load", "")
    if load not in ("", START, FIRST_REQUEST):
        message = f"must be {START!r} or {FIRST_REQUEST!r}, not {load[:200]!r}"
        raise InvalidArgument(message, field=f"{FILE}: load")
    return load


def _presentation(
    facts: Mapping[str, Any], outputs: Mapping[str, Any], folder: Path, base: Presentation
) -> Presentation:
    """
    Args:
        base: what holds where the file says nothing.
    """
    size = facts.get("max_batch_size", base.max_batch_size)
    if type(size) is not int or not 0 <= size <= _MAX_BATCH:
        message = f"must be a whole number from 0 to {_MAX_BATCH}, not {size!r}"
        raise InvalidArgument(message, field=f"{FILE}: max_batch_size")
    named = {"": _text(facts, "label_filename", "")}
    for output, each in outputs.items():
        named[output] = _text(each, "label_filename", f"outputs.{output}")
    labels = {output: labels_inside(folder, name, FILE) for output, name in named.items() if name}
    return replace(base, max_batch_size=size, labels={**base.labels, **labels})


def _warm_up(facts: Any, folder: Path) -> WarmUp:
    facts = {"file": facts} if isinstance(facts, str) else facts
    check_table(facts, {"count", "shapes", "file"}, f"{FILE}: warmup")
    count, where = facts.get("count", 1), f"{FILE}: warmup"
    if type(count) is not int or not 0 <= count <= _MAX_WARM_UPS:
        message = f"must be a whole number from 0 to {_MAX_WARM_UPS}, not {count!r}"
        raise InvalidArgument(message, field=f"{where}.count")
    shapes = _shapes(facts.get("shapes", {}))
    name = _text(facts, "file", "warmup")
    if not name:
        return WarmUp(count, shapes)
    file = file_inside(folder, name, "warmup", FILE)
    facts = file.stat()
    return WarmUp(count, shapes, file=file, stamp=(facts.st_size, facts.st_mtime_ns, facts.st_ino))


def _shapes(shapes: Any) -> dict[str, tuple[int, ...]]:
    if not isinstance(shapes, dict):
        raise InvalidArgument("must be a table", field=f"{FILE}: warmup.shapes")
    for name, shape in shapes.items():
        if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
            message = f"must be a list of sizes, as [1, 3], not {shape!r}"
            raise InvalidArgument(message, field=f"{FILE}: warmup.shapes.{name}")
    return {name: tuple(shape) for name, shape in shapes.items()}


def _input(facts: Any, name: str) -> InputOptions:
    where = f"inputs.{name}"
    check_table(
        facts,
        {"dtype", "layout", "network_layout", "resize", "mean", "scale", "shape"},
        f"{FILE}: {where}",
    )
    return InputOptions(
        dtype=_dtype(facts, where),
        layout=_text(facts, "layout", where),
        network_layout=_text(facts, "network_layout", where),
        resize=_text(facts, "resize", where),
        mean=_numbers(facts, "mean", where),
        scale=_numbers(facts, "scale", where),
        shape=_shape(facts, where),
    )


def _output(facts: Any, name: str) -> OutputOptions:
    where = f"outputs.{name}"
    check_table(
        facts, {"dtype", "layout", "network_layout", "label_filename", "shape"}, f"{FILE}: {where}"
    )
    return OutputOptions(
        dtype=_dtype(facts, where),
        layout=_text(facts, "layout", where),
        network_layout=_text(facts, "network_layout", where),
        shape=_shape(facts, where),
    )


def _shape(facts: Mapping[str, Any], where: str) -> tuple[int | None, ...] | None:
    shape = facts.get("shape")
    if shape is None:
        return None
    if not isinstance(shape, list) or not all(type(size) is int and size >= -1 for size in shape):
        message = f"must be a list of sizes, as [-1, 16], not {shape!r}"
        raise InvalidArgument(message, field=f"{FILE}: {where}.shape")
    return tuple(None if size == -1 else size for size in shape)


def _state(states: Mapping[str, Any], name: str) -> Declaration:
    said, where = states[name], f"states.{name}"
    if not isinstance(said, dict):
        return Declaration(name, _text(states, name, "states"))
    check_table(said, {"output", "shape", "initial"}, f"{FILE}: {where}")
    shape, initial = said.get("shape"), said.get("initial", "")
    if shape is not None and not (isinstance(shape, list) and all(map(_is_size, shape))):
        message = f"must be a list of sizes, as [2, 'N', 128], not {shape!r}"
        raise InvalidArgument(message, field=f"{FILE}: {where}.shape")
    if initial != "" and not _is_number(initial):
        message = f"must be a number, not {initial!r}"
        raise InvalidArgument(message, field=f"{FILE}: {where}.initial")
    sizes = tuple(None if size == -1 else size for size in shape) if shape else None
    return Declaration(name, _text(said, "output", where), sizes, str(initial))


def _is_size(value: Any) -> bool:
    return value == ROWS or (type(value) is int and value >= -1)


def _text(facts: Mapping[str, Any], key: str, where: str) -> str:
    text = facts.get(key, "")
    if not isinstance(text, str):
        message = f"must be text in quotes, not {text!r}"
        raise InvalidArgument(
            message, field=f"{FILE}: {where}.{key}" if where else f"{FILE}: {key}"
        )
    return text


def _numbers(facts: Mapping[str, Any], key: str, where: str) -> tuple[float, ...]:
    numbers = facts.get(key, [])
    if not isinstance(numbers, list) or not all(map(_is_number, numbers)):
        message = f"must be a list of numbers, as [0.5], not {numbers!r}"
        raise InvalidArgument(message, field=f"{FILE}: {where}.{key}")
    return tuple(float(number) for number in numbers)


def _is_number(value: object) -> bool:
    return type(value) in (float, int)


def _dtype(facts: Mapping[str, Any], where: str) -> ir.DataType | None:
    name = facts.get("dtype")
    if name is None:
        return None
    known = {each.name: each for each in ir.DataType} | {
        "FLOAT32": ir.DataType.FLOAT,
        "FLOAT64": ir.DataType.DOUBLE,
    }
    if str(name).upper() not in known:
        raise NotFound.unknown("dtype", str(name), known, field=f"{FILE}: {where}.dtype")
    return known[str(name).upper()]


def _table(facts: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = facts.get(key, {})
    if not isinstance(table, dict):
        raise InvalidArgument("must be a table", field=f"{FILE}: {key}")
    return table
