"""Tables of the manual that are made from declarations of the server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from headrace.runtime.config.schema import ConfigSchema
from headrace.runtime.metrics.families import FAMILIES
from headrace.runtime.metrics.series import Family
from headrace.server.http.metrics import PREFIX
from headrace.server.repository.description import KEYS
from headrace.server.settings.settings import options

_PLACES: Final = {
    "server": ("configuration file",),
    "device": ("device",),
    "network": ("device", "load"),
    "load": ("load",),
}
"""For each scope, where its keys are set."""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def schema_table(schema: ConfigSchema) -> str:
    rows = []
    for key in schema:
        default = f"`{key.format(key.default)}`" if key.format(key.default) else "empty"
        places = [*_PLACES[key.scope], *(["loaded network"] if key.mutable else [])]
        cells = (f"`{key.name}`", default, key.allowed, ", ".join(places), key.description)
        rows.append([cell.replace("|", r"\|") for cell in cells])
    return _table(("key", "default", "allowed", "set on", "meaning"), rows)


def settings_table() -> str:
    rows = [(f"`{each.flag}`", each.shown_default, each.description) for each in options()]
    return _table(("option", "default", "meaning"), rows)


def keys_table() -> str:
    """The keys of ``network.toml``."""
    return _table(("key", "what"), [(f"`{key}`", meaning) for key, meaning in KEYS.items()])


def metrics_table(own: Iterable[Family]) -> str:
    """
    Args:
        own: the metrics that devices count for their networks.
    """
    rows = [
        (f"`{PREFIX}{each.name}`", each.kind, ", ".join(each.labels), each.help)
        for each in (*FAMILIES, *(family.of_network() for family in own))
    ]
    return _table(("metric", "kind", "labels", "what"), rows)
