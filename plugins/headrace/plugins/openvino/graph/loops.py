"""Loops and branches of OpenVINO's graph, put right as `repairs` has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from headrace.plugins.openvino.graph.empty_tensors import bodies
from headrace.plugins.openvino.library import change_readers, openvino, operations
from headrace.runtime.errors import InvalidModel


def _branches(operation: openvino.Node) -> None:
    """The kernel looks at the first element of the condition, and ends the process where there is
    none. No case shows it. Several elements, or none, do not fit the shape of a scalar."""
    _make_single(operation.input(0))


def _loop(operation: openvino.Node) -> None:
    """After no iterations the kernel returns what a request before had: such an output is cut. A
    trip count below zero, which means no iterations, is one without end to the kernel. No case
    shows either. (A trip count that the network leaves out is a constant here.)"""
    _iterations(operation)
    for index in range(2):
        _make_single(operation.input(index))
    count, going = operation.input_value(0), operation.input_value(1)
    if count.get_node().get_type_name() != "Constant":
        bounded = operations.maximum(count, operations.constant(0, count.get_element_type()))
        count = bounded.output(0)
        operation.input(0).replace_source_output(count)
    elif going.get_node().get_type_name() == "Constant":
        return  # each request has the same number of iterations
    none = operations.constant(0, count.get_element_type())
    some = operations.logical_and(operations.not_equal(count, none), going)
    turns = operations.reshape(operations.convert(some, "i64"), np.array([1]), special_zero=False)
    for index in _joined(operation):
        change_readers(operation.output(index), partial(_times, turns=turns))


def _scan(operation: openvino.Node) -> None:
    """The kernel ends the process where a sequence has no elements, and where a state changes its
    known size. No case shows it. An empty sequence gets an element here, and `guards` has the
    request fail.

    Raises:
        InvalidModel: one of both happens in each run.
    """
    _iterations(operation)
    (body,) = bodies(operation)
    states = (each for each in operation.get_input_descriptions() if _is_state(each))
    for each in states:
        taken = body.get_parameters()[each.body_parameter_index].get_output_partial_shape(0)
        given = body.get_results()[each.body_value_index].get_output_partial_shape(0)
        if not taken.compatible(given):
            raise InvalidModel("Scan gives a state another size than it takes", field="model")
    for each in operation.get_input_descriptions():
        if each.get_type_info().name == "SliceInputDescription":
            port = operation.input(each.input_index)
            shape = port.get_partial_shape()
            if shape[each.axis] == 0:
                raise InvalidModel("Scan goes over a sequence without elements", field="model")
            if shape[each.axis].is_dynamic:
                port.replace_source_output(_never_empty(port.get_source_output(), each.axis))


def _iterations(operation: openvino.Node) -> None:
    """The kernels join what the iterations give without a look at its size: they write beyond their
    memory where an iteration gives more than the first one. So its size has to be known.

    Raises:
        InvalidModel: it is not.
    """
    (body,) = bodies(operation)
    for index in _joined(operation).values():
        if body.get_results()[index].get_output_partial_shape(0).is_dynamic:
            raise InvalidModel(
                f"{operation.get_type_name()} may give another size in each iteration",
                field="model",
            )


def _joined(operation: openvino.Node) -> dict[int, int]:
    """The outputs that join the results of all iterations, each with its result of the body."""
    return {
        each.output_index: each.body_value_index
        for each in operation.get_output_descriptions()
        if each.get_type_info().name == "ConcatOutputDescription"
    }


def _make_single(port: openvino.Input) -> None:
    """Has a run fail where the port would get several elements, or none."""
    if port.get_partial_shape() not in (openvino.PartialShape([]), openvino.PartialShape([1])):
        one = operations.reshape(port.get_source_output(), np.array([1]), special_zero=False)
        port.replace_source_output(one.output(0))


def _times(parts: openvino.Output, turns: openvino.Node) -> openvino.Node:
    """The parts, or none of them where `turns` is 0."""
    there = operations.gather(operations.shape_of(parts), np.array([0]), np.int64(0))
    rows = operations.squeeze(operations.multiply(there, turns), np.int64(0))
    indices = operations.range(np.int64(0), rows, np.int64(1), "i64")
    return operations.gather(parts, indices, np.int64(0))


def _is_state(description: Any) -> bool:
    return str(description.get_type_info().name) == "MergedInputDescription"


def _never_empty(value: openvino.Output, axis: int) -> openvino.Output:
    """The value, with one element along the axis where it has none."""
    rank = len(value.get_partial_shape())
    along = np.eye(rank, dtype=np.int64)[axis]
    sizes = operations.shape_of(value)
    missing = operations.maximum(operations.subtract(np.int64(1), sizes), np.int64(0))
    nothing = operations.constant(np.zeros(rank, np.int64))
    zero = operations.constant(0, value.get_element_type())
    added = operations.multiply(missing, along)
    return operations.pad(value, nothing, added, "constant", zero).output(0)


LOOPS: Final[Mapping[str, Callable[[openvino.Node], None]]] = MappingProxyType(
    {"If": _branches, "Loop": _loop, "TensorIterator": _scan}
)
