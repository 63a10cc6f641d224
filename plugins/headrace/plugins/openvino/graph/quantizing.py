"""Repairs a quantisation in OpenVINO's graph, under the rules of `repairs`, and finds quantised
weights that a kernel misreads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.plugins.openvino.graph.passing import same
from headrace.plugins.openvino.library import openvino

_CONVOLUTIONS: Final = (
    "Convolution",
    "ConvolutionBackpropData",
    "GroupConvolution",
    "GroupConvolutionBackpropData",
)
_LAST: Final = slice(-1, None)
_LAST_BUT_ONE: Final = slice(-2, -1)
_MOVING: Final = ("Convert", "Reshape", "Squeeze", "Unsqueeze", "Transpose")


def quantisation(operation: openvino.Node) -> None:
    """The compiler computes arithmetic with a constant as a part of the quantisation behind it. It
    does so past a Clip or a Transpose, too, and takes the constant's first element for all
    channels. No case shows it. So an operation that stays comes before a quantisation."""
    data = operation.input_value(0)
    if data.get_node().get_type_name() != "Parameter":
        operation.input(0).replace_source_output(same(data).output(0))


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
        return _misread(reader.input_value(1))
    return []


def _summed(value: openvino.Output, transposed: bool) -> slice:
    """The axis of scaled weights that gets to the one of a matrix that a product sums over."""
    while (node := value.get_node()).get_type_name() in _MOVING:
        transposed ^= node.get_type_name() == "Transpose"
        value = node.input_value(0)
    return _LAST if transposed else _LAST_BUT_ONE


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
