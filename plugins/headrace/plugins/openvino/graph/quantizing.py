"""Repairs a quantisation in OpenVINO's graph, under the rules of `repairs`, and finds quantised
weights that a kernel misreads."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from headrace.plugins.openvino.library import change_readers, openvino, operations

_ARITHMETIC: Final = ("Add", "BatchNormInference", "Divide", "Multiply", "Negative", "Subtract")
_RESHAPING: Final = ("Convert", "Reshape", "Squeeze", "Unsqueeze")
_CONVOLUTIONS: Final = MappingProxyType(
    {
        "Convolution": slice(1, None),
        "ConvolutionBackpropData": slice(1),
        "GroupConvolution": slice(1, None),
        "GroupConvolutionBackpropData": slice(1),
    }
)
"""The axes of weights without those of channels that are not summed over."""
_EIGHT_BITS: Final = (openvino.Type.i8, openvino.Type.u8)
_LAST: Final = slice(-1, None)
_LAST_BUT_ONE: Final = slice(-2, -1)
_MOVING: Final = (*_RESHAPING, "Transpose")
_SCALAR: Final = openvino.PartialShape([])
_SINGLE: Final = openvino.PartialShape([1])


def quantisation(operation: openvino.Node) -> None:
    """The compiler computes arithmetic with a constant as a part of the quantisation behind it. If
    it does not know how many channels there are, or the sign changes too, the kernel takes the
    first element of the constant for all channels. So such a quantisation gets a list, and its
    result the shape of the data. No case shows it."""
    data, *ends = operation.input_values()
    shape = data.get_partial_shape()
    if shape.rank.is_static and len(shape) < 2:
        return
    if any(end.get_partial_shape() not in (_SCALAR, _SINGLE) for end in ends):
        return  # `limits` looks at the axis
    if not _varies_unknown(data):
        return
    flat = operations.reshape(data, np.array([-1]), special_zero=False)
    operation.input(0).replace_source_output(flat.output(0))
    operation.validate_and_infer_types()
    sizes = operations.shape_of(data)
    change_readers(
        operation.output(0), lambda found: operations.reshape(found, sizes, special_zero=False)
    )


def _varies_unknown(value: openvino.Output) -> bool:
    """Whether arithmetic before the value has a constant of several elements, and starts from an
    unknown number of channels or may change the sign."""
    varies = negates = False
    while (made := value.get_node()).get_type_name() in _ARITHMETIC:
        constants = [each for each in made.input_values() if _is_constant(each)]
        others = [each for each in made.input_values() if not _is_constant(each)]
        varies |= any(_has_several(each) for each in constants)
        negates |= _may_negate(made, constants)
        if len(others) != 1:
            break
        (value,) = others
    shape = value.get_partial_shape()
    unknown = shape.rank.is_dynamic or len(shape) < 2 or shape[1].is_dynamic
    return varies and (unknown or negates)


def _is_constant(value: openvino.Output) -> bool:
    while (node := value.get_node()).get_type_name() in _RESHAPING:
        value = node.input_value(0)
    return bool(node.get_type_name() == "Constant")


def _has_several(value: openvino.Output) -> bool:
    shape = value.get_partial_shape()
    return shape.is_dynamic or bool(np.prod([*shape.to_shape()]) > 1)


def _may_negate(operation: openvino.Node, constants: Sequence[openvino.Output]) -> bool:
    kind = operation.get_type_name()
    if kind in ("Add", "Subtract"):
        return kind == "Subtract" and _is_constant(operation.input_value(0))
    factors = [each.get_node() for each in constants[:1]]  # a normalisation has others behind
    return kind == "Negative" or not all(
        factor.get_type_name() == "Constant" and (factor.data >= 0).all() for factor in factors
    )


def misread_weights(model: openvino.Model) -> set[str]:
    """Names of multiplications by a scale, the results of which a kernel would misread.

    If weights are 8-bit constants, some kernels read these and the scale, and take it for one of
    the columns of a matrix (or of each block of its rows), or of the rows of a table. Others expect
    numbers that are scaled already, but the multiplication may be lost. No case shows it.
    """
    return {name for reader in model.get_ops() for name in _misread_by(reader)}


def _misread_by(reader: openvino.Node) -> list[str]:
    kind = reader.get_type_name()
    if kind == "MatMul":
        first, second = reader.input_values()
        is_matrix = second.get_partial_shape().rank == openvino.Dimension(2)
        summed = _summed(second, bool(reader.get_attributes()["transpose_b"]))
        return _misread(first) + _misread(second, summed if is_matrix else None)
    if kind == "Gather":
        return _misread(reader.input_value(0), _LAST)
    if kind in _CONVOLUTIONS:
        data, weights = reader.input_values()[:2]
        return _misread(weights, _CONVOLUTIONS[kind] if _is_quantised(data) else None)
    return []


def _summed(value: openvino.Output, transposed: bool) -> slice:
    """The axis of scaled weights that gets to the one of a matrix that a product sums over."""
    while (node := value.get_node()).get_type_name() in _MOVING:
        transposed ^= node.get_type_name() == "Transpose"
        value = node.input_value(0)
    return _LAST if transposed else _LAST_BUT_ONE


def _is_quantised(value: openvino.Output) -> bool:
    """Whether the value is scaled 8-bit integers. The compiler convolves these with weights of 8
    bits, and scales the result."""
    node = value.get_node()
    while node.get_type_name() in ("Multiply", "Subtract"):
        node = node.input_value(0).get_node()
    kind = node.get_type_name()
    return kind == "Convert" and node.get_input_element_type(0) in _EIGHT_BITS


def _misread(value: openvino.Output, alike: slice | None = None) -> list[str]:
    """Names of the multiplications before the value, if they are misread.

    Args:
        alike: a scale may have several elements, but one along these axes. None if the kernel
            reads no scales.
    """
    while (node := value.get_node()).get_type_name() in _MOVING:
        value = node.input_value(0)
    names, fits = [], alike is not None
    while (kind := node.get_type_name()) in ("Multiply", "Subtract"):
        if any(each.get_partial_shape().is_dynamic for each in node.input_values()):
            return []  # not of constants
        names += [node.get_name()] if kind == "Multiply" else []
        shape = [*node.get_output_shape(0)]
        given = [_padded(each, len(shape)) for each in node.input_values()]
        fits &= shape in given and any(each in _scales(shape, alike) for each in given)
        node = node.input_value(given.index(shape) if shape in given else 0).get_node()
    return [] if fits else names


def _padded(value: openvino.Output, rank: int) -> list[int]:
    shape = [*value.get_shape()]
    return [1] * (rank - len(shape)) + shape


def _scales(shape: Sequence[int], alike: slice | None) -> list[list[int]]:
    """The shapes of scales that a kernel may get with weights of this shape."""
    several = [*shape]
    if alike is not None:
        several[alike] = [1] * len(several[alike])
    return [[1] * len(shape), several]
