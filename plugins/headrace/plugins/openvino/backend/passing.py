"""Keeps the compiler from memory that is not a value's own.

The CPU plugin of OpenVINO 2026.4 passes on the memory of an input that is an output, for example of
a Max of one value, or behind a cast that does nothing. Memory that was set for such an output stays
as it is. So the output is computed by an operation that stays.

The compiler makes one operation of a rotary embedding, `x * cos + Concat(-x2, x1) * sin`, which
computes in the memory of an input. All forms of the embedding that the compiler knows join computed
tensors along the last axis. Each form needs the operations before and after the Concat to be of
certain types, so an operation that stays between them keeps it from being found. Few networks join
along the last axis otherwise.
"""

from __future__ import annotations

from typing import Final

from headrace.plugins.openvino.library import openvino, operations
from headrace.runtime.errors import InvalidModel

_KIND: Final = "layerType"
_LEAST_AXES: Final = 3


def part_rotations(model: openvino.Model) -> None:
    """Changes the model in place, so that the compiler finds no rotary embedding."""
    for operation in model.get_ops():
        if operation.get_type_name() == "Concat" and _joins_rows(operation):
            for port in operation.inputs():
                value = port.get_source_output()
                if value.get_node().get_type_name() != "Constant":
                    port.replace_source_output(same(value).output(0))


def _joins_rows(concat: openvino.Node) -> bool:
    """Whether it joins two or more computed tensors of at least three axes along the last one."""
    made = [each for each in concat.input_values() if each.get_node().get_type_name() != "Constant"]
    rank, axis = len(concat.get_output_shape(0)), concat.get_attributes()["axis"]
    return len(made) > 1 and rank >= _LEAST_AXES and axis in (-1, rank - 1)


def keep_apart(model: openvino.Model, compiled: openvino.CompiledModel) -> bool:
    """Changes the model in place, so that no output is an input once it is compiled.

    Returns:
        Whether the model has changed, and has to be compiled again.

    Raises:
        InvalidModel: the compiled network would write into memory that is not its own.
    """
    runtime = compiled.get_runtime_model()
    if any(each.get_rt_info()[_KIND].astype(str) == "RoPE" for each in runtime.get_ops()):
        raise InvalidModel("it computes its rotary embedding in the memory of an input")
    passed = {each.get_friendly_name() for each in runtime.get_results() if _reads_input(each)}
    results = [each for each in model.get_results() if each.get_friendly_name() in passed]
    for result in results:
        _compute_apart(result)
    return bool(results)


def _reads_input(operation: openvino.Node) -> bool:
    return bool(operation.input_value(0).get_node().get_type_name() == "Parameter")


def _compute_apart(result: openvino.Node) -> None:
    """Has an operation that stays compute the result, so that it has memory of its own."""
    value, names = result.input_value(0), result.output(0).get_names()
    made = same(value)
    made.set_friendly_name(value.get_node().get_friendly_name())  # for errors and profiles
    result.input(0).replace_source_output(made.output(0))
    result.output(0).set_names(names)


def same(value: openvino.Output) -> openvino.Node:
    """The value, computed by an operation that the compiler keeps."""
    is_truth = value.get_element_type() == openvino.Type.boolean
    return (operations.logical_or if is_truth else operations.maximum)(value, value)
