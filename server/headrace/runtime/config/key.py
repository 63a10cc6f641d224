"""A configuration key: name, type, default, allowed values and meaning, declared once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar, cast

from headrace.runtime.errors import InvalidArgument

MAX_NAME_LENGTH = 128
MAX_VALUE_LENGTH = 1024

T = TypeVar("T", bound=str | int | float)

_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_BOOLEANS = {"YES": True, "TRUE": True, "1": True, "NO": False, "FALSE": False, "0": False}
_INT64 = 2**63


class Range(NamedTuple):
    """Values from `minimum` to `maximum`, both included, in steps of `step`."""

    minimum: int
    maximum: int
    step: int = 1


ParameterValue: TypeAlias = str | int | float | bool | list[str] | Range


def as_text(value: str | int | float) -> str:
    """A value as the wire writes it: booleans as YES and NO, numbers as short as is exact."""
    if isinstance(value, bool):
        return "YES" if value else "NO"
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return str(value)


@dataclass(frozen=True, slots=True)
class Key(Generic[T]):
    """The declaration of one configuration key.

    Args:
        name: upper case, without a dot: a dot parts a device's name from the key.
        kind: str, int, float or bool.
        default: the value if none is given.
        description: one line.
        unit: the unit of a number, for example "seconds".
        choices: the only values allowed, if given; matched without regard to case.
        minimum, maximum: bounds of a number, both included.
        words: further spellings for a value, for example AUTO for 0, without regard to case. A
            number that has a word is written as the word.
        check: says whether a parsed value that passed the other checks is allowed; needs `form`.
        form: the allowed values in words, if they do not follow from the declaration.
        mutable: whether SetConfig may change it on a loaded network.
        scope: what the key belongs to: the whole device; each network on it, with the device's
            value as the default; one load of a network; or the server, which sets it for the device
            in its own configuration file and lets no client do so.
        paths: a str that is a list of files' absolute paths, by ':'. Clients see names alone.
        max_length: of the text, in characters.

    Raises:
        ValueError: on a declaration that contradicts itself.
    """

    name: str
    kind: type[T]
    default: T
    description: str
    unit: str = ""
    choices: tuple[T, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    words: Mapping[str, T] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    check: Callable[[T], bool] | None = None
    form: str = ""
    mutable: bool = False
    scope: Literal["server", "device", "network", "load"] = "network"
    paths: bool = False
    max_length: int = MAX_VALUE_LENGTH

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > MAX_NAME_LENGTH:
            raise ValueError(f"a key's name is upper case with underscores, not {self.name!r}")
        if self.check is not None and not self.form:
            raise ValueError(f"{self.name}: a check needs a form that says what it allows")
        if self.parse(self.format(self.default)) != self.default:
            raise ValueError(f"{self.name}: the default {self.default!r} is not an allowed value")

    @property
    def allowed(self) -> str:
        """The allowed values in words, for errors and help."""
        if self.form:
            return self.form
        words = [word for word, value in self.words.items() if value not in self.choices]
        if self.choices:
            options = [self.format(choice) or "empty" for choice in self.choices]
            return listed(options + words)
        if self.kind is bool:
            return "YES or NO"
        if self.paths:
            return "empty, or absolute paths with ':' between them"
        if self.kind is str:
            return listed(["text", *words])
        words = [f"{word} ({as_text(value)})" for word, value in self.words.items()]
        number = "an integer" if self.kind is int else "a finite number"
        unit = f" ({self.unit})" if self.unit else ""
        return listed([number + self._bounds() + unit, *words])

    def parse(self, text: str) -> T:
        """The value that `text` spells.

        Raises:
            InvalidArgument: if it spells none, or one that is not allowed; `field` is config['X'].
        """
        if len(text) > self.max_length:
            raise self._refusal(f"{text[:32]!r}… of {len(text)} characters")
        try:
            return self.value_of(text)
        except ValueError:
            raise self._refusal(repr(text[:MAX_VALUE_LENGTH])) from None

    def value_of(self, text: str) -> T:
        """Like `parse`, for a caller that says itself what is wrong.

        Raises:
            ValueError: if it spells none, or one that is not allowed.
        """
        value = self._spelled(text)
        if not self._allows(value):
            raise ValueError
        return value

    def format(self, value: T) -> str:
        """The one canonical text of a value; `parse` reads it back."""
        if self.kind is not str:
            for word, meaning in self.words.items():
                if meaning == value:
                    return word
        return as_text(value)

    def shown(self, value: T) -> T:
        """The value as clients see it: file names without their folders."""
        if not self.paths:
            return value
        names = (PurePosixPath(path).name for path in str(value).split(":"))
        return cast("T", ":".join(names))

    def _bounds(self, write: Callable[[Any], str] = as_text) -> str:
        return "".join(
            f" {word} {write(bound)}"
            for word, bound in (("from", self.minimum), ("to", self.maximum))
            if bound is not None
        )

    def _spelled(self, text: str) -> T:
        folded = text.strip().upper()
        for word, value in self.words.items():
            if word.upper() == folded:
                return value
        for choice in self.choices:
            if self.format(choice).upper() == folded:
                return choice
        parsed: object = text
        if self.kind is bool and folded in _BOOLEANS:
            parsed = _BOOLEANS[folded]
        elif self.kind is int and _INTEGER.fullmatch(folded):
            parsed = int(folded)
        elif self.kind is float and _DECIMAL.fullmatch(folded):
            parsed = float(folded)
        elif self.kind is not str:
            raise ValueError
        return cast("T", parsed)

    def _allows(self, value: T) -> bool:
        if value in self.words.values():
            return True
        if self.choices and value not in self.choices:
            return False
        if isinstance(value, str):
            paths = value.split(":") if self.paths and value else []
            if not all(PurePosixPath(path).is_absolute() for path in paths):
                return False
        elif isinstance(value, int | float):
            if not math.isfinite(value) or not -_INT64 <= value < _INT64:
                return False
            if self.minimum is not None and value < self.minimum:
                return False
            if self.maximum is not None and value > self.maximum:
                return False
        return self.check is None or self.check(value)

    def _refusal(self, given: str) -> InvalidArgument:
        return InvalidArgument(
            f"{self.name} cannot be {given}; allowed: {self.allowed}",
            field=config_field(self.name),
            metadata={"key": self.name, "allowed": self.allowed},
        )


def config_field(name: str) -> str:
    """The field of a request that names the key, for errors."""
    return f"config[{name!r}]"


def listed(options: list[str]) -> str:
    """The options as a phrase: a, b or c."""
    return " or ".join(filter(None, [", ".join(options[:-1]), options[-1] if options else ""]))
