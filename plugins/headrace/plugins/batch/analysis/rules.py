"""Says which axis of an operator's result has the batch: one rule for each kind of operator.

The rules are conservative. An operator without a rule is a doubt. A rule that finds mixed rows
gives the reason. https://onnx.ai/onnx/operators/ describes the operators.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.plugins.batch.analysis.axes import Doubt, Layer, Mixes, Rule, apart
from headrace.plugins.batch.analysis.layout_rules import LAYOUT_RULES


def _elementwise(layer: Layer) -> list[int]:
    rank = max(len(layer.shape(at)) for at in range(len(layer.inputs)))
    shifted = [
        None if axis is None else axis + rank - len(layer.shape(at))
        for at, axis in enumerate(layer.axes)
    ]
    found = {axis for axis in shifted if axis is not None}
    if len(found) > 1:
        raise Mixes("its inputs have the batch on different axes, so that rows meet")
    (where,) = found
    sizes = set()
    for at, axis in enumerate(shifted):
        shape = (1,) * (rank - len(layer.shape(at))) + layer.shape(at)
        if axis is not None:
            sizes.add(shape[where])
        elif shape[where] != 1:
            raise Mixes("it combines the batch with a constant of several rows")
    if len(sizes) > 1:
        raise Mixes("its inputs have different numbers of rows")
    return [where]


def _normalized(what: str, default: int = -1) -> Rule:
    def rule(layer: Layer) -> list[int]:
        layer.only_first()
        if what == "softmax" and layer.opset < 13:
            rank = len(layer.shape())
            over = range(layer.integer("axis", 1) % rank, rank)  # older opsets flatten from axis on
            apart(layer, list(over), "it normalizes")
        else:
            apart(layer, [layer.integer("axis", default)], "it normalizes")
        return [layer.axis] * len(layer.outputs)

    return rule


def _layer_normalization(layer: Layer) -> list[int]:
    layer.only_first()
    rank = len(layer.shape())
    apart(layer, list(range(layer.integer("axis", -1) % rank, rank)), "it normalizes")
    return [layer.axis] * len(layer.outputs)


def _reduce(layer: Layer) -> list[int]:
    layer.only_first()
    rank = len(layer.shape())
    axes = layer.constant(1, "axes")
    if not axes:
        if layer.integer("noop_with_empty_axes", 0):
            return [layer.axis]
        raise Mixes("it reduces over the batch")
    apart(layer, axes, "it reduces")
    if layer.integer("keepdims", 1):
        return [layer.axis]
    return [layer.axis - sum(axis % rank < layer.axis for axis in axes)]


def _arg(layer: Layer) -> list[int]:
    axis = layer.integer("axis", 0)
    apart(layer, [axis], "it looks for the largest or smallest")
    before = axis % len(layer.shape()) < layer.axis
    return [layer.axis - (before and not layer.integer("keepdims", 1))]


def _along(what: str, default: int, at: int | None = None) -> Rule:
    """A rule for an operation along one axis. The constant input `at` or an attribute gives it."""

    def rule(layer: Layer) -> list[int]:
        layer.only_first()
        given = layer.constant(at) if at is not None else None
        apart(layer, given or [layer.integer("axis", default)], what)
        return [layer.axis] * len(layer.outputs)

    return rule


def _matmul(layer: Layer) -> list[int]:
    left, right = layer.axes[0], layer.axes[1]
    a, b = layer.shape(0), layer.shape(1)
    rank = max(len(a), len(b))
    if len(a) < 2 or len(b) < 2:
        raise Doubt("one of its inputs is a vector")
    where_left = None if left is None else left + rank - len(a)
    where_right = None if right is None else right + rank - len(b)
    if where_left is not None and where_left == rank - 1:
        raise Mixes("it sums over the batch")
    if where_right is not None and where_right == rank - 2:
        raise Mixes("it sums over the batch")
    if where_left is None or where_right is None:
        where = where_left if where_left is not None else where_right
        assert where is not None
        other = b if where_left is not None else a
        shape = (1,) * (rank - len(other)) + other
        if where < rank - 2 and shape[where] != 1:
            raise Mixes("it combines the batch with a constant of several rows")
        return [where]
    if where_left != where_right or where_left >= rank - 2:
        raise Mixes("it multiplies rows of the batch with each other")
    return [where_left]


def _gemm(layer: Layer) -> list[int]:
    if layer.axes[1] is not None or layer.integer("transA", 0) or layer.axis != 0:
        raise Mixes("it multiplies rows of the batch with each other, or sums over them")
    if len(layer.axes) > 2 and layer.axes[2] is None:
        bias = layer.shape(2)
        if len(bias) == 2 and bias[0] != 1:
            raise Mixes("it combines the batch with a constant of several rows")
    return [0]


def _spatial(layer: Layer) -> list[int]:
    """A rule for operators that need the batch on the first axis and compute inside each row."""
    if any(axis is not None for axis in layer.axes[1:]):
        raise Doubt("the batch is in another input than the first")
    if layer.axis != 0:
        raise Mixes("it takes the first axis for the batch, and the batch is on another")
    if layer.node.op_type == "BatchNormalization" and layer.integer("training_mode", 0):
        raise Mixes("it normalizes over the batch")
    return [0] * len(layer.outputs)


def _recurrent(layer: Layer) -> list[int]:
    first = layer.integer("layout", 0)
    if layer.axis != (0 if first else 1):
        raise Mixes("it treats the batch as time")
    if any(axis is not None for axis in layer.axes[1:]):
        raise Doubt("the batch is in another input than the first")
    if any(value is not None for value in layer.node.inputs[4:5]):
        raise Doubt("the lengths of its sequences are given")
    results = [0, 0, 0] if first else [2, 1, 1]
    return results[: len(layer.outputs)]


def _dropout(layer: Layer) -> list[int]:
    layer.only_first()
    if len(layer.inputs) > 2:
        raise Doubt("it may be in training")
    return [layer.axis] * len(layer.outputs)


def _quantized(layer: Layer) -> list[int]:
    layer.only_first()
    if len(layer.shape(1)) and layer.integer("axis", 1) % len(layer.shape()) == layer.axis:
        raise Mixes("it has a scale for each row")
    return [layer.axis]


def _mixing(why: str) -> Rule:
    def rule(_: Layer) -> list[int]:
        raise Mixes(why)

    return rule


_ELEMENTWISE = """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor
    Cast CastLike Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual
    HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod
    Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus
    Softsign Sqrt StringConcat StringNormalizer Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor
""".split()  # noqa: SIM905 - as a list it would fill a page
_SPATIAL = """
    AveragePool BatchNormalization Conv ConvInteger ConvTranspose DepthToSpace GlobalAveragePool
    GlobalLpPool GlobalMaxPool GroupNormalization InstanceNormalization LRN LpPool MaxPool
    SpaceToDepth
""".split()  # noqa: SIM905 - as a list it would fill a page
_REDUCTIONS = """
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum ReduceSumSquare
""".split()  # noqa: SIM905 - as a list it would fill a page

RULES: Mapping[str, Rule] = {
    **LAYOUT_RULES,
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_SPATIAL, _spatial),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _normalized("softmax")),
    "LpNormalization": _normalized("norm"),
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _layer_normalization,
    "ArgMax": _arg,
    "ArgMin": _arg,
    "TopK": _along("it looks for the largest", -1),
    "CumSum": _along("it sums", 0, at=1),
    "Split": _along("it splits", 0),
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "Gemm": _gemm,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    "Dropout": _dropout,
    "QuantizeLinear": _quantized,
    "DequantizeLinear": _quantized,
    "DynamicQuantizeLinear": _mixing("it takes its scale from the whole batch"),
    "NonZero": _mixing("it lists what is not zero in the whole batch"),
    "Unique": _mixing("it looks for what is unique in the whole batch"),
    "NonMaxSuppression": _mixing("its result names rows and has no batch dimension"),
}
"""The rules by operator of ONNX's own domain. A rule is called only if an input has a batch."""
