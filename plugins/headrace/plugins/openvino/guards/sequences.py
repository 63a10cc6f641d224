"""Conditions on operations over sequences, under the rules of `conditions`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from headrace.plugins.openvino.guards.terms import (
    EMPTY,
    Condition,
    all_hold,
    ancestors,
    is_shape,
    signed,
    sizes_along,
)
from headrace.plugins.openvino.library import openvino, operations

_LENGTHS: Final[Mapping[str, int]] = MappingProxyType(
    {"GRUSequence": 2, "LSTMSequence": 3, "RNNSequence": 2}
)
"""Operations over sequences, and the index of the input that holds each sequence's length."""


def _sequence(operation: openvino.Node) -> Iterator[Condition]:
    given = operation.input_value(_LENGTHS[operation.get_type_name()])
    if given.get_node().get_type_name() == "Reshape":  # `repairs` checks their number so
        given = given.get_node().input_value(0)
    if any(is_shape(each) for each in ancestors(given)):
        return  # the reader of ONNX has set all lengths to that of the tensor
    lengths, longest = signed(given), sizes_along(operation.input_value(0), [1])
    bounded = operations.logical_and(
        operations.greater_equal(lengths, np.int64(0)), operations.less_equal(lengths, longest)
    )
    yield all_hold(bounded), "gets a sequence length that is out of bounds"


def _scanned(operation: openvino.Node) -> Iterator[Condition]:
    """Checks that a sequence has elements. `repairs` has added one to each empty sequence. A
    sequence that no result of an iteration follows from is dropped. Without sequences the kernel
    makes one iteration, or ends the process."""
    slices = [
        each
        for each in operation.get_input_descriptions()
        if each.get_type_info().name == "SliceInputDescription"
    ]
    for each in slices:
        source = operation.input_value(each.input_index)
        if source.get_node().get_type_name() == "Pad":
            source = source.get_node().input_value(0)
        yield sizes_along(source, [each.axis]), EMPTY
    body = operation.get_function()
    parts = {body.get_parameters()[each.body_parameter_index].get_name() for each in slices}
    read = (each.get_name() for end in body.get_results() for each in ancestors(end.output(0)))
    if parts.isdisjoint(read):
        yield operations.constant(np.array([0])), "computes nothing from its sequences"


SEQUENCES: Final[Mapping[str, Callable[[openvino.Node], Iterator[Condition]]]] = MappingProxyType(
    {**dict.fromkeys(_LENGTHS, _sequence), "TensorIterator": _scanned}
)
