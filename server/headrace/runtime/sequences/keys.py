"""The configuration keys of a network that keeps states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.runtime.config.key import Key, config_field
from headrace.runtime.config.schema import ConfigSchema, Configuration
from headrace.runtime.errors import InvalidArgument

_FORM = "'input=output' for each state, separated by commas"


def pairs(text: str) -> tuple[tuple[str, str], ...]:
    """The states that a value of STATES names, each as its input and output.

    Raises:
        ValueError: the text is not such a list.
    """
    if not text.strip():
        return ()
    found = []
    for part in text.split(","):
        names = [name.strip() for name in part.split("=")]
        if len(names) != 2 or not all(names):
            raise ValueError(part)
        found.append((names[0], names[1]))
    return tuple(found)


def written(states: Mapping[str, str]) -> str:
    """The value of STATES that names these states. `states` maps inputs to outputs.

    Raises:
        InvalidArgument: a name has a comma or '=' in it, or spaces at its ends.
    """
    text = ",".join(f"{name}={output}" for name, output in states.items())
    if not _are_pairs(text) or dict(pairs(text)) != dict(states):
        raise InvalidArgument(
            "the names of states must not be empty, hold ',' or '=', or begin or end with a "
            f"space: {str(dict(states))[:200]}; rename the tensors in the model",
            field=config_field("STATES"),
        )
    return text


def _are_pairs(text: str) -> bool:
    try:
        pairs(text)
    except ValueError:
        return False
    return True


STATES = Key(
    "STATES",
    str,
    "",
    "Inputs that the server keeps between the requests of a sequence, and for each the output that "
    "gives its next value, as h=hn,c=cn.",
    check=_are_pairs,
    form=f"empty, or {_FORM}",
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
    own = {name: text for name, text in config.items() if name in SCHEMA}
    rest = {name: text for name, text in config.items() if name not in SCHEMA}
    for name in rest:
        prefix, _, key = name.rpartition(".")
        if key in SCHEMA:
            raise InvalidArgument(
                f"{key} belongs to the whole network, not to {prefix}: give it without a prefix",
                field=config_field(name),
            )
    found = SCHEMA.resolve(own)
    if found[STATES]:
        return found, rest
    for name in own:
        if STATES.name not in own:
            raise InvalidArgument(
                f"{name} is for a network that keeps states: give {STATES.name} too",
                field=config_field(name),
            )
    return None, rest
