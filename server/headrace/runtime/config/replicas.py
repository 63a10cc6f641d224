"""The key with which a load says how many replicas of a cluster get its network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.runtime.config.prefixes import split_off
from headrace.runtime.config.schema import ConfigSchema, Key

REPLICAS: Final = Key(
    "REPLICAS",
    int,
    0,
    "How many replicas of a cluster have the network. Calls to the others are passed on to them.",
    words={"ALL": 0},
    minimum=0,
    maximum=10_000,
    scope="load",
)
SCHEMA: Final = ConfigSchema(REPLICAS)


def replicas_of(config: Mapping[str, str]) -> int | None:
    """How many replicas the configuration of a load asks for. None if it does not say; 0 stands for
    all.

    Raises:
        InvalidArgument: the value is bad.
    """
    text = config.get(REPLICAS.name)
    return None if text is None else SCHEMA.resolve({REPLICAS.name: text})[REPLICAS]


def split(config: Mapping[str, str], *, alone: bool) -> tuple[dict[str, str], tuple[str, ...]]:
    """The configuration without the key, and what to tell the caller about it.

    Args:
        alone: whether the server belongs to no cluster. Then the key has no effect.

    Raises:
        InvalidArgument: the value is bad, or the key has a device's prefix.
    """
    _, rest = split_off(config, SCHEMA)
    notes = (
        (f"{REPLICAS.name} has no effect: this server is not a replica of a cluster",)
        if replicas_of(config) and alone
        else ()
    )
    return rest, notes
