"""Outputs that are inputs, for example of a Max of one value, or behind a cast that does nothing.

The CPU plugin of OpenVINO 2026.4 passes on the input's memory. Memory that was set for such an
output stays as it is. Where sizes are unknown, the plugin writes the next request's input into the
memory of an earlier one's, which is freed by then. So the output is computed by an operation that
stays. No case shows it.
"""

from __future__ import annotations

from headrace.plugins.openvino.library import openvino, operations


def keep_apart(model: openvino.Model, compiled: openvino.CompiledModel) -> bool:
    """Changes the model in place, so that no output is an input once it is compiled.

    Returns:
        Whether the model has changed, and has to be compiled again.
    """
    passed = {
        result.get_friendly_name()
        for result in compiled.get_runtime_model().get_results()
        if _is_input(result)
    }
    found = [each for each in model.get_results() if each.get_friendly_name() in passed]
    for result in found:
        compute_apart(result)
    return bool(found)


def _is_input(result: openvino.Node) -> bool:
    return bool(result.input_value(0).get_node().get_type_name() == "Parameter")


def compute_apart(result: openvino.Node) -> None:
    """Has an operation that stays compute the result, so that it has memory of its own."""
    value, names = result.input_value(0), result.output(0).get_names()
    is_truth = value.get_element_type() == openvino.Type.boolean
    same = (operations.logical_or if is_truth else operations.maximum)(value, value)
    same.set_friendly_name(value.get_node().get_friendly_name())  # for errors and profiles
    result.input(0).replace_source_output(same.output(0))
    result.output(0).set_names(names)
