"""The declaration of one setting: a configuration key that has a flag and a variable, too.

A value is text (command line, environment) or typed (TOML). `Option.read` takes either.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Final, NamedTuple

from headrace.runtime.config.key import Key

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PREFIX: Final = "HEADRACE_"
_SIZE = re.compile(r"(\d+)\s*(B|KiB|MiB|GiB)?", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB}


class Notation(NamedTuple):
    """How the text of a value is written, where its type does not say it.

    Attributes:
        form: the text in words, for errors.
        placeholder: the word that help shows for a value.
        kind: the type of a value.
        read: the value of a text. Raises ValueError if the text has none.
        write: the text of a value; `read` reads it back.
    """

    form: str
    placeholder: str
    kind: type | UnionType
    read: Callable[[str], Any]
    write: Callable[[Any], str] = str


@dataclass(frozen=True)
class Option(Key[Any]):
    """One setting, declared once; parsing, help and documentation derive from it."""

    notation: Notation | None = None
    max_length: int = 1 << 20

    @property
    def setting(self) -> str:
        """The name in TOML, and of the attribute of `Settings`."""
        return self.name.lower()

    @property
    def flag(self) -> str:
        return flag(self.setting)

    @property
    def variable(self) -> str:
        return PREFIX + self.name

    @property
    def placeholder(self) -> str:
        """The word that help shows for a value. A switch has none."""
        if self.notation:
            return self.notation.placeholder
        if self.choices:
            return "|".join(self.choices)
        numbers = {bool: "", int: "N", float: self.unit.upper() or "NUMBER"}
        return numbers.get(self.kind, "TEXT")

    @property
    def shown_default(self) -> str:
        """The default as a person would write it. Empty if there is no default."""
        return self.format(self.default)

    @property
    def allowed(self) -> str:
        if not self.notation:
            return super().allowed
        return self.notation.form + self._bounds(self.notation.write)

    def format(self, value: Any) -> str:
        return self.notation.write(value) if self.notation else super().format(value)

    def read(self, value: object) -> Any:
        """The value that a text spells, or that TOML gives.

        Raises:
            ValueError: if it is none, or one that is not allowed.
        """
        if isinstance(value, str):
            return self.value_of(value)
        kinds = (int, float) if self.kind is float else self.kind
        if not isinstance(value, kinds) or isinstance(value, bool) != (self.kind is bool):
            raise ValueError
        try:
            return self.value_of(self.format(value))
        except TypeError:  # a list of other things than texts
            raise ValueError from None

    def _spelled(self, text: str) -> Any:
        return self.notation.read(text) if self.notation else super()._spelled(text)


def flag(name: str) -> str:
    """The option of a setting on the command line."""
    return "--" + name.replace("_", "-")


def option(default: Any, description: str, **declaration: Any) -> Any:
    """A dataclass field that is an option; `declaration` has further arguments of `Option`."""
    return field(default=default, metadata={"description": description, **declaration})


def _read_size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError
    return int(match[1]) * _UNITS[(match[2] or "").lower()]


def _write_size(value: int) -> str:
    for name, unit in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if value and value % unit == 0:
            return f"{value // unit} {name}"
    return str(value)


def read_budget(text: str) -> dict[str, int] | float:
    """The bytes of each device, or the part of all memory that networks may take.

    Raises:
        ValueError: the text is none.
    """
    if text.endswith("%"):
        share = float(text[:-1]) / 100
        if not 0 < share <= 1:
            raise ValueError
        return share
    sizes: dict[str, int] = {}
    for part in _read_names(text):
        device, _, size = part.partition("=")
        device = device.strip().upper()
        if device in sizes or not device or not (count := _read_size(size)):
            raise ValueError
        sizes[device] = count
    return sizes


def _checked_budget(text: str) -> str:
    read_budget(text)
    return text


def _read_names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


HOST = Notation(
    "an address or a host's name",
    "HOST",
    str,
    lambda text: text[1:-1] if text.startswith("[") and text.endswith("]") else text,
)
PATH = Notation(
    "a path",
    "PATH",
    Path,
    lambda text: Path(text).expanduser() if text else None,
    lambda path: str(path or ""),
)
PLACE = Notation(
    "a path, or the address of a store, as s3://bucket/folder,",
    "PATH|URL",
    Path | str,
    lambda text: text.rstrip("/") if "://" in text else PATH.read(text),
    lambda place: str(place or ""),
)
NAMES = Notation("a list of names", "NAMES", list | tuple, _read_names, ",".join)
BUDGET = Notation(
    "a size for each device, as 'CPU=8GiB,OPENVINO=4GiB', or a part of all memory, as '75%',",
    "BUDGET",
    str,
    _checked_budget,
)
SIZE = Notation("a size in bytes, or as '64 MiB',", "SIZE", int, _read_size, _write_size)
MODE = Notation(
    "the permissions of a file in octal digits, as chmod takes them,",
    "MODE",
    int,
    lambda text: int(text, 8),
    lambda mode: f"{mode:04o}",
)
