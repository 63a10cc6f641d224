"""The key with which a load says how many replicas of a cluster get its network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.runtime.config.key import config_field
from headrace.runtime.config.schema import ConfigSchema, Key
from headrace.runtime.errors import InvalidArgument

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
    for name in config:
        prefix, dot, key = name.rpartition(".")
        if dot and key == REPLICAS.name:
            raise InvalidArgument(
                f"{key} belongs to the whole network, not to {prefix}: give it without a prefix",
                field=config_field(name),
            )
    notes = (
        (f"{REPLICAS.name} has no effect: this server is not a replica of a cluster",)
        if replicas_of(config) and alone
        else ()
    )
    return {name: text for name, text in config.items() if name != REPLICAS.name}, notes
