"""The configuration of such a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from headrace.runtime.config.key import Key
from headrace.runtime.config.schema import ConfigSchema, Configuration
from headrace.runtime.config.standard_keys import (
    INFERENCE_PRECISION_HINT,
    ISOLATION,
    PROCESS,
    STANDARD_KEYS,
)


def _are_options(text: str) -> bool:
    return all(part.partition("=")[1] and part.partition("=")[0].strip() for part in _parts(text))


def _parts(text: str) -> list[str]:
    return [part for part in text.split(";") if part.strip()]


PROVIDER_PACKAGE: Final = Key(
    "PROVIDER_PACKAGE",
    str,
    "",
    "The Python package with the provider's library: `library` of the device's table, if it is no "
    "path.",
    scope="server",
)
PROVIDER_LIBRARY: Final = Key(
    "PROVIDER_LIBRARY",
    str,
    "",
    "The provider's library: `library` of the device's table, if it is a path.",
    scope="server",
    paths=True,
)
EXECUTION_PROVIDER: Final = Key(
    "EXECUTION_PROVIDER",
    str,
    "",
    "The provider's name: `ep` of the device's table. Empty: the package's, or the only one that "
    "the library has.",
    scope="server",
)
PROVIDER_OPTIONS: Final = Key(
    "PROVIDER_OPTIONS",
    str,
    "",
    "Options of the provider, as its documents name them.",
    check=_are_options,
    form="empty, or name=value with ';' between them",
    scope="server",
    max_length=16384,
)
TRY_LAYERS: Final = Key(
    "TRY_LAYERS",
    bool,
    True,
    "Whether each kind of layer is computed once on the device and once on processors, and is "
    "refused if the results differ.",
    scope="server",
)

SCHEMA: Final = ConfigSchema(
    *STANDARD_KEYS,
    replace(INFERENCE_PRECISION_HINT, choices=("f32", "f16", "")),
    replace(ISOLATION, default=PROCESS),
    PROVIDER_PACKAGE,
    PROVIDER_LIBRARY,
    EXECUTION_PROVIDER,
    PROVIDER_OPTIONS,
    TRY_LAYERS,
)


def options(config: Configuration) -> Mapping[str, str]:
    """PROVIDER_OPTIONS by name."""
    pairs = (part.partition("=") for part in _parts(config[PROVIDER_OPTIONS]))
    return MappingProxyType({name.strip(): value.strip() for name, _, value in pairs})
