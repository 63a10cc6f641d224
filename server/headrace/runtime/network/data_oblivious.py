"""Finds networks whose runs touch the same memory whatever values their inputs have.

The inputs of such a network may lie in memory that another process writes to during the run: then
its results are wrong, and nothing else happens. A kernel that takes an index, a size or a number of
repetitions from a value checks it and reads it again, so another process could change it in between
and reach foreign memory. Kernels that sort or count values rely on them just as much.

The shapes of its outputs follow from the shapes of its inputs.

The rule is about the whole network, not about the layers that read an input, because the backend
leaves out layers that change nothing, and then a later layer reads the input itself.
"""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from headrace.runtime.network.constants import const_tensor

_FLOATS: Final = frozenset((ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE))
_CASTABLE: Final = _FLOATS | frozenset(
    (
        ir.DataType.UINT8,
        ir.DataType.UINT16,
        ir.DataType.UINT32,
        ir.DataType.UINT64,
        ir.DataType.INT8,
        ir.DataType.INT16,
        ir.DataType.INT32,
        ir.DataType.INT64,
    )
)
_OPERATORS: Final = frozenset(
    (
        # of single elements
        "Abs",
        "Add",
        "Ceil",
        "Clip",
        "Cos",
        "Div",
        "Elu",
        "Erf",
        "Exp",
        "Floor",
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "LeakyRelu",
        "Log",
        "Max",
        "Mean",
        "Min",
        "Mul",
        "Neg",
        "PRelu",
        "Pow",
        "Reciprocal",
        "Relu",
        "Selu",
        "Sigmoid",
        "Sin",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Sub",
        "Sum",
        "Tanh",
        "ThresholdedRelu",
        # sums and products
        "BatchNormalization",
        "Conv",
        "ConvTranspose",
        "Gemm",
        "InstanceNormalization",
        "LRN",
        "LayerNormalization",
        "LogSoftmax",
        "MatMul",
        "Softmax",
        "AveragePool",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "MaxPool",
        "ReduceL1",
        "ReduceL2",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceSum",
        # other places for the same elements
        "Concat",
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Pad",
        "Reshape",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    )
)


def is_data_oblivious(model: ir.Model) -> bool:
    """Whether no value decides which memory a run touches.

    All values that a run computes are floating-point, so that none is an index, a size or a
    condition. Integers are constants, or inputs that become floating-point at once.
    """
    return not model.functions and all(map(_is_oblivious, model.graph))


def _is_oblivious(node: ir.Node) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "Constant":
        return True
    variable = [each for each in node.inputs if each is not None and not _is_constant(each)]
    if any(value.dtype not in _FLOATS for value in node.outputs):
        return False
    if node.op_type == "Cast":
        return all(value.dtype in _CASTABLE for value in variable)
    return node.op_type in _OPERATORS and all(value.dtype in _FLOATS for value in variable)


def _is_constant(value: ir.Value) -> bool:
    return not value.is_graph_input() and const_tensor(value) is not None
