"""What ONNX requires of a node, by its operator."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, cast

import onnx
import onnx_ir as ir

from headrace.runtime.errors import InvalidModel
from headrace.runtime.intake.limits import Limits

_LONG_LISTS: Final = frozenset(["Constant", "StringNormalizer", "TfIdfVectorizer"])
"""The operators of ONNX's own domain whose attributes may hold long lists."""
_VALUES: Final = frozenset(
    [
        "default_int64",
        "end",
        "ignore_index",
        "k",
        "replaced_value_int64",
        "seed",
        "start",
        "value_int",
    ]
)
"""Attributes that may be any integer. The others are counts, axes and switches."""
_RANK: Final = Limits().rank
_LEAST: Final = {"axis": -_RANK, "blocksize": 1, "group": 1, "num_scan_inputs": 1}
_BITS: Final = 2**31
_WITHOUT_LENGTHS: Final = 9
"""Since this version, the first input of a Scan is not the lengths of its sequences."""
_COUNTED_SPLITS: Final = 18
"""Since this version, a Split without lengths says how many outputs it has."""
_GRAPH: Final = onnx.AttributeProto.GRAPH
_SINGLE: Final = onnx.defs.OpSchema.FormalParameterOption.Single


@dataclass(frozen=True, slots=True)
class Demands:
    """What ONNX requires of a node.

    Attributes:
        required: the names of the attributes that the node must have.
        kinds: the type of each attribute that the node may have.
        inputs: what ONNX calls each input that the node must list.
        optional: which of these inputs may be left empty.
        outputs: the most outputs that the node may have.
    """

    required: frozenset[str] = frozenset()
    kinds: Mapping[str, int] = field(default_factory=dict)
    inputs: Sequence[str] = ()
    optional: Collection[str] = ()
    outputs: int = sys.maxsize

    def needed_inputs(self) -> list[int]:
        """The places of the inputs that may not be left empty."""
        return [at for at, name in enumerate(self.inputs) if name not in self.optional]

    def missing_input(self, given: Sequence[str]) -> str | None:
        """What ONNX calls the first input that the node must have and that is not `given`."""
        for at, name in enumerate(self.inputs):
            if at >= len(given) or not (given[at] or name in self.optional):
                return name
        return None


@lru_cache(maxsize=4096)
def demands_of(operator: str, version: int, domain: str) -> Demands:
    try:
        schema = onnx.defs.get_schema(operator, version, domain)
    except onnx.defs.SchemaError:
        return Demands()  # the device decides whether the operator exists
    attributes = schema.attributes.items()
    inputs = [port.name for port in schema.inputs]
    inputs += inputs[-1:] * schema.min_input  # the last one may stand for several
    return Demands(
        frozenset(name for name, attribute in attributes if attribute.required),
        {name: int(cast(Any, attribute.type).value) for name, attribute in attributes},
        inputs[: schema.min_input],
        [port.name for port in schema.inputs if port.option != _SINGLE],
        schema.max_output,
    )


def has_short_lists(node: onnx.NodeProto) -> bool:
    """Whether each list in an attribute of the node has a value for each axis, input or output, as
    it has with most operators of ONNX's own domain."""
    return node.domain in ("", "ai.onnx") and node.op_type not in _LONG_LISTS


def wrong_number(name: str, value: int, inputs: int) -> str | None:
    """What is wrong with an integer of a node of ONNX; None if it may be right. Backends store most
    of them in 32 bits, multiply them or divide by them without a look, and NumPy takes the least
    integer of 32 bits for all axes.

    Args:
        name: the attribute's.
        inputs: how many inputs the node has.
    """
    if name in _VALUES:
        return None
    least = _LEAST.get(name, -_BITS)
    most = {"axis": _RANK, "num_scan_inputs": inputs}.get(name, _BITS - 1)
    return None if least <= value <= most else f"is {value}; it must be {least} to {most}"


def check_numbers(nodes: Iterable[ir.Node]) -> None:
    """Checks integers that nodes have got from calls of functions.

    Raises:
        InvalidModel: one is wrong.
    """
    for node in nodes:
        if node.domain not in ("", "ai.onnx.ml"):
            continue
        for name, attribute in node.attributes.items():
            if attribute.type == ir.AttributeType.INT and not attribute.is_ref():
                wrong = wrong_number(name, attribute.as_int(), len(node.inputs))
                if wrong is not None:
                    raise InvalidModel(
                        f"attribute {name!r} of layer {node.name!r} {wrong}", field="model"
                    )


def check_bodies(node: onnx.NodeProto, version: int, label: str) -> None:
    """Checks that the bodies of a layer of ONNX's own domain take what the layer hands to them, and
    have all results that it hands on. Backends and evaluators find both by their position, and do
    not survive a missing one.

    Args:
        version: the version of the domain.

    Raises:
        InvalidModel: a body has other inputs, or too few outputs.
    """
    taken, least = len(node.input), len(node.output)
    if node.op_type == "Loop":
        states = len(node.input) - 2  # after the number of rounds and the condition
        taken, least = 2 + states, 1 + max(least, states)
    elif node.op_type == "Scan":
        taken -= 1 if version < _WITHOUT_LENGTHS else 0
        given = [attribute for attribute in node.attribute if attribute.name == "num_scan_inputs"]
        if given and not given[0].ref_attr_name:
            least = max(least, taken - given[0].i)
    elif node.op_type == "If":
        taken = 0
    elif node.op_type != "SequenceMap":
        return
    for attribute in node.attribute:
        if attribute.type != _GRAPH or attribute.ref_attr_name:
            continue
        wrong, constant = None, {tensor.name for tensor in attribute.g.initializer}
        takes = sum(value.name not in constant for value in attribute.g.input)
        if takes != taken:
            wrong = f"{takes} inputs; it needs {taken}"
        elif len(attribute.g.output) < least:
            wrong = f"{len(attribute.g.output)} outputs; it needs {least}"
        if wrong is not None:
            raise InvalidModel(
                f"attribute {attribute.name!r} of {label} has {wrong} for this {node.op_type}",
                field="model",
            )


def check_split(node: onnx.NodeProto, version: int, label: str) -> None:
    """Compares the number of outputs with `num_outputs`, because backends follow the one or the
    other, and onnx's shape inference does not survive too many outputs. ONNX Runtime takes a Split
    without lengths and number only if it does not know the shape.

    Args:
        version: the version of the domain.

    Raises:
        InvalidModel: the layer has neither or both, or another number of outputs.
    """
    counts = [attribute for attribute in node.attribute if attribute.name == "num_outputs"]
    lengths = len(node.input) > 1 and bool(node.input[1])
    wrong = None
    if not counts and not lengths and version >= _COUNTED_SPLITS:
        wrong = "has neither the input split nor the attribute num_outputs; add one"
    elif counts and not counts[0].ref_attr_name:
        if len(node.output) != counts[0].i:
            wrong = f"has {len(node.output)} outputs, but num_outputs is {counts[0].i}"
        elif lengths:
            wrong = "has the input split and the attribute num_outputs; drop one"
    if wrong is not None:
        raise InvalidModel(f"{label} {wrong}", field="model")


def kind_name(kind: int) -> str:
    return onnx.AttributeProto.AttributeType.Name(cast("onnx.AttributeProto.AttributeType", kind))
