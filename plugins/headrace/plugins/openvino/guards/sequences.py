"""Conditions on operations over sequences, under the rules of `conditions`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from headrace.plugins.openvino.graph.sequences import fitted
from headrace.plugins.openvino.guards.terms import (
    EMPTY,
    Condition,
    all_hold,
    ancestors,
    is_known,
    is_shape,
    signed,
    sizes_along,
)
from headrace.plugins.openvino.library import openvino, operations

_LENGTHS: Final[Mapping[str, int]] = MappingProxyType(
    {"GRUSequence": 2, "LSTMSequence": 3, "RNNSequence": 2}
)
"""Operations over sequences, and the index of the input that holds each sequence's length."""
_UNFIT: Final = "gets states, weights or biases of another shape"
_SHORTER: Final = "gets a length of a sequence that is not its number of steps"


def _sequence(operation: openvino.Node) -> Iterator[Condition]:
    """If the number of sequences or of steps is not known, the kernel ignores the lengths. States,
    weights and biases have the right number of elements, but may have other shapes."""
    for value in operation.input_values()[1:]:
        if (found := fitted(value)) is not None:
            given, sizes = found
            yield all_hold(operations.equal(operations.shape_of(given, "i64"), sizes)), _UNFIT
    yield from _batch(operation)
    given = operation.input_value(_LENGTHS[operation.get_type_name()])
    if given.get_node().get_type_name() == "Reshape":  # `repairs` checks their number so
        given = given.get_node().input_value(0)
    if any(is_shape(each) for each in ancestors(given)):
        return  # the reader of ONNX has set all lengths to that of the tensor
    lengths, longest = signed(given), sizes_along(operation.input_value(0), [1])
    if not all(is_known(operation.input_value(0), axis) for axis in (0, 1)):
        yield all_hold(operations.equal(lengths, longest)), _SHORTER
        return
    bounded = operations.logical_and(
        operations.greater_equal(lengths, np.int64(0)), operations.less_equal(lengths, longest)
    )
    yield all_hold(bounded), "gets a sequence length that is out of bounds"


def _batch(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel divides by the size of the batch, so it gets no empty one: the first states do not
    fit a batch of two then. The data would lose the sizes that are known of it."""
    data, states = operation.input_value(0), operation.input_value(1)
    if is_known(data, 0) and data.get_partial_shape()[0].get_length():
        return
    size = sizes_along(data, [0])
    yield size, EMPTY
    if is_known(states, 0):
        return  # the kernel compares the batches
    batch = operations.shape_of(states, "i64")
    batch = operations.gather(batch, np.array([0]), np.int64(0))
    none = operations.equal(batch, np.int64(0))
    wanted = operations.select(none, np.int64(2), batch)
    sizes = operations.concat([wanted, sizes_along(states, [1]), sizes_along(states, [2])], 0)
    checked = operations.broadcast(states, sizes)
    checked.set_friendly_name(operation.get_friendly_name())  # for errors
    operation.input(1).replace_source_output(checked.output(0))


def _scanned(operation: openvino.Node) -> Iterator[Condition]:
    """Checks that a sequence has elements. `repairs` has added one to each empty sequence. A
    sequence that no result of the layer follows from is dropped. Without sequences the kernel makes
    one iteration, or ends the process."""
    for each in operation.get_input_descriptions():
        if each.get_type_info().name == "SliceInputDescription":
            source = operation.input_value(each.input_index)
            if source.get_node().get_type_name() == "Pad":
                source = source.get_node().input_value(0)
            yield sizes_along(source, [each.axis]), EMPTY
    if not _follows_sequences(operation):
        yield operations.constant(np.array([0])), "computes nothing from its sequences"


def _follows_sequences(operation: openvino.Node) -> bool:
    """Whether a result that another layer reads follows from the values of a sequence, also by the
    states that iterations pass on."""
    body = operation.get_function()
    parameters, results = body.get_parameters(), body.get_results()
    sliced: set[str] = set()
    states: dict[str, int] = {}  # the state's name, and the index of its next value
    for each in operation.get_input_descriptions():
        kind, name = each.get_type_info().name, parameters[each.body_parameter_index].get_name()
        if kind == "SliceInputDescription":
            sliced.add(name)
        elif kind == "MergedInputDescription":
            states[name] = each.body_value_index
    seen: set[int] = set()
    left = [
        each.body_value_index
        for each in operation.get_output_descriptions()
        if operation.output(each.output_index).get_target_inputs()
    ]
    while left:
        index = left.pop()
        if index not in seen:
            seen.add(index)
            names = {each.get_name() for each in ancestors(results[index].output(0))}
            if not names.isdisjoint(sliced):
                return True
            left += [states[name] for name in names & states.keys()]
    return False


SEQUENCES: Final[Mapping[str, Callable[[openvino.Node], Iterator[Condition]]]] = MappingProxyType(
    {**dict.fromkeys(_LENGTHS, _sequence), "TensorIterator": _scanned}
)
