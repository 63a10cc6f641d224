"""Checks of a request's values that the network computes along with its layers.

OpenVINO's kernels do not check indices, and cut off numbers that do not fit into integers. Where a
check fails, the kernel gets an index within bounds, and the results are not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Final

import numpy as np

from headrace.plugins.openvino.backend.integers import needs_bound
from headrace.plugins.openvino.backend.operations import constants
from headrace.plugins.openvino.library import openvino, operations

NAME: Final = "headrace.holds"
"""The name of the output that is 1 if all checks hold, and 0 if not."""


def add_guards(model: openvino.Model, bound: int) -> None:
    """Adds the checks, and their output if there are any.

    Args:
        model: with known sizes.
        bound: as in `integers.why_not`.
    """
    fixed = constants(model)
    found: list[openvino.Node] = []
    for operation in model.get_ordered_ops():
        if operation.get_name() not in fixed:
            found += _checks(operation, bound, fixed)
    if found:
        holds = reduce(operations.minimum, map(_all, found))
        holds.output(0).set_names({NAME})
        model.add_results([operations.result(holds)])


def _checks(operation: openvino.Node, bound: int, fixed: set[str]) -> Iterator[openvino.Node]:
    kind = operation.get_type_name()
    if kind == "Convert":
        source = operation.input_value(0)
        if source.get_element_type().is_real() and needs_bound(operation.output(0)):
            size = operations.absolute(operations.convert(source, "f32"))
            yield operations.less_equal(size, np.float32(bound))
        return
    sizes = _sizes(operation)
    if sizes is not None and operation.input_value(1).get_node().get_name() not in fixed:
        yield _bounded(operation, sizes)


def _sizes(operation: openvino.Node) -> int | list[int] | None:
    """The sizes of the axes that the operation's indices go along. ONNX counts negative indices
    from the end."""
    kind, attributes = operation.get_type_name(), operation.get_attributes()
    if kind not in ("Gather", "GatherElements", "GatherND") and not kind.startswith("Scatter"):
        return None
    shape = [*operation.get_input_shape(0)]
    match kind:
        case "Gather" | "ScatterElementsUpdate":
            axis = operation.input_value(2 if kind == "Gather" else 3).get_node()
            return int(shape[int(np.asarray(axis.data).item())])
        case "GatherElements":
            return int(shape[attributes["axis"]])
        case "GatherND":
            first = int(attributes["batch_dims"])
            return shape[first : first + operation.get_input_shape(1)[-1]]
        case _:
            return shape[: operation.get_input_shape(1)[-1]]


def _bounded(operation: openvino.Node, along: int | list[int]) -> openvino.Node:
    """Whether the indices are within the sizes. Replaces them by indices that are."""
    sizes = operations.constant(np.array(along, np.int32))
    given = operations.convert(operation.input_value(1), "i32")
    back = operations.select(operations.less(given, np.int32(0)), sizes, np.int32(0))
    counted = operations.add(given, back)
    last = operations.subtract(sizes, np.int32(1))
    bounded = operations.maximum(operations.minimum(counted, last), np.int32(0))
    operation.input(1).replace_source_output(bounded.output(0))
    return operations.equal(bounded, counted)


def _all(condition: openvino.Node) -> openvino.Node:
    """A list of one integer: 1 if all elements are true, and 0 otherwise. It is a minimum, because
    on processors without AVX OpenVINO has no kernel for the "and" of many elements."""
    flat = operations.reshape(condition, np.array([-1]), special_zero=False)
    numbers = operations.convert(flat, "i32")
    return operations.reduce_min(numbers, np.array([0]), keep_dims=True)
