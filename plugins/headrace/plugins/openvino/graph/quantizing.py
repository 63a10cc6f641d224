"""Repairs a quantisation in OpenVINO's graph, under the rules of `repairs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from headrace.plugins.openvino.library import change_readers, openvino, operations

_ARITHMETIC: Final = ("Add", "BatchNormInference", "Divide", "Multiply", "Negative", "Subtract")
_RESHAPING: Final = ("Convert", "Reshape", "Squeeze", "Unsqueeze")
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
