"""The model repository: a folder whose sub-folders hold a ``model.onnx`` and perhaps a
``network.toml`` with the device, its configuration and the preprocessing.

Files with external data are mapped while their network is loaded: put a new one there by renaming
it, as ``mv`` does within a file system, and never write to one in place.
"""

from __future__ import annotations

import logging
import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.config.key import as_text
from headrace.runtime.errors import FailedPrecondition, InvalidArgument, NotFound
from headrace.runtime.intake.limits import Limits
from headrace.runtime.loading.registry import check_network_name
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import LoadRequest, NetworkOptions, Reference
from headrace.runtime.transform.preprocessing import InputOptions, OutputOptions

_log = logging.getLogger(__name__)

_MODEL = "model.onnx"
_DESCRIPTION = "network.toml"
_MAX_DESCRIPTION_BYTES = 1 << 20


class Repository:
    """Reads one folder afresh each time it is asked; what a client names stays inside it."""

    def __init__(self, folder: Path | None, limits: Limits) -> None:
        self._folder = folder.resolve() if folder is not None else None
        self._limits = limits

    def names(self) -> list[str]:
        """Sub-folders that hold a model."""
        if self._folder is None:
            return []
        return sorted(child.name for child in self._folder.iterdir() if _holds_model(child))

    def network(self, name: str, *, spooled: bool = False) -> Network:
        """The model of that name; `spooled` as in `Network.from_bytes`.

        Raises:
            NotFound, FailedPrecondition: there is none, or no repository.
            InvalidModel: it is no sound model.
        """
        folder = self._find(name)
        return Network.from_file(folder / _MODEL, folder, self._limits, spooled=spooled)

    def request(self, name: str) -> LoadRequest:
        """How ``network.toml`` says to load the network; on the CPU as it is if there is none.

        Raises:
            NotFound, FailedPrecondition: as `network` does, or the file cannot be read.
            InvalidArgument: the file is not as it should be; names the key.
        """
        path = self._find(name) / _DESCRIPTION
        try:
            if not path.is_file():
                return LoadRequest(name, DeviceName.parse("CPU"), origin="repository")
            if path.stat().st_size > _MAX_DESCRIPTION_BYTES:
                raise InvalidArgument("is too large", field=_DESCRIPTION)
            facts = tomllib.loads(path.read_text("utf-8"))
        except OSError as error:
            message = f"cannot be read: {error.strerror}"
            raise FailedPrecondition(message, field=_DESCRIPTION) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"is not TOML: {error}", field=_DESCRIPTION) from error
        _only(facts, {"device", "config", "inputs", "outputs", "affinities"}, "")
        config = _table(facts, "config")
        options = NetworkOptions(
            {key: _input(each, key) for key, each in _table(facts, "inputs").items()},
            {key: _output(each, key) for key, each in _table(facts, "outputs").items()},
            {key: str(each) for key, each in _table(facts, "affinities").items()},
        )
        device = DeviceName.parse(str(facts.get("device", "CPU")), field=f"{_DESCRIPTION}: device")
        texts = {key: as_text(value) for key, value in config.items()}
        return LoadRequest(name, device, texts, options, "repository")

    def load_request(self, name: str, reference: Reference) -> LoadRequest:
        """How to load what a client asks for as `name`: where it says nothing, ``network.toml``
        does. Raises as `request`, and InvalidArgument if `reference.device` is no device name."""
        described, options = self.request(reference.network), reference.options
        return LoadRequest(
            name,
            DeviceName.parse(reference.device) if reference.device else described.device,
            {**described.config, **reference.config},
            replace(
                options,
                inputs={**described.options.inputs, **options.inputs},
                outputs={**described.options.outputs, **options.outputs},
                affinities={**described.options.affinities, **options.affinities},
            ),
            reference=reference,
        )

    def _find(self, name: str) -> Path:
        if self._folder is None:
            raise FailedPrecondition(
                "the server has no model repository (--model-repository)", field="model.repository"
            )
        check_network_name(name)
        folder = Path(os.path.realpath(self._folder / name))  # raises at no link
        if folder.parent != self._folder:
            message = f"{name!r} is a link that leads out of the model repository"
            raise FailedPrecondition(message, field="model.repository")
        if not _holds_model(folder):
            raise NotFound.unknown(
                "network in the model repository", name, self.names(), field="model.repository"
            )
        return folder


def _holds_model(folder: Path) -> bool:
    try:
        return (folder / _MODEL).is_file()
    except OSError as error:  # as the lost+found of a volume, which only root may enter
        _log.warning("%s is left out: %s", folder, error.strerror)
        return False


def _input(facts: Any, name: str) -> InputOptions:
    where = f"inputs.{name}"
    _only(facts, {"dtype", "layout", "network_layout", "resize", "mean", "scale"}, where)
    return InputOptions(
        dtype=_dtype(facts, where),
        layout=_text(facts, "layout", where),
        network_layout=_text(facts, "network_layout", where),
        resize=_text(facts, "resize", where),
        mean=_numbers(facts, "mean", where),
        scale=_numbers(facts, "scale", where),
    )


def _output(facts: Any, name: str) -> OutputOptions:
    where = f"outputs.{name}"
    _only(facts, {"dtype", "layout", "network_layout"}, where)
    return OutputOptions(
        dtype=_dtype(facts, where),
        layout=_text(facts, "layout", where),
        network_layout=_text(facts, "network_layout", where),
    )


def _text(facts: Mapping[str, Any], key: str, where: str) -> str:
    text = facts.get(key, "")
    if not isinstance(text, str):
        message = f"must be text in quotes, not {text!r}"
        raise InvalidArgument(message, field=f"{_DESCRIPTION}: {where}.{key}")
    return text


def _numbers(facts: Mapping[str, Any], key: str, where: str) -> tuple[float, ...]:
    numbers = facts.get(key, [])
    if not isinstance(numbers, list) or not all(map(_is_number, numbers)):
        message = f"must be a list of numbers, as [0.5], not {numbers!r}"
        raise InvalidArgument(message, field=f"{_DESCRIPTION}: {where}.{key}")
    return tuple(float(each) for each in numbers)


def _is_number(value: object) -> bool:
    """Whether `float` takes it: TOML's integers may be of any size here."""
    return type(value) is float or (type(value) is int and abs(value) < 2**1000)


def _dtype(facts: Mapping[str, Any], where: str) -> ir.DataType | None:
    name = facts.get("dtype")
    if name is None:
        return None
    known = {each.name: each for each in ir.DataType} | {
        "FLOAT32": ir.DataType.FLOAT,
        "FLOAT64": ir.DataType.DOUBLE,
    }
    if str(name).upper() not in known:
        raise NotFound.unknown("dtype", str(name), known, field=f"{_DESCRIPTION}: {where}.dtype")
    return known[str(name).upper()]


def _table(facts: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = facts.get(key, {})
    if not isinstance(table, dict):
        raise InvalidArgument("must be a table", field=f"{_DESCRIPTION}: {key}")
    return table


def _only(facts: Any, known: set[str], where: str) -> None:
    if not isinstance(facts, dict):
        raise InvalidArgument("must be a table", field=f"{_DESCRIPTION}: {where}")
    for key in facts:
        if key not in known:
            field = f"{_DESCRIPTION}: {where}" if where else _DESCRIPTION
            raise NotFound.unknown("key", str(key), known, field=field)
