"""Repairs loops and branches of OpenVINO's graph, under the rules of `repairs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from headrace.plugins.openvino.graph.empty_tensors import bodies, never_empty
from headrace.plugins.openvino.graph.passing import compute_apart, same
from headrace.plugins.openvino.library import change_readers, openvino, operations
from headrace.runtime.errors import InvalidModel

_VIEWS: Final = frozenset({"Convert", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operations that may pass on the memory of their first input."""
_ARITHMETIC: Final = frozenset(
    {"Add", "Divide", "Maximum", "Minimum", "Multiply", "Power", "Subtract"}
)
_READING: Final = frozenset(
    {
        *("Convolution", "ConvolutionBackpropData", "GroupConvolution", "MatMul", "ShapeOf"),
        *("GroupConvolutionBackpropData", "Equal", "NotEqual", "Less", "LessEqual", "Greater"),
        *("GreaterEqual", "GRUCell", "GRUSequence", "LSTMCell", "LSTMSequence", "RNNCell"),
        *("RNNSequence", "Loop", "TensorIterator"),
    }
)
"""Operations that never write into the memory of an input. Loops copy theirs first."""


def protect_captured(model: openvino.Model) -> None:
    """Changes the model in place, so that no iteration of a loop overwrites what later ones read.

    OpenVINO copies the tensors that a loop's body takes from outside once, before the first
    iteration. Then operations such as Softmax compute in the memory of the copy. So the body copies
    such a tensor again, unless all its readers are known to leave it as it is, as those of most
    weights are.
    """
    for operation in model.get_ops():
        for body in bodies(operation):
            protect_captured(body)
        if operation.get_type_name() in ("Loop", "TensorIterator"):
            (body,) = bodies(operation)
            for each in operation.get_input_descriptions():
                value = body.get_parameters()[each.body_parameter_index].output(0)
                if each.get_type_info().name == "InvariantInputDescription" and not _stays(value):
                    change_readers(value, same)


def _stays(value: openvino.Output) -> bool:
    """Whether none of the value's readers may write into its memory."""
    return all(_leaves(reader) for reader in value.get_target_inputs())


def _leaves(port: openvino.Input) -> bool:
    """Whether the port's operation, and those that get the same memory from it, only read it."""
    operation = port.get_node()
    kind = operation.get_type_name()
    if kind in _VIEWS and port.get_index() == 0:
        return _stays(operation.output(0))
    if kind in _ARITHMETIC:  # the compiler removes a sum with zero, for example
        others = (each.get_node().get_type_name() for each in operation.input_values())
        return "Constant" not in others or _stays(operation.output(0))
    if kind == "Concat":  # of a single tensor, it is removed
        return bool(operation.get_input_size() > 1)
    if kind == "Gather":  # of a table of vectors. If it takes all in order, it is removed
        shape, taken = port.get_partial_shape(), operation.get_output_partial_shape(0)
        if shape.is_dynamic or len(shape) != 2 or min(shape.to_shape()) < 2:
            return False
        return not shape.compatible(taken) or _stays(operation.output(0))
    return kind in _READING


def _branches(operation: openvino.Node) -> None:
    """The kernel reads the first element of the condition, and ends the process if there is none.
    No case shows it. So the condition is reshaped to a single element. The reshape fails if there
    are several elements or none."""
    _make_single(operation.input(0))


def _loop(operation: openvino.Node) -> None:
    """After no iterations the kernel returns what an earlier request had, unless the body reads the
    state. So joined outputs are made empty, and the others get the initial state. A trip count
    below zero means no iterations, but the kernel then loops without end. No case shows either. (A
    trip count that the network leaves out is a constant here.)"""
    _iterations(operation)
    for index in range(2):
        _make_single(operation.input(index))
    count = operation.input_value(0)
    if count.get_node().get_type_name() != "Constant":
        bounded = operations.maximum(count, operations.constant(0, count.get_element_type()))
        operation.input(0).replace_source_output(bounded.output(0))
    turns = _turns(operation)
    if turns is None:
        return
    for index in _joined(operation):
        change_readers(operation.output(index), partial(_times, turns=turns))
    for index, state in _carried(operation).items():
        first = operation.input_value(state)
        change_readers(operation.output(index), partial(_or_first, first=first, turns=turns))


def after_turns(operation: openvino.Node, last: openvino.Output, first: openvino.Output) -> Any:
    """The state `last` of a loop, or `first` if the loop has no iterations."""
    turns = _turns(operation) if operation.get_type_name() == "Loop" else None
    return last if turns is None else _or_first(last, first, turns).output(0)


def _turns(operation: openvino.Node) -> openvino.Node | None:
    """1 if the Loop has iterations, or 0 if not: int64[1]. None if each request has some."""
    count, going = operation.input_value(0), operation.input_value(1)
    given = [each.get_node() for each in (count, going)]
    if all(each.get_type_name() == "Constant" and each.data.all() for each in given):
        return None
    none = operations.constant(0, count.get_element_type())
    some = operations.logical_and(operations.not_equal(count, none), going)
    return operations.reshape(operations.convert(some, "i64"), np.array([1]), special_zero=False)


def _scan(operation: openvino.Node) -> None:
    """The kernel ends the process if a sequence has no elements, or if a state changes its known
    size. No case shows it. An empty sequence gets one element here, and `guards` makes the request
    fail. A state that is passed on from a sequence would be in the memory of the next element, so
    it is computed.

    Raises:
        InvalidModel: one of these two cases happens in each run.
    """
    _iterations(operation)
    (body,) = bodies(operation)
    states = (each for each in operation.get_input_descriptions() if _is_state(each))
    for each in states:
        taken = body.get_parameters()[each.body_parameter_index].get_output_partial_shape(0)
        given = body.get_results()[each.body_value_index].get_output_partial_shape(0)
        if not taken.compatible(given):
            raise InvalidModel("Scan returns a state of another size than it takes", field="model")
        compute_apart(body.get_results()[each.body_value_index])
    for each in operation.get_input_descriptions():
        if each.get_type_info().name == "SliceInputDescription":
            port = operation.input(each.input_index)
            shape = port.get_partial_shape()
            if shape[each.axis] == 0:
                raise InvalidModel("Scan runs over an empty sequence", field="model")
            if shape[each.axis].is_dynamic:
                port.replace_source_output(never_empty(port.get_source_output(), [each.axis]))


def _iterations(operation: openvino.Node) -> None:
    """The kernels join the results of the iterations without a check of their sizes. They write
    beyond their memory if an iteration gives more elements than the first one. So the size of each
    result has to be known.

    Raises:
        InvalidModel: the size of a result is not known.
    """
    (body,) = bodies(operation)
    for index in _joined(operation).values():
        if body.get_results()[index].get_output_partial_shape(0).is_dynamic:
            raise InvalidModel(
                f"{operation.get_type_name()} may return another size in each iteration",
                field="model",
            )


def _joined(operation: openvino.Node) -> dict[int, int]:
    """Maps each output that joins the results of all iterations to the body's result."""
    return {
        each.output_index: each.body_value_index
        for each in operation.get_output_descriptions()
        if each.get_type_info().name == "ConcatOutputDescription"
    }


def _carried(operation: openvino.Node) -> dict[int, int]:
    """Maps each output that is a state after the last iteration to the input that it begins as."""
    states = {
        each.body_value_index: each.input_index
        for each in operation.get_input_descriptions()
        if _is_state(each)
    }
    return {
        each.output_index: states[each.body_value_index]
        for each in operation.get_output_descriptions()
        if each.get_type_info().name == "BodyOutputDescription"
        if each.body_value_index in states
    }


def _make_single(port: openvino.Input) -> None:
    """Makes a run fail if the port would get several elements, or none."""
    if port.get_partial_shape() not in (openvino.PartialShape([]), openvino.PartialShape([1])):
        one = operations.reshape(port.get_source_output(), np.array([1]), special_zero=False)
        port.replace_source_output(one.output(0))


def _times(parts: openvino.Output, turns: openvino.Node) -> openvino.Node:
    """The parts if `turns` is 1, or none of them if it is 0."""
    there = operations.gather(operations.shape_of(parts), np.array([0]), np.int64(0))
    rows = operations.squeeze(operations.multiply(there, turns), np.int64(0))
    indices = operations.range(np.int64(0), rows, np.int64(1), "i64")
    return operations.gather(parts, indices, np.int64(0))


def _or_first(last: openvino.Output, first: openvino.Output, turns: openvino.Node) -> openvino.Node:
    """The state `last` if `turns` is 1, or `first` if it is 0. They may have different shapes. No
    arithmetic reads integers of `last`, because nothing has written it if there are no turns."""
    there = operations.convert(operations.squeeze(turns, np.int64(0)), "boolean")
    alike = last.get_partial_shape() == first.get_partial_shape()
    if alike and last.get_partial_shape().is_static:
        if last.get_element_type().is_real():
            return operations.select(there, last, first)
        both = [operations.unsqueeze(each, np.int64(0)) for each in (first, last)]
        kept = operations.gather(operations.concat(both, 0), turns, np.int64(0))
        sizes = np.array(last.get_shape(), np.int64)
        return operations.reshape(kept, sizes, special_zero=False)
    flat = np.array([-1])
    parts = [operations.reshape(each, flat, special_zero=False) for each in (last, first)]
    counts = [operations.shape_of(each) for each in parts]
    start = operations.multiply(counts[0], operations.subtract(np.int64(1), turns))
    shapes = [operations.shape_of(each) for each in (last, first)]
    stop = operations.add(start, operations.select(there, *counts))
    kept = operations.slice(operations.concat(parts, 0), start, stop, np.array([1]))
    return operations.reshape(kept, operations.select(there, *shapes), special_zero=False)


def _is_state(description: Any) -> bool:
    return str(description.get_type_info().name) == "MergedInputDescription"


LOOPS: Final[Mapping[str, Callable[[openvino.Node], None]]] = MappingProxyType(
    {"If": _branches, "Loop": _loop, "TensorIterator": _scan}
)
