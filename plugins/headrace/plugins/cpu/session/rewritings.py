"""Rewritings of ONNX Runtime that change what some networks compute.

The fuzzer found them with ONNX Runtime 1.31, by networks of layers that it computes as one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Final

import numpy as np
import onnx_ir as ir

from headrace.plugins.cpu.graph.proven_shapes import constant
from headrace.runtime.intake.naming import walk
from headrace.runtime.network.constants import tensor_of

BELIEVES_SYMBOLS: Final = "SkipLayerNormFusion"
"""Takes dimensions of the same symbol for equal. The symbols are the network's word, and the fused
kernel then answers sums that ONNX refuses, divides by the number of elements of one operand, or
reads past its end. Without it, networks of normalised sums took 0.92 to 0.96 of the processor's
time."""

_FOLDING: Final = "ConstantFolding"
"""Makes constants before the first run. If they are texts, a network of a kilobyte makes millions,
and the end of its session frees them one by one, with the interpreter held."""


def left_out(model: ir.Model) -> set[str]:
    """The rewritings that the backend must not make of the model."""
    wrong = {name for node in walk(model.graph) for name, holds in _WRONG.items() if holds(node)}
    return {BELIEVES_SYMBOLS} | wrong | ({_FOLDING} if _has_texts(model) else set())


def are_safe(model: ir.Model) -> bool:
    """Whether the backend may rewrite the model at all. It misreads a size of 0 in a shape that it
    writes into the network: for a Reshape, 0 stands for the size that an axis has."""
    return not any(0 in (value.shape or ()) for value in model.graph.inputs)


def _has_texts(model: ir.Model) -> bool:
    """Whether a layer may make texts of constants."""
    weights = (each.dtype for each in model.graph.initializers.values())
    made = (value.dtype for node in walk(model.graph) for value in node.outputs)
    inner = (node for each in model.functions.values() for node in each.all_nodes())
    return ir.DataType.STRING in chain(weights, made) or any(map(_may_make_texts, inner))


def _may_make_texts(node: ir.Node) -> bool:
    """The same of a node in a function, where types are not known."""
    return any(
        each.is_ref()
        or (each.name == "to" and each.value == ir.DataType.STRING)  # a cast's
        or each.type == ir.AttributeType.STRINGS
        or (each.type == ir.AttributeType.TENSOR and tensor_of(each).dtype.is_string())
        for each in node.attributes.values()
    )


def _clips(node: ir.Node) -> bool:
    """A Relu or a Clip before a quantisation whose scale may be negative. The backend drops the
    layer if the quantised type has no numbers beyond its limits."""
    scales = [user.inputs[1] for user in node.successors() if user.op_type == "QuantizeLinear"]
    known = [constant(scale) if scale is not None else None for scale in scales]
    return node.op_type in ("Clip", "Relu") and not all(
        scale is not None and (scale.numpy() > 0).all() for scale in known
    )


def _is_no_norm(node: ir.Node) -> bool:
    """A layer of a normalisation that has another form than the backend believes. It squares and
    keeps the axis whatever the layers say, and takes 1e-5 for an epsilon that it does not find."""
    users = {user.op_type for user in node.successors()}
    if node.op_type == "ReduceMean":
        return node.attributes.get_int("keepdims", 1) == 0 and bool(users & {"Add", "Sub"})
    if node.op_type not in ("Add", "Pow"):
        return False
    second = node.inputs[1] if len(node.inputs) > 1 else None
    known = constant(second) if second is not None else None
    number = known.numpy().ravel() if known is not None else np.empty(0)
    if node.op_type == "Pow":
        return "ReduceMean" in users and not (number.size == 1 and number[0] == 2)
    takes_mean = any(before.op_type == "ReduceMean" for before in node.predecessors())
    return "Sqrt" in users and takes_mean and number.size != 1


def _does_not_fit(node: ir.Node) -> bool:
    """A product of integers whose weights, zero points or scales may not fit each other. The
    backend computes it with its scales as one, and reads past the end of a shorter one."""
    if node.op_type != "MatMulInteger":
        return False
    given = [value for value in (*node.inputs[1:2], *node.inputs[3:4]) if value is not None]
    weights, *zeros = [constant(value) for value in given]
    if weights is None or None in zeros or len(weights.shape) != 2:
        return True
    fitting = [(), (1,), (weights.numpy().shape[1],)]
    scaled = [after for cast in node.successors() for after in cast.successors()]
    factors = [before for each in scaled for before in each.predecessors() if each.op_type == "Mul"]
    return not all(_has_one_of(each, fitting) for each in factors if each.op_type == "Mul")


def _has_one_of(node: ir.Node, shapes: Collection[tuple[int, ...]]) -> bool:
    """Whether the node takes a constant of one of the shapes."""
    known = [constant(value) for value in node.inputs if value is not None]
    return any(tensor is not None and tuple(tensor.shape) in shapes for tensor in known)


def _drops_out(node: ir.Node) -> bool:
    """A dropout in training. The backend drops it, and may take its ratio for the data."""
    return node.op_type == "Dropout" and len(node.inputs) > 1


def _pads_for_a_maximum(node: ir.Node) -> bool:
    """Zeros around a MaxPool. The backend lets the pool pad, with the least number."""
    return node.op_type == "Pad" and any(user.op_type == "MaxPool" for user in node.successors())


def _pads_some_axes(node: ir.Node) -> bool:
    """A Pad that has a list of axes, or becomes one. The backend mixes them up behind a
    Transpose."""
    if node.op_type == "CenterCropPad":
        return "axes" in node.attributes
    return node.op_type == "Pad" and len(node.inputs) > 3


_WRONG: Final[Mapping[str, Callable[[ir.Node], bool]]] = MappingProxyType(
    {
        "ClipQuantRewrite": _clips,
        "DynamicQuantizeMatMulFusion": _does_not_fit,
        "EliminateDropout": _drops_out,
        "LayerNormFusionL1": _is_no_norm,
        "LayerNormFusionL2": _is_no_norm,
        "MatMulIntegerToFloatFusion": _does_not_fit,
        "Pad_Fusion": _pads_for_a_maximum,
        "ReluQuantRewrite": _clips,
        "SimplifiedLayerNormFusion": _is_no_norm,
        "TransposeOptimizer": _pads_some_axes,
        "TransposeOptimizer_CPUExecutionProvider": _pads_some_axes,
    }
)
