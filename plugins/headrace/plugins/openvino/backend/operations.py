"""Which operations of OpenVINO's graph are run, and which of their inputs a run may compute.

No value of a request may decide which memory a kernel touches, because kernels do not check it. So
all sizes are known before a run, and so is everything else that says where a kernel reads or
writes. Only indices may be computed: `guards` checks them. Operations that are not listed are not
run: among them are those that reach by coordinates of a request (GridSample, ROIAlign), by lengths
of it (ReverseSequence), or whose results have sizes that follow from values (NonZero, Range).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from types import MappingProxyType
from typing import Final

from headrace.plugins.openvino.library import openvino

EMPTY: Final = "it makes or reads a tensor without elements"
_MOST_ELEMENTS: Final = 2**31 - 1
"""OpenVINO does not notice that it gets no memory for a larger tensor, and writes."""
_MOST_AXES: Final = 32
"""OpenVINO ends the process if a tensor has more."""

_ALL: Final = frozenset(
    [
        "Abs",
        "Acos",
        "Acosh",
        "Add",
        "Asin",
        "Asinh",
        "Atan",
        "Atanh",
        "BatchNormInference",
        "BitwiseAnd",
        "BitwiseNot",
        "BitwiseOr",
        "BitwiseXor",
        "Ceiling",
        "Clamp",
        "Concat",
        "Convert",
        "ConvertLike",
        "Convolution",
        "ConvolutionBackpropData",
        "Cos",
        "Cosh",
        "Divide",
        "Einsum",
        "Elu",
        "Equal",
        "Erf",
        "Exp",
        "FakeQuantize",
        "Floor",
        "FloorMod",
        "GRUCell",
        "Gelu",
        "Greater",
        "GreaterEqual",
        "GroupConvolution",
        "GroupConvolutionBackpropData",
        "GroupNormalization",
        "HSigmoid",
        "HSwish",
        "HardSigmoid",
        "Identity",
        "IsFinite",
        "IsInf",
        "IsNaN",
        "LSTMCell",
        "Less",
        "LessEqual",
        "Log",
        "LogSoftmax",
        "LogicalAnd",
        "LogicalNot",
        "LogicalOr",
        "LogicalXor",
        "MatMul",
        "Maximum",
        "Minimum",
        "Mish",
        "Mod",
        "Multiply",
        "Negative",
        "NotEqual",
        "PRelu",
        "Parameter",
        "Power",
        "RNNCell",
        "Relu",
        "Result",
        "Round",
        "Select",
        "Selu",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sinh",
        "SoftPlus",
        "SoftSign",
        "Softmax",
        "Sqrt",
        "SquaredDifference",
        "Subtract",
        "Swish",
        "Tan",
        "Tanh",
    ]
)
"""Operations all inputs of which may be computed in a run."""
_COMPUTED: Final[Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {
        **dict.fromkeys(
            [
                "AdaptiveAvgPool",
                "AvgPool",
                "Broadcast",
                "CumSum",
                "DepthToSpace",
                "IDFT",
                "DFT",
                "Interpolate",
                "MVN",
                "MaxPool",
                "NormalizeL2",
                "Pad",
                "RDFT",
                "ReduceL1",
                "ReduceL2",
                "ReduceLogicalAnd",
                "ReduceLogicalOr",
                "ReduceMax",
                "ReduceMean",
                "ReduceMin",
                "ReduceProd",
                "ReduceSum",
                "Reshape",
                "STFT",
                "ShapeOf",
                "Slice",
                "SpaceToDepth",
                "Split",
                "Squeeze",
                "StridedSlice",
                "Tile",
                "TopK",
                "Transpose",
                "Unsqueeze",
                "VariadicSplit",
            ],
            (0,),
        ),
        **dict.fromkeys(("Gather", "GatherElements", "GatherND"), (0, 1)),
        **dict.fromkeys(("ScatterElementsUpdate", "ScatterNDUpdate"), (0, 1, 2)),
        "GRUSequence": (0, 1, 3, 4, 5),
        "LSTMSequence": (0, 1, 2, 4, 5, 6),
        "OneHot": (0, 2, 3),
        "RNNSequence": (0, 1, 3, 4, 5),
    }
)
"""Inputs of other operations that may be computed in a run. The others must be constants: axes,
sizes, pads, lengths."""


def constants(model: openvino.Model) -> set[str]:
    """The names of the operations that give the same in every run."""
    found: set[str] = set()
    for operation in model.get_ordered_ops():
        kind, sources = operation.get_type_name(), operation.input_values()
        known = all(source.get_node().get_name() in found for source in sources)
        if kind == "Constant" or (known and sources and kind != "Result"):
            found.add(operation.get_name())
    return found


def why_not(model: openvino.Model) -> Iterator[tuple[openvino.Node, str]]:
    """The operations that are not run, each with the reason."""
    known = constants(model)
    for operation in model.get_ordered_ops():
        kind = operation.get_type_name()
        reason = _of_shapes(operation)
        if reason is None and operation.get_name() not in known and kind not in _ALL:
            if kind not in _COMPUTED:
                reason = f"OPENVINO does not run {kind}"
            elif not all(
                port.get_source_output().get_node().get_name() in known or is_data(port)
                for port in operation.inputs()
            ):
                reason = f"OPENVINO runs {kind} only with constant sizes, axes and lengths"
        if reason is not None:
            yield operation, reason


def is_data(port: openvino.Input) -> bool:
    """Whether what the input holds may be computed in a run. If not, it says where to read or
    write."""
    kind = port.get_node().get_type_name()
    return port.get_index() in _COMPUTED.get(kind, (port.get_index(),))


def _of_shapes(operation: openvino.Node) -> str | None:
    for output in operation.outputs():
        shape = output.get_partial_shape()
        if shape.is_dynamic:
            return "its sizes follow from values of a request"
        if len(shape) > _MOST_AXES:
            return f"it makes a tensor of more than {_MOST_AXES} axes"
        elements = prod(shape.to_shape())
        if elements > _MOST_ELEMENTS:
            return f"it makes a tensor of more than {_MOST_ELEMENTS:,} elements"
        if not elements and not _is_list_of_axes(output):
            return EMPTY
    return None


def _is_list_of_axes(output: openvino.Output) -> bool:
    """Whether the output is a constant that only says axes or sizes, of which there may be none.
    A Broadcast to no axes ends the process."""
    readers = output.get_target_inputs()
    constant = output.get_node().get_type_name() == "Constant"
    broadcast = any(reader.get_node().get_type_name() == "Broadcast" for reader in readers)
    return constant and not broadcast and not any(map(is_data, readers))
