"""Computes what follows from the sizes of the inputs, once they are known."""

from __future__ import annotations

from headrace.plugins.openvino.library import openvino, operations


def settle(model: openvino.Model) -> None:
    """Replaces the sizes that operations read by constants. OpenVINO's inference of shapes computes
    the sizes that follow from them, so that more of them are known each time."""
    model.validate_nodes_and_infer_types()
    while sum(map(_settled, model.get_ordered_ops())):
        model.validate_nodes_and_infer_types()


def _settled(operation: openvino.Node) -> bool:
    if operation.get_type_name() != "ShapeOf" or operation.get_input_partial_shape(0).is_dynamic:
        return False
    output = operation.output(0)
    readers, names = output.get_target_inputs(), output.get_names()
    if not readers:
        return False
    made = operations.constant(list(operation.get_input_shape(0)), output.get_element_type())
    output.set_names(set())
    made.output(0).set_names(names)
    for reader in readers:
        reader.replace_source_output(made.output(0))
    return True
