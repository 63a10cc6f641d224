"""Inputs whose memory the compiler gives to something else.

The CPU plugin of OpenVINO 2026.4 passes on the memory of an input that is an output, for example of
a Max of one value, or behind a cast that does nothing. Memory that was set for such an output stays
as it is. Where sizes are unknown, the plugin writes the next request's input into the memory of an
earlier one's, which is freed by then. So the output is computed by an operation that stays.

A rotary embedding is computed in place. After a request without elements, the plugin computes it in
the memory of an earlier request's input. So it reads a copy, too. No case shows either.
"""

from __future__ import annotations

from typing import Final

from headrace.plugins.openvino.library import openvino, operations

_KIND: Final = "layerType"
_IN_PLACE: Final = ("RoPE",)
"""Operations of a compiled model that write into their first input, also if that is an input of the
network."""


def keep_apart(model: openvino.Model, compiled: openvino.CompiledModel) -> bool:
    """Changes the model in place, so that no output is an input once it is compiled, and that
    nothing is written into the memory of one.

    Returns:
        Whether the model has changed, and has to be compiled again.
    """
    runtime = compiled.get_runtime_model()
    passed = {each.get_friendly_name() for each in runtime.get_results() if _reads_input(each)}
    written = {
        each.input_value(0).get_node().get_friendly_name()
        for each in runtime.get_ops()
        if each.get_rt_info()[_KIND].astype(str) in _IN_PLACE and _reads_input(each)
    }
    results = [each for each in model.get_results() if each.get_friendly_name() in passed]
    inputs = [each for each in model.get_parameters() if each.get_friendly_name() in written]
    for result in results:
        compute_apart(result)
    for parameter in inputs:
        readers = parameter.output(0).get_target_inputs()
        copy = same(parameter.output(0)).output(0)
        for reader in readers:
            reader.replace_source_output(copy)
    return bool(results or inputs)


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
