"""What ONNX requires of a node, by its operator."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, cast

import onnx

_LONG_LISTS: Final = frozenset(["Constant", "StringNormalizer", "TfIdfVectorizer"])
"""The operators of ONNX's own domain whose attributes may hold long lists."""


@dataclass(frozen=True, slots=True)
class Demands:
    """What ONNX requires of a node.

    Attributes:
        required: the names of the attributes that the node must have.
        kinds: the type of each attribute that the node may have.
        outputs: the most outputs that the node may have.
    """

    required: frozenset[str] = frozenset()
    kinds: Mapping[str, int] = field(default_factory=dict)
    outputs: int = sys.maxsize


@lru_cache(maxsize=4096)
def demands_of(operator: str, version: int, domain: str) -> Demands:
    try:
        schema = onnx.defs.get_schema(operator, version, domain)
    except onnx.defs.SchemaError:
        return Demands()  # the device decides whether the operator exists
    attributes = schema.attributes.items()
    return Demands(
        frozenset(name for name, each in attributes if each.required),
        {name: int(cast(Any, each.type).value) for name, each in attributes},
        schema.max_output,
    )


def has_short_lists(node: onnx.NodeProto) -> bool:
    """Whether each list in an attribute of the node has a value for each axis, input or output, as
    it has with most operators of ONNX's own domain."""
    return node.domain in ("", "ai.onnx") and node.op_type not in _LONG_LISTS


def kind_name(kind: int) -> str:
    return onnx.AttributeProto.AttributeType.Name(cast("onnx.AttributeProto.AttributeType", kind))
