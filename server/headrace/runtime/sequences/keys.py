"""The configuration keys of a network that keeps states."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from headrace.runtime.config.key import Key, config_field
from headrace.runtime.config.prefixes import split_off
from headrace.runtime.config.schema import ConfigSchema, Configuration
from headrace.runtime.errors import InvalidArgument

_FORM = "'input=output', 'input=output=sizes' or 'input=output=sizes=value' for each state"
_SIZES = re.compile(r"([0-9]{1,10}|[?N])(x([0-9]{1,10}|[?N]))*")
_NUMBER = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?([eE][+-]?[0-9]{1,3})?|inf)|nan")
ROWS: Final = "N"
"""Stands for the rows of the first request, in the shape of a state."""

Shape: TypeAlias = "tuple[int | str | None, ...]"
"""The sizes of a state's axes. None: what the model declares."""


class Declaration(NamedTuple):
    """What STATES says about a state.

    Attributes:
        input, output: the input that is the state, and the output that gives its next value.
        shape: None if the model declares all sizes.
        initial: the number that each element begins with, as text; empty for zero.
    """

    input: str
    output: str
    shape: Shape | None = None
    initial: str = ""


def declarations(text: str) -> tuple[Declaration, ...]:
    """The states that a value of STATES declares.

    Raises:
        ValueError: the text is not such a list.
    """
    return tuple(map(_declaration, text.split(","))) if text.strip() else ()


def _declaration(text: str) -> Declaration:
    parts = [part.strip() for part in text.split("=")]
    if not 2 <= len(parts) <= 4 or not all(parts[:2]):
        raise ValueError(text)
    name, output, sizes, initial = (*parts, "", "")[:4]
    if (sizes and not _SIZES.fullmatch(sizes)) or (initial and not _NUMBER.fullmatch(initial)):
        raise ValueError(text)
    shape = tuple(map(_size, sizes.split("x"))) if sizes else None
    return Declaration(name, output, shape, initial)


def _size(text: str) -> int | str | None:
    return int(text) if text.isdecimal() else None if text == "?" else ROWS


def written(states: Sequence[Declaration]) -> str:
    """The value of STATES that declares these states.

    Raises:
        InvalidArgument: a name has a comma or '=' in it, or spaces at its ends; a shape or an
            initial value is not one.
    """
    text = ",".join(map(_written, states))
    try:
        declared = declarations(text)
    except ValueError:
        declared = ()
    if declared == tuple(states):
        return text
    raise InvalidArgument(
        "the names of states must not be empty, hold ',' or '=', or begin or end with a space: "
        "rename the tensors in the model. Sizes are positive, and first values are numbers: "
        f"{', '.join(map(_written, states))[:200]!r}",
        field=config_field("STATES"),
    )


def _written(state: Declaration) -> str:
    sizes = "x".join("?" if size is None else str(size) for size in state.shape or ())
    return "=".join((state.input, state.output, sizes, state.initial)).rstrip("=")


def _are_declarations(text: str) -> bool:
    try:
        declarations(text)
    except ValueError:
        return False
    return True


STATES = Key(
    "STATES",
    str,
    "",
    "Inputs that the server keeps between the requests of a sequence, and for each the output that "
    "gives its next value, as h=hn,c=cn. Sizes that the model does not declare and another first "
    "value than 0 may follow, as h=hn=2xNx128=-1: N is the rows of a request, ? what the model "
    "declares.",
    check=_are_declarations,
    form=f"empty, or {_FORM}, separated by commas",
    scope="load",
    max_length=65_536,
)
SEQUENCE_CAPACITY = Key(
    "SEQUENCE_CAPACITY",
    int,
    1024,
    "Sequences that may be open at a time. One more is refused with RESOURCE_EXHAUSTED.",
    minimum=1,
    maximum=1_000_000,
    mutable=True,
    scope="load",
)
SEQUENCE_IDLE_TIMEOUT = Key(
    "SEQUENCE_IDLE_TIMEOUT",
    float,
    60.0,
    "How long a sequence stays open without a request.",
    unit="seconds",
    minimum=0.001,
    maximum=1_000_000,
    mutable=True,
    scope="load",
)
SEQUENCE_KEYS: tuple[Key[Any], ...] = (STATES, SEQUENCE_CAPACITY, SEQUENCE_IDLE_TIMEOUT)
SCHEMA = ConfigSchema(*SEQUENCE_KEYS)


def split(config: Mapping[str, str]) -> tuple[Configuration | None, dict[str, str]]:
    """Splits a load's configuration into the part about states, if it names any, and the device's
    part.

    Raises:
        InvalidArgument: a value is bad, a key has a device's prefix, or a key needs STATES.
    """
    own, rest = split_off(config, SCHEMA)
    resolved = SCHEMA.resolve(own)
    if resolved[STATES]:
        return resolved, rest
    for name in own:
        if STATES.name not in own:
            raise InvalidArgument(
                f"{name} is for a network that keeps states: give {STATES.name} too",
                field=config_field(name),
            )
    return None, rest
