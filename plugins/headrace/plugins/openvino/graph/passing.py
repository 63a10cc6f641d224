"""Outputs that OpenVINO's compiler finds to be inputs, for example behind a cast that does nothing.

Of such an output in a network of unknown sizes, the CPU plugin of OpenVINO 2026.4 takes the memory
of an earlier request's input for its own. It writes the next request's input there, where the array
is freed by then. So the output is computed by an operation that stays. No case shows it.
"""

from __future__ import annotations

from headrace.plugins.openvino.library import openvino, operations


def keep_apart(model: openvino.Model, compiled: openvino.CompiledModel) -> bool:
    """Changes the model in place, so that no output is an input once it is compiled. An output that
    is an input in the model too may stay.

    Returns:
        Whether the model has changed, and has to be compiled again.
    """
    if not any(port.partial_shape.is_dynamic for port in compiled.outputs):
        return False
    passed = {
        result.get_friendly_name()
        for result in compiled.get_runtime_model().get_results()
        if _is_input(result)
    }
    changed = False
    for result in model.get_results():
        if result.get_friendly_name() in passed and not _is_input(result):
            _compute(result)
            changed = True
    return changed


def _is_input(result: openvino.Node) -> bool:
    return bool(result.input_value(0).get_node().get_type_name() == "Parameter")


def _compute(result: openvino.Node) -> None:
    value, names = result.input_value(0), result.output(0).get_names()
    is_truth = value.get_element_type() == openvino.Type.boolean
    same = (operations.logical_or if is_truth else operations.maximum)(value, value)
    same.set_friendly_name(value.get_node().get_friendly_name())  # for errors and profiles
    result.input(0).replace_source_output(same.output(0))
    result.output(0).set_names(names)
