"""The declaration of one setting: its meaning, its default, and how its value is read.

A value is text (command line, environment) or typed (TOML). `Option.parse` takes either.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_SIZE = re.compile(r"(\d+)\s*(B|KiB|MiB|GiB)?", re.IGNORECASE)
_WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_UNITS = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB}


@dataclass(frozen=True, slots=True)
class ValueKind:
    """A kind of value.

    Attributes:
        expects: describes a valid value. It ends the sentence "... is not".
        parse: makes the value from text or from a TOML value. Raises ValueError.
        show: writes a value as a person would.
        placeholder: the word that help shows for a value.
    """

    expects: str
    parse: Callable[[object], Any]
    show: Callable[[Any], str] = str
    placeholder: str = ""


@dataclass(frozen=True, slots=True)
class Option:
    """One setting, declared once; parsing, help and documentation derive from it."""

    name: str
    kind: ValueKind
    default: object
    description: str

    @property
    def flag(self) -> str:
        return flag(self.name)

    @property
    def variable(self) -> str:
        """The variable in the environment."""
        return "HEADRACE_" + self.name.upper()

    @property
    def shown_default(self) -> str:
        """The default as a person would write it. Empty if there is no default."""
        if self.default is None or self.default in ("", ()):
            return ""
        return self.kind.show(self.default)


def flag(name: str) -> str:
    """The option of a setting on the command line."""
    return "--" + name.replace("_", "-")


def option(default: Any, kind: ValueKind, description: str) -> Any:
    """A dataclass field that is an option. `options` finds it."""
    return field(default=default, metadata={"kind": kind, "description": description})


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _host(value: object) -> str:
    text = _text(value)
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def _path(value: object) -> Path | None:
    if isinstance(value, Path):
        return value.expanduser()
    return Path(_text(value)).expanduser() if value else None


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(name for part in value.split(",") if (name := part.strip()))
    if not isinstance(value, list | tuple):
        raise ValueError
    return tuple(_text(name) for name in value)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError
    return float(value)


def _size(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError
    return int(match[1]) * _UNITS[(match[2] or "").lower()]


def _shown_size(value: int) -> str:
    for name, unit in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if value % unit == 0:
            return f"{value // unit} {name}"
    return str(value)


def _mode(value: object) -> int:
    """Text is octal, as chmod takes it. TOML writes octal numbers as 0o660."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError
    mode = int(value, 8) if isinstance(value, str) else value
    if not 0 <= mode <= 0o777:
        raise ValueError
    return mode


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = _text(value).strip().lower()
    if word not in _WORDS:
        raise ValueError
    return _WORDS[word]


def _seconds(value: object) -> float:
    seconds = _number(value)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError
    return seconds


def _ratio(value: object) -> float:
    ratio = _number(value)
    if not 0 <= ratio <= 1:  # False for NaN
        raise ValueError
    return ratio


TEXT = ValueKind("text", _text, placeholder="TEXT")
HOST = ValueKind("an address or a host's name", _host, placeholder="HOST")
PATH = ValueKind("a path", _path, placeholder="PATH")
NAMES = ValueKind("a list of names", _names, placeholder="NAMES")
SWITCH = ValueKind("true or false", _switch, lambda value: "yes" if value else "no")
"""The kind of a switch. On the command line, the option's name without a value means true."""
SECONDS = ValueKind(
    "a number of seconds, 0 or more", _seconds, lambda seconds: f"{seconds:g}", "SECONDS"
)
RATIO = ValueKind("a number from 0 to 1", _ratio, lambda ratio: f"{ratio:g}", "RATIO")
MODE = ValueKind(
    "the permissions of a file in octal digits, as 0660", _mode, lambda mode: f"{mode:04o}", "MODE"
)


def size(minimum: int) -> ValueKind:
    """The kind of sizes in bytes from `minimum` on."""

    def parse(value: object) -> int:
        number = _size(value)
        if number < minimum:
            raise ValueError
        return number

    least = _shown_size(minimum)
    expects = f"a size in bytes, at least {least}, as {2 * minimum} or '{_shown_size(2 * minimum)}'"
    return ValueKind(expects, parse, _shown_size, "SIZE")


def integer(minimum: int, maximum: int | None = None) -> ValueKind:
    """The kind of whole numbers from `minimum` to `maximum`, both included."""

    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ValueError
        number = int(value)
        if number < minimum or (maximum is not None and number > maximum):
            raise ValueError
        return number

    upper = "or more" if maximum is None else f"to {maximum}"
    return ValueKind(f"a whole number, {minimum} {upper}", parse, placeholder="N")


def choice(*values: str) -> ValueKind:
    """The kind of a choice of words, in upper or lower case."""

    def parse(value: object) -> str:
        word = _text(value).lower()
        if word not in values:
            raise ValueError
        return word

    return ValueKind(f"one of {', '.join(values)}", parse, placeholder="|".join(values))
