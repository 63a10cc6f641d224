"""Keeps the compiler from memory that is not a value's own.

The CPU plugin of OpenVINO 2026.4 passes on the memory of an input that is an output, for example of
a Max of one value, or behind a cast that does nothing. Memory that was set for such an output stays
as it is. Where sizes are unknown, the plugin writes the next request's input into the memory of an
earlier one's, which is freed by then. So the output is computed by an operation that stays.

The compiler makes one operation of a rotary embedding, `x * cos + Concat(-x2, x1) * sin`. It takes
for granted that the result has the shape of `x`, that each row of `cos` and `sin` is as long as one
of `x`, and that `x1` and `x2` are its halves. Otherwise the operation answers with wrong values and
shapes, or with those of foreign memory, and writes beyond the result. It also computes in the
memory of an input. All forms of the embedding that the compiler knows join computed tensors along
the last axis, also those of other models: GPT-J, GPT-OSS, ChatGLM, Qwen, Flux. Each form needs the
operations before and after the Concat to be of certain types, so an operation that stays between
them keeps it from being found. Few networks join along the last axis otherwise.

The compiler gives the memory of an If's result of unknown size to other values too, and does not
notice when these change its place: the first requests then read freed memory, or memory that nobody
has written. So an If is served only if all sizes in it and around it are known.
"""

from __future__ import annotations

from typing import Final

from headrace.plugins.openvino.graph.empty_tensors import bodies
from headrace.plugins.openvino.library import openvino, operations
from headrace.runtime.errors import InvalidModel

_KIND: Final = "layerType"
_LEAST_AXES: Final = 3
FREED: Final = "OpenVINO gives the memory of an If to other values unless all its sizes are known"


def part_rotations(model: openvino.Model) -> None:
    """Changes the model and its bodies in place, so that the compiler finds no rotary embedding."""
    for operation in model.get_ops():
        for body in bodies(operation):
            part_rotations(body)
        if operation.get_type_name() == "Concat" and _joins_rows(operation):
            for port in operation.inputs():
                value = port.get_source_output()
                if value.get_node().get_type_name() != "Constant":
                    port.replace_source_output(same(value).output(0))


def _joins_rows(concat: openvino.Node) -> bool:
    """Whether it joins two or more computed tensors of at least three axes along the last one."""
    made = [each for each in concat.input_values() if each.get_node().get_type_name() != "Constant"]
    if len(made) < 2 or concat.get_output_element_type(0) == openvino.Type.string:
        return False
    rank, axis = concat.get_output_partial_shape(0).rank, concat.get_attributes()["axis"]
    if rank.is_dynamic:
        return True
    return rank.get_length() >= _LEAST_AXES and axis in (-1, rank.get_length() - 1)


def refuse_free_branches(model: openvino.Model) -> None:
    """
    Raises:
        InvalidModel: the model has an If whose sizes are not all known.
    """
    if _has_free_if(model):
        raise InvalidModel(FREED, field="model")


def keep_apart(model: openvino.Model, compiled: openvino.CompiledModel) -> bool:
    """Changes the model in place, so that no output is an input once it is compiled.

    Returns:
        Whether the model has changed, and has to be compiled again.

    Raises:
        InvalidModel: the compiled network would read memory that is not its own.
    """
    runtime = compiled.get_runtime_model()
    if any(each.get_rt_info()[_KIND].astype(str) == "RoPE" for each in runtime.get_ops()):
        raise InvalidModel("it does not check the sizes of its rotary embedding")
    passed = {each.get_friendly_name() for each in runtime.get_results() if _reads_input(each)}
    results = [each for each in model.get_results() if each.get_friendly_name() in passed]
    for result in results:
        compute_apart(result)
    return bool(results)


def _has_free_if(model: openvino.Model) -> bool:
    """Whether the model or one of its bodies has an If that takes, computes or gives a value of
    unknown size."""
    for operation in model.get_ops():
        inner = bodies(operation)
        if any(map(_has_free_if, inner)):
            return True
        if operation.get_type_name() == "If":
            made = (each for body in inner for each in body.get_ops())
            values = (value for each in (operation, *made) for value in each.outputs())
            if any(
                each.get_partial_shape().is_dynamic for each in (*operation.input_values(), *values)
            ):
                return True
    return False


def _reads_input(operation: openvino.Node) -> bool:
    return bool(operation.input_value(0).get_node().get_type_name() == "Parameter")


def compute_apart(result: openvino.Node) -> None:
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
