"""Keeps operations apart that OpenVINO's compiler would join to one that computes another result.

The compiler looks for patterns, such as a Softmax made of an exponential, a sum and a division.
Some of them fit operations with other axes or shapes. No case shows any of this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from headrace.plugins.openvino.graph.empty_tensors import ARITHMETIC, bodies
from headrace.plugins.openvino.graph.passing import same
from headrace.plugins.openvino.library import change_readers, openvino, operations

_BROADCASTING: Final = ARITHMETIC | {
    *("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual"),
    *("LogicalAnd", "LogicalOr", "LogicalXor"),
    *("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseLeftShift", "BitwiseRightShift"),
}
"""Operations of two tensors that repeat each one along axes where it has a single element."""
_SCALED: Final = ("Convert", "Multiply", "Reshape", "Squeeze", "Subtract", "Transpose", "Unsqueeze")
"""Operations that may stand between constant weights and a product."""
_APART: Final = frozenset(
    {
        *("AvgPool", "Convolution", "ConvolutionBackpropData", "GroupConvolution", "MaxPool"),
        *("GroupConvolutionBackpropData", "Transpose"),
    }
)
"""Operations whose results no kernel of a product makes."""
_OF_CHANNELS: Final = ("BatchNormInference", "PRelu")
"""Operations that have a number for each index of the second axis."""


def keep_shapes(model: openvino.Model) -> None:
    """Changes the model in place, and its bodies, so that constants keep their axes.

    A kernel that multiplies by constant weights also computes arithmetic with constants behind it.
    If the product has four axes or more, it takes a constant that has several elements along the
    second axis alone for one that has them along the last axis. So such a constant is repeated
    along the last axis, or stays behind an operation that the compiler keeps. So do a batch
    normalisation and a PRelu.

    Patterns such as that of a Gelu or an RMS drop the shape of a constant, and with it the axes or
    the elements that it adds to the other operand. So the other operand gets these axes from an
    operation of its own. A constant that may repeat the other operand, and that the compiler may
    take for a single number, is in no pattern: operations that the compiler keeps are around it.
    """
    products: set[str] = set()
    for operation in model.get_ordered_ops():
        for body in bodies(operation):
            keep_shapes(body)
        follows = _follows_product(operation, products)
        for constant, other in _constants(operation):
            _keep_axes(constant, other)
            if _may_repeat(constant, other) and _is_number(constant):
                _keep_apart(other)
                _keep_result_apart(operation)
            elif follows:
                _keep_columns(constant, other)
        if follows:
            products.add(operation.get_name())
            if operation.get_type_name() in _OF_CHANNELS:
                _keep_apart(operation.input(0))


def _follows_product(operation: openvino.Node, products: set[str]) -> bool:
    """Whether a product by constant weights may also compute the operation.

    Args:
        products: names of earlier operations for which this is the case.
    """
    kind = operation.get_type_name()
    if kind == "MatMul":
        rank = operation.get_output_partial_shape(0).rank
        return _is_weights(operation.input_value(1)) and (rank.is_dynamic or rank.get_length() > 3)
    made = (value.get_node().get_name() for value in operation.input_values())
    return kind not in _APART and not products.isdisjoint(made)


def _is_weights(value: openvino.Output) -> bool:
    """Whether the value is constant, or quantised and constant."""
    stack = [value.get_node()]
    while stack:
        node = stack.pop()
        if node.get_type_name() in _SCALED:
            stack += [each.get_node() for each in node.input_values()]
        elif node.get_type_name() != "Constant":
            return False
    return True


def _constants(operation: openvino.Node) -> Iterator[tuple[openvino.Input, openvino.Input]]:
    """The constant operand of an operation of two tensors, and the other one."""
    if operation.get_type_name() in _BROADCASTING:
        ports = operation.inputs()
        constant = [_is_constant(port) for port in ports]
        if constant == [True, False]:
            yield ports[0], ports[1]
        elif constant == [False, True]:
            yield ports[1], ports[0]


def _is_constant(port: openvino.Input) -> bool:
    return _is_weights(port.get_source_output())


def _values(constant: openvino.Input) -> Any:
    """The elements of a constant, those of bfloat16 as other numbers of 16 bits. None if they are
    scaled."""
    node = constant.get_source_output().get_node()
    return node.data if node.get_type_name() == "Constant" else None


def _keep_axes(constant: openvino.Input, other: openvino.Input) -> None:
    """Has an operation give the other operand as many axes as the constant has."""
    rank = other.get_partial_shape().rank
    more = len(constant.get_shape()) - rank.get_length() if rank.is_static else 0
    if more > 0:
        _replace(other, operations.unsqueeze(other.get_source_output(), np.arange(more)))


def _may_repeat(constant: openvino.Input, other: openvino.Input) -> bool:
    """Whether the constant may have several elements along an axis where the other one has one."""
    sizes, shape = [*constant.get_shape()], other.get_partial_shape()
    if shape.rank.is_dynamic:
        return bool(sizes)
    known = [*shape][len(shape) - len(sizes) :]
    return any(size > 1 and there != size for size, there in zip(sizes, known, strict=True))


def _is_number(constant: openvino.Input) -> bool:
    """Whether all elements are the same, or are not known here."""
    values = _values(constant)
    return values is None or bool(values.size and (values == values.flat[0]).all())


def _keep_columns(constant: openvino.Input, other: openvino.Input) -> None:
    """See `keep_shapes`."""
    sizes, shape = [*constant.get_shape()], other.get_partial_shape()
    several = [axis for axis, size in enumerate(sizes, -len(sizes)) if size != 1]
    if len(several) != 1 or several == [-1]:
        return
    data = _values(constant)
    known = shape.rank.is_static and shape[-1].is_static and shape[-1].get_length() > 1
    if known and data is not None:
        sizes[-1] = shape[-1].get_length()
        tensor = openvino.Tensor(constant.get_element_type(), openvino.Shape(sizes))
        tensor.data[...] = data
        constant.replace_source_output(openvino.op.Constant(tensor).output(0))
    else:
        _keep_apart(other)


def _keep_apart(port: openvino.Input) -> None:
    """Has an operation that the compiler keeps compute what the port gets."""
    _replace(port, same(port.get_source_output()))


def _keep_result_apart(operation: openvino.Node) -> None:
    """Has an operation that the compiler keeps compute the result of the operation once more."""

    def made(result: openvino.Output) -> openvino.Node:
        again = same(result)
        again.set_friendly_name(operation.get_friendly_name())  # for errors and profiles
        return again

    change_readers(operation.output(0), made)


def _replace(port: openvino.Input, made: openvino.Node) -> None:
    made.set_friendly_name(port.get_node().get_friendly_name())  # for errors and profiles
    port.replace_source_output(made.output(0))


def _apart(reduce: Callable[..., Any]) -> Callable[[openvino.Node], openvino.Node | None]:
    """The compiler joins reductions with operations behind them to a Softmax, an MVN or an RMS. It
    takes them for reductions that keep the reduced axes, also if they do not. Then a division of
    whole rows by the sums of columns becomes a Softmax. So the axes are kept, and removed
    afterwards."""

    def repaired(operation: openvino.Node) -> openvino.Node | None:
        data, axes = operation.input_values()
        constant = axes.get_node().get_type_name() == "Constant"
        if operation.get_attributes()["keep_dims"] or not constant or not axes.get_node().data.size:
            return None
        return operations.squeeze(reduce(data, axes, True), axes)

    return repaired


REDUCTIONS: Final[Mapping[str, Callable[[openvino.Node], openvino.Node | None]]] = MappingProxyType(
    {"ReduceMean": _apart(operations.reduce_mean), "ReduceSum": _apart(operations.reduce_sum)}
)
