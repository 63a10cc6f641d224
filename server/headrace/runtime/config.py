"""Configuration keys, each declared once, and the values that they take.

A `Key` says name, type, default, allowed values and meaning. Parsing from the wire's strings,
SUPPORTED_CONFIG_KEYS, help, the docs table and "did you mean" all derive from it. A `ConfigSchema`
is the keys of one device; resolved over layers of strings it gives a typed `Configuration`:

    config = schema.resolve(set_config, load_config)    # later layers win
    streams: int = config[NUM_STREAMS]
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar, cast

from headrace.runtime.errors import InvalidArgument, NotFound

MAX_KEYS = 256
MAX_NAME_LENGTH = 128
MAX_VALUE_LENGTH = 1024

T = TypeVar("T", bound=str | int | float)

_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_BOOLEANS = {"YES": True, "TRUE": True, "NO": False, "FALSE": False}
_INT64 = 2**63


class Range(NamedTuple):
    """Values from `minimum` to `maximum`, both included, in steps of `step`."""

    minimum: int
    maximum: int
    step: int = 1


ParameterValue: TypeAlias = str | int | float | bool | list[str] | Range


@dataclass(frozen=True, slots=True)
class Key(Generic[T]):
    """The declaration of one configuration key.

    Args:
        name: upper case, without a dot: a dot parts a device's name from the key.
        kind: str, int, float or bool.
        default: the value where none is given.
        description: one line.
        unit: of a number, as "seconds".
        choices: the only values allowed, if given; matched without regard to case.
        minimum, maximum: bounds of a number, both included.
        words: further spellings that stand for a value, as AUTO for 0; without regard to case.
            A number that has a word is written as the word.
        check: whether a parsed value is allowed, beyond the above; needs `form`.
        form: the allowed values in words, where they do not follow from the declaration.
        mutable: whether SetConfig may change it on a loaded network.
        scope: what the key belongs to: the whole device, or each network on it.

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
    scope: Literal["device", "network"] = "network"

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
            return _or(options + words)
        if self.kind is bool:
            return "YES or NO"
        if self.kind is str:
            return _or(["text", *words])
        number = "an integer" if self.kind is int else "a finite number"
        bounds = [
            f"{word} {as_text(bound)}"
            for word, bound in (("from", self.minimum), ("to", self.maximum))
            if bound is not None
        ]
        return _or(
            [" ".join([number, *bounds, *([f"({self.unit})"] if self.unit else [])]), *words]
        )

    def parse(self, text: str) -> T:
        """The value that `text` spells.

        Raises:
            InvalidArgument: if it spells none, or one that is not allowed; `field` is config['X'].
        """
        if len(text) > MAX_VALUE_LENGTH:
            raise self._refusal(f"{text[:32]!r}… of {len(text)} characters")
        value = self._spelled(text)
        if value is None or not self._allows(value):
            raise self._refusal(repr(text))
        return value

    def format(self, value: T) -> str:
        """The one canonical text of a value; `parse` reads it back."""
        if self.kind is not str:
            for word, meaning in self.words.items():
                if meaning == value:
                    return word
        return as_text(value)

    def _spelled(self, text: str) -> T | None:
        folded = text.strip().upper()
        for word, value in self.words.items():
            if word.upper() == folded:
                return value
        for choice in self.choices:
            if self.format(choice).upper() == folded:
                return choice
        parsed: object
        if self.kind is bool:
            parsed = _BOOLEANS.get(folded)
        elif self.kind is int:
            parsed = int(folded) if _INTEGER.fullmatch(folded) else None
        elif self.kind is float:
            parsed = float(folded) if _DECIMAL.fullmatch(folded) else None
        else:
            parsed = text
        return cast("T | None", parsed)

    def _allows(self, value: T) -> bool:
        if value in self.words.values():
            return True
        if self.choices and value not in self.choices:
            return False
        if not isinstance(value, str):
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
            field=_field(self.name),
            metadata={"key": self.name, "allowed": self.allowed},
        )


class ConfigSchema:
    """The configuration keys that one device knows. Immutable.

    A key given again replaces the one of the same name, so that a device can take the standard
    keys and change a default: ``ConfigSchema(*STANDARD_KEYS, replace(PERF_COUNT, default=True))``.
    """

    __slots__ = ("_keys",)

    def __init__(self, *keys: Key[Any]) -> None:
        self._keys = {key.name: key for key in keys}

    def __contains__(self, name: object) -> bool:
        return name in self._keys

    def __iter__(self) -> Iterator[Key[Any]]:
        return iter(self._keys.values())

    @property
    def names(self) -> list[str]:
        """SUPPORTED_CONFIG_KEYS."""
        return list(self._keys)

    def key(self, name: str, *, at: str | None = None) -> Key[Any]:
        """The declaration of a key; `at` is the request field that named it.

        Raises:
            NotFound: if the device has no such key; says "did you mean".
        """
        key = self._keys.get(name)
        if key is None:
            # A client's name is bounded before it is compared and echoed.
            shown = name if len(name) <= MAX_NAME_LENGTH else name[:32] + "…"
            raise NotFound.unknown(
                "configuration key", shown, self._keys, field=at or _field(shown)
            )
        return key

    def resolve(self, *layers: Mapping[str, str], ignore_unknown: bool = False) -> Configuration:
        """The configuration that the layers give over the defaults; later layers win.

        Args:
            layers: name to text, as from the wire.
            ignore_unknown: pass over unknown keys, as a query does where a load refuses them.

        Raises:
            NotFound: on an unknown key.
            InvalidArgument: on a bad value, or too many keys.
        """
        values = {key.name: key.default for key in self}
        explicit: set[str] = set()
        for layer in layers:
            if len(layer) > MAX_KEYS:
                raise InvalidArgument(
                    f"{len(layer)} configuration keys are more than the {MAX_KEYS} allowed",
                    field="config",
                )
            for name, text in layer.items():
                if ignore_unknown and name not in self:
                    continue
                values[name] = self.key(name).parse(text)
                explicit.add(name)
        return Configuration(MappingProxyType(values), frozenset(explicit), self)

    def help_text(self) -> str:
        """A paragraph of plain text per key."""
        return "\n".join(
            f"{key.name} (default: {key.format(key.default) or 'empty'})\n"
            f"    {key.description} Allowed: {key.allowed}."
            for key in self
        )

    def to_markdown(self) -> str:
        """The table of keys for the documentation."""
        rows = ["| key | default | allowed | changes while loaded | meaning |"]
        rows.append("| --- | --- | --- | --- | --- |")
        for key in self:
            default = f"`{key.format(key.default)}`" if key.format(key.default) else "empty"
            mutable = "yes" if key.mutable else "no"
            cells = (f"`{key.name}`", default, key.allowed, mutable, key.description)
            rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
        return "\n".join(rows) + "\n"


@dataclass(frozen=True, slots=True)
class Configuration:
    """Values of all keys of a schema. Two with the same values are equal and hash alike.

    Made by `ConfigSchema.resolve`.
    """

    _values: Mapping[str, Any]
    explicit: frozenset[str] = field(compare=False)  # names given by a layer, not defaulted
    schema: ConfigSchema = field(compare=False, repr=False)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __getitem__(self, key: Key[T]) -> T:
        return cast("T", self._values[key.name])

    def __contains__(self, key: Key[Any]) -> bool:
        return key.name in self._values

    def get_parameter(self, name: str) -> ParameterValue:
        """The value of the key called `name`, typed as GetConfig gives it.

        Raises:
            NotFound: if there is no such key.
        """
        return cast("ParameterValue", self._values[self.schema.key(name, at="name").name])

    def to_strings(self) -> dict[str, str]:
        """Every key with its value as canonical text; `resolve` reads it back."""
        return {key.name: key.format(self._values[key.name]) for key in self.schema}

    def explicit_strings(self) -> dict[str, str]:
        """Like `to_strings`, of the keys that were given and not defaulted."""
        return {name: text for name, text in self.to_strings().items() if name in self.explicit}

    def changed(self, changes: Mapping[str, str]) -> Configuration:
        """This configuration after SetConfig on a loaded network.

        Raises:
            NotFound: on an unknown key.
            InvalidArgument: on a bad value, or a key that takes effect at load only.
        """
        for name in changes:
            if not self.schema.key(name).mutable:
                mutable = _or([key.name for key in self.schema if key.mutable]) or "none"
                raise InvalidArgument(
                    f"{name} cannot change on a loaded network, load it anew with the value "
                    f"wanted; keys that can: {mutable}",
                    field=_field(name),
                )
        return self.schema.resolve(self.explicit_strings(), changes)


def as_text(value: str | int | float) -> str:
    """A value as the wire writes it: booleans as YES and NO, numbers as short as is exact."""
    if isinstance(value, bool):
        return "YES" if value else "NO"
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return str(value)


def for_device(config: Mapping[str, str], device: str) -> dict[str, str]:
    """The part of a list's configuration that is for one `device`, without prefixes.

    A key without a prefix is for every device. ``CPU.NUM_STREAMS`` is for CPU alone and wins over
    it, ``CPU.1.NUM_STREAMS`` is for CPU.1 alone and wins over both.

    Args:
        device: type or type and id, as "CPU" or "CPU.1".
    """
    wanted = ["", device.partition(".")[0].upper()]
    if "." in device:
        wanted.append(_fold_device(device))
    chosen: dict[str, str] = {}
    for prefix in wanted:
        for name, text in config.items():
            owner, _, key = name.rpartition(".")
            if _fold_device(owner) == prefix:
                chosen[key] = text
    return chosen


def check_prefixes(config: Mapping[str, str], devices: Iterable[str]) -> None:
    """Refuses keys with a prefix that names none of `devices` ("CPU", "CPU.1").

    Raises:
        NotFound: naming the key.
    """
    known = {name for device in devices for name in (device, device.partition(".")[0].upper())}
    folded = {_fold_device(device) for device in known}
    for name in config:
        owner, dot, _ = name[: MAX_NAME_LENGTH + 1].rpartition(".")
        if dot and _fold_device(owner) not in folded:
            raise NotFound.unknown("device", owner, known, field=_field(name[:MAX_NAME_LENGTH]))


def _fold_device(name: str) -> str:
    kind, dot, device_id = name.partition(".")
    return kind.upper() + dot + device_id


def _field(name: str) -> str:
    return f"config[{name!r}]"


def _or(options: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(options[:-1]), options[-1] if options else ""]))
