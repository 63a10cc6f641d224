"""Rewritings of ONNX Runtime that change what some networks compute.

The fuzzer found them with ONNX Runtime 1.31, by networks of layers that it computes as one, and
`make fuzz-rewritings`, by neighbours of such networks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np
import onnx_ir as ir

from headrace.plugins.cpu.backend.dequantized import dequantized, same_steps
from headrace.plugins.cpu.backend.inserter import constant
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
    inner = (node for function in model.functions.values() for node in function.all_nodes())
    nodes = [*walk(model.graph), *inner]
    wrong = {
        name
        for node in nodes
        for names, holds in _WRONG.get(node.op_type, ())
        if holds(node)
        for name in names
    }
    if any(node.op_type == "DequantizeLinear" for node in nodes):
        wrong |= _of_quantized(nodes, dequantized(nodes))
    return {BELIEVES_SYMBOLS} | wrong | ({_FOLDING} if _has_texts(model) else set())


def are_safe(model: ir.Model) -> bool:
    """Whether the backend may rewrite the model at all. It misreads a size of 0 in a shape that it
    writes into the network: for a Reshape, 0 stands for the size that an axis has."""
    return not any(0 in (value.shape or ()) for value in model.graph.inputs)


def _has_texts(model: ir.Model) -> bool:
    """Whether a layer may make texts of constants."""
    weights = (initializer.dtype for initializer in model.graph.initializers.values())
    made = (value.dtype for node in walk(model.graph) for value in node.outputs)
    inner = (node for function in model.functions.values() for node in function.all_nodes())
    return ir.DataType.STRING in chain(weights, made) or any(map(_may_make_texts, inner))


def _may_make_texts(node: ir.Node) -> bool:
    """The same of a node in a function, where types are not known."""
    return any(
        attribute.is_ref()
        or (attribute.name == "to" and attribute.value == ir.DataType.STRING)  # a cast's
        or attribute.type == ir.AttributeType.STRINGS
        or (attribute.type == ir.AttributeType.TENSOR and tensor_of(attribute).dtype.is_string())
        for attribute in node.attributes.values()
    )


def _clips(node: ir.Node) -> bool:
    """A Relu or a Clip before a quantisation whose scale may be negative. The backend drops the
    layer if the quantised type has no numbers beyond its limits."""
    scales = [user.inputs[1] for user in node.successors() if user.op_type == "QuantizeLinear"]
    known = [constant(scale) if scale is not None else None for scale in scales]
    return not all(scale is not None and (scale.numpy() > 0).all() for scale in known)


def _is_no_norm(node: ir.Node) -> bool:
    """The root of a mean in anything but a normalisation of the one form that the backend computes
    right. It does not look at the order of operands, the power, what becomes of axes, the type of
    an epsilon, or whether a scale fits."""
    if node.op_type == "Sqrt":
        added = _maker(node, 0)
        means = () if added is None else [at for at in (0, 1) if _makes(added, at, "ReduceMean")]
        if added is None or added.op_type != "Add" or not means:
            return False
        return not _is_norm(node, added, means[0])
    return node.attributes.get_int("keepdims", 1) == 0 and any(
        user.op_type in ("Add", "Sub") for user in node.successors()
    )


def _is_norm(root: ir.Node, added: ir.Node, at: int) -> bool:
    """Whether the root belongs to x / root(mean(x * x) + epsilon) * scale + bias, where x may be
    the distance from a mean."""
    mean, epsilon = _maker(added, at), _number(added, 1 - at)
    if mean is None or epsilon is None or mean.attributes.get_int("keepdims", 1) == 0:
        return False
    if epsilon.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
        return False
    squared = _maker(mean, 0)
    if squared is None or squared.op_type not in ("Mul", "Pow"):
        return False
    base, power = squared.inputs[:2]
    exponent = _number(squared, 1)
    if (power is not base) if squared.op_type == "Mul" else not _is(exponent, 2):
        return False
    return base is not None and all(
        user.op_type == "Div"
        and user.inputs[1] is root.outputs[0]
        and _is_centred(user.inputs[0], base)
        and _scales_fit(user)
        for user in root.successors()
    )


def _is_centred(value: ir.Value | None, base: ir.Value) -> bool:
    """Whether the value is `base`, and is x - mean(x) if it is a difference at all. Or the network
    computes the difference twice, and uses each once."""
    if value is None:
        return False
    made, squared = value.producer(), base.producer()
    if made is None or squared is None or made.op_type != "Sub":
        return value is base and (squared is None or squared.op_type != "Sub")
    subtracted = _maker(made, 1)
    if value is not base and any(
        operand.is_graph_output() or len(operand.uses()) != 1 for operand in (value, base)
    ):
        return False
    return (
        [*made.inputs] == [*squared.inputs]
        and subtracted is not None
        and (subtracted.op_type == "ReduceMean" and subtracted.inputs[0] is made.inputs[0])
    )


def _scales_fit(node: ir.Node) -> bool:
    """Whether the constants that a normalised value is multiplied with, and those that are added
    then, have the sizes of its last axes."""
    value = node.outputs[0]
    sizes = None if value.shape is None else [*value.shape]
    normal = [value, *(user.outputs[0] for user in node.successors() if user.op_type == "Cast")]
    scaled = [(user, each) for each in normal for user in _readers(each, "Mul")]
    scaled += [
        (user, product.outputs[0])
        for product, _ in scaled
        for user in _readers(product.outputs[0], "Add")
    ]
    for user, before in scaled:
        for other in user.inputs:
            tensor = constant(other) if other is not None and other is not before else None
            if tensor is None:
                continue
            own = [int(size) for size in tensor.shape.numpy()]
            if sizes is None or own != sizes[len(sizes) - len(own) :]:
                return False
    return True


def _readers(value: ir.Value, op_type: str) -> list[ir.Node]:
    return [user for user, _ in value.uses() if user.op_type == op_type]


def _maker(node: ir.Node, at: int) -> ir.Node | None:
    value = node.inputs[at] if at < len(node.inputs) else None
    return value.producer() if value is not None else None


def _makes(node: ir.Node, at: int, op_type: str) -> bool:
    made = _maker(node, at)
    return made is not None and made.op_type == op_type


def _number(node: ir.Node, at: int) -> ir.TensorProtocol | None:
    """The constant of one number, and of one axis at most, that is input `at` of the node."""
    value = node.inputs[at] if at < len(node.inputs) else None
    tensor = constant(value) if value is not None else None
    return tensor if tensor is not None and tensor.size == 1 and len(tensor.shape) < 2 else None


def _is(tensor: ir.TensorProtocol | None, number: float) -> bool:
    return tensor is not None and bool((tensor.numpy() == number).all())


def _does_not_fit(node: ir.Node) -> bool:
    """A product of integers whose weights, zero points or scales may not fit each other. The
    backend computes it with its scales as one, and reads past the end of a shorter one."""
    given = [value for value in (*node.inputs[1:2], *node.inputs[3:4]) if value is not None]
    weights, *zeros = [constant(value) for value in given]
    if weights is None or None in zeros or len(weights.shape) != 2:
        return True
    fitting = [(), (1,), (weights.numpy().shape[1],)]
    scaled = [after for cast in node.successors() for after in cast.successors()]
    factors = [
        before for layer in scaled for before in layer.predecessors() if layer.op_type == "Mul"
    ]
    return not all(_has_one_of(factor, fitting) for factor in factors if factor.op_type == "Mul")


def _has_one_of(node: ir.Node, shapes: Collection[tuple[int, ...]]) -> bool:
    """Whether the node takes a constant of one of the shapes."""
    known = [constant(value) for value in node.inputs if value is not None]
    return any(tensor is not None and tuple(tensor.shape) in shapes for tensor in known)


def _drops_out(node: ir.Node) -> bool:
    """A dropout in training. The backend drops it, and may take its ratio for the data."""
    return len(node.inputs) > 1


def _pads_for_a_maximum(node: ir.Node) -> bool:
    """Zeros around a MaxPool. The backend lets the pool pad, with the least number."""
    return any(user.op_type == "MaxPool" for user in node.successors())


def _takes_some_axes(node: ir.Node) -> bool:
    """A layer that has a list of axes, or becomes a Pad with one. Behind a Transpose, the backend
    mixes them up."""
    return "axes" in node.attributes or (node.op_type == "Pad" and len(node.inputs) > 3)


def _divides_one(node: ir.Node) -> bool:
    """A reciprocal that a Mul takes. The backend divides the other operand, which loses axes if the
    1 has more, and is another number of integers."""
    if not any(user.op_type == "Mul" for user in node.successors()):
        return False
    one, other = (value for value in node.inputs[:2])
    tensor = constant(one) if one is not None else None
    if tensor is None or tensor.size != 1 or other is None:
        return False
    if tensor.dtype.is_integer():
        return True
    rank = len(tensor.shape)
    return bool(rank) and (other.shape is None or other.shape.rank() < rank)


def _is_shown(node: ir.Node) -> bool:
    """A Transpose that is a result and that a Gemm takes. The backend drops it."""
    return node.outputs[0].is_graph_output() and any(
        user.op_type == "Gemm" for user in node.successors()
    )


def _adds_a_result(node: ir.Node) -> bool:
    """An Add of a value that is a result of the network, too. The backend adds within the Conv that
    makes the other operand, and drops the Conv that makes this one."""
    return any(value is not None and value.is_graph_output() for value in node.inputs)


def _of_quantized(nodes: Sequence[ir.Node], made: Mapping[ir.Value, ir.Node]) -> set[str]:
    """The rewritings that would change numbers of quantised layers.

    Of two quantisations in a row the backend makes one, with steps that neither has. It also
    quantises weights and biases that are floats, which may be too large in steps of the product.
    """
    found = set()
    for node in nodes:
        first = node.inputs[0] if node.inputs else None
        before = made.get(first) if first is not None else None
        if before is None:
            continue
        if node.op_type == "QuantizeLinear" and not same_steps(before, node):
            found.add("DoubleQDQPairsRemover")
        elif node.op_type in ("Conv", "ConvTranspose", "Gemm") and _has_floats(node, before, made):
            found.add("WeightBiasQuantization")
    return found


def _has_floats(node: ir.Node, before: ir.Node, made: Mapping[ir.Value, ir.Node]) -> bool:
    """Whether the layer behind `before` has weights of floats, or such a bias that does not fit
    into 32 bits in steps of the product."""
    _, second, bias = (*node.inputs, None, None)[:3]
    weights = made.get(second) if second is not None else None
    if weights is None:
        return True
    added = constant(bias) if bias is not None else None
    steps = [constant(layer.inputs[1]) if layer.inputs[1] else None for layer in (before, weights)]
    if added is None or steps[0] is None or steps[1] is None:
        return bias is not None and bias not in made
    one, other = (step.numpy() for step in steps if step is not None)
    with np.errstate(all="ignore"):
        counted = np.abs(added.numpy().ravel() / (one.ravel() * other.ravel()).astype(np.float64))
    return not bool((counted < 2**31 - 1).all())


_NORMS: Final = ("LayerNormFusionL1", "LayerNormFusionL2", "SimplifiedLayerNormFusion")
_MOVES: Final = ("TransposeOptimizer", "TransposeOptimizer_CPUExecutionProvider")
_OF_INTEGERS: Final = ("DynamicQuantizeMatMulFusion", "MatMulIntegerToFloatFusion")

_Rule: TypeAlias = tuple[tuple[str, ...], Callable[[ir.Node], bool]]

_WRONG: Final[Mapping[str, tuple[_Rule, ...]]] = MappingProxyType(
    {
        "Add": ((("ConvAddActivationFusion",), _adds_a_result),),
        "CenterCropPad": ((_MOVES, _takes_some_axes),),
        "Clip": ((("ClipQuantRewrite",), _clips),),
        "Div": ((("DivMulFusion",), _divides_one),),
        "Dropout": ((("EliminateDropout",), _drops_out),),
        "MatMulInteger": ((_OF_INTEGERS, _does_not_fit),),
        "Pad": ((("Pad_Fusion",), _pads_for_a_maximum), (_MOVES, _takes_some_axes)),
        "ReduceMean": ((_NORMS, _is_no_norm),),
        "Relu": ((("ReluQuantRewrite",), _clips),),
        "Resize": ((_MOVES, _takes_some_axes),),
        "Sqrt": ((_NORMS, _is_no_norm),),
        "Sum": ((("ConvAddActivationFusion",), _adds_a_result),),
        "Transpose": ((("GemmTransposeFusion",), _is_shown),),
    }
)
"""By operator: rewritings, and which of its layers they change."""
