"""Layers that draw so many samples that a run would hardly end.

A Multinomial takes some 40 ns for each sample, and no cancel stops it. The number is an attribute:
a network of some bytes may ask for any number of samples of each row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import onnx_ir as ir

MOST_SAMPLES: Final = 16_777_216


def most_rows(node: ir.Node) -> int:
    """The most rows of a Multinomial, for as many samples a row as it draws."""
    return MOST_SAMPLES // max(node.attributes.get_int("sample_size", 1), 1)


def _multinomial(node: ir.Node) -> str | None:
    value = node.inputs[0] if node.inputs else None
    rows = value.shape[0] if value is not None and value.shape else 1
    if not isinstance(rows, int):
        rows = 1
    if rows <= most_rows(node):
        return None
    count = rows * node.attributes.get_int("sample_size", 1)
    return f"it draws at least {count:,} samples; at most {MOST_SAMPLES:,} are allowed"


RULES: Final[Mapping[str, Callable[[ir.Node], str | None]]] = MappingProxyType(
    {"Multinomial": _multinomial}
)
