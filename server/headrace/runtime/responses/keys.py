"""The configuration keys of a network whose replies are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headrace.runtime.config.key import Key, config_field
from headrace.runtime.config.prefixes import split_off
from headrace.runtime.config.schema import ConfigSchema, Configuration
from headrace.runtime.errors import InvalidArgument

RESPONSE_CACHE: Final = Key(
    "RESPONSE_CACHE",
    bool,
    False,
    "Whether the server keeps replies and answers a request with the same inputs from them. The "
    "network must not compute with random numbers or keep states.",
    scope="load",
)
RESPONSE_CACHE_BYTES: Final = Key(
    "RESPONSE_CACHE_BYTES",
    int,
    64 << 20,
    "The most bytes that the kept replies of the network take.",
    unit="bytes",
    minimum=0,
    mutable=True,
    scope="load",
)
RESPONSE_CACHE_KEYS: Final[tuple[Key[Any], ...]] = (RESPONSE_CACHE, RESPONSE_CACHE_BYTES)
SCHEMA: Final = ConfigSchema(*RESPONSE_CACHE_KEYS)


def split(config: Mapping[str, str]) -> tuple[Configuration | None, dict[str, str]]:
    """Splits a load's configuration into the part about the response cache, if it asks for one, and
    the rest.

    Raises:
        InvalidArgument: a value is bad, a key has a device's prefix, or RESPONSE_CACHE_BYTES comes
            without RESPONSE_CACHE.
    """
    own, rest = split_off(config, SCHEMA)
    resolved = SCHEMA.resolve(own)
    if resolved[RESPONSE_CACHE]:
        return resolved, rest
    if own and RESPONSE_CACHE.name not in own:
        raise InvalidArgument(
            f"{RESPONSE_CACHE_BYTES.name} is for a network with a response cache: give "
            f"{RESPONSE_CACHE.name}=YES too",
            field=config_field(RESPONSE_CACHE_BYTES.name),
        )
    return None, rest
