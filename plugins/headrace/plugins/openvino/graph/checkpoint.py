"""Checkpoints, which let a cancel end a loop.

OpenVINO checks before each operation of a network whether the request was cancelled. It does not
check inside a Loop, because a Loop is one operation however long it runs. So each Loop's condition
passes through an operator of our own. The operator is written in Python, and fails once the run of
its request is to end. The network gets an additional input, which tells the operator the number of
its request. An iteration costs some 20 µs more.
"""

from __future__ import annotations

from typing import Any, Final

import onnx_ir as ir

from headrace.plugins.openvino.library import ConversionExtension, openvino
from headrace.runtime.errors import HeadraceError
from headrace.runtime.intake.naming import bodies, value_names, walk
from headrace.runtime.system.graph_memory import watched

DOMAIN: Final = "headrace.openvino"
OPERATOR: Final = "Checkpoint"


class Checkpoints:
    """The checkpoints of one network, and what ends the runs of its requests.

    It needs no lock: a request's own lock guards its place in `errors`.

    Attributes:
        port: name of the input that takes a request's number, int32[1].
        errors: by number of request; None while its run may go on.
    """

    def __init__(self, port: str) -> None:
        self.port = port
        self.errors: list[HeadraceError | None] = []

    def extension(self) -> ConversionExtension:
        """Tells a reader of ONNX what a node of type `OPERATOR` is."""

        def convert(node: Any) -> list[openvino.Output]:
            return [Checkpoint(self, [node.get_input(0), node.get_input(1)]).output(0)]

        return ConversionExtension(OPERATOR, DOMAIN, convert)

    def check(self, request: int) -> None:
        """Raises the error that the request's run is to end with, if it is to end."""
        error = self.errors[request]
        if error is not None:
            raise error


class Checkpoint(openvino.Op):  # type: ignore[misc]  # OpenVINO has no types
    """Returns its first input. Fails if the request whose number is the second input was
    cancelled."""

    def __init__(self, checkpoints: Checkpoints, inputs: list[openvino.Output]) -> None:
        super().__init__(self, inputs)
        self._checkpoints = checkpoints

    def validate_and_infer_types(self) -> None:
        self.set_output_type(0, self.get_input_element_type(0), self.get_input_partial_shape(0))

    def clone_with_new_inputs(self, inputs: list[openvino.Output]) -> Checkpoint:
        return Checkpoint(self._checkpoints, inputs)

    def has_evaluate(self) -> bool:
        return True

    def evaluate(self, outputs: Any, inputs: Any) -> bool:
        """OpenVINO calls it on the thread that computes. An error that it raises ends the run."""
        self._checkpoints.check(int(inputs[1].data[0]))
        outputs[0].shape = inputs[0].shape
        inputs[0].copy_to(outputs[0])
        return True


def add_checkpoints(model: ir.Model) -> tuple[ir.Model, Checkpoints | None]:
    """A copy of `model` whose loops have checkpoints, and the checkpoints. If `model` has no loops,
    returns `model` itself and None."""
    if not any(_is_loop(node) for node in walk(model.graph)):
        return model, None
    model = watched(model.clone())
    names = value_names(model)
    request = ir.Value(
        name=names.fresh("headrace.request"),
        type=ir.TensorType(ir.DataType.INT32),
        shape=ir.Shape([1]),
    )
    for node in list(walk(model.graph)):
        if _is_loop(node):
            for _, body in bodies(node):
                condition = body.outputs[0]
                check = ir.Node(DOMAIN, OPERATOR, [condition, request], num_outputs=1)
                checked = check.outputs[0]
                checked.name = names.fresh(f"{condition.name}/checked")
                checked.type, checked.shape = condition.type, condition.shape
                body.append(check)
                body.outputs[0] = checked
    model.graph.inputs.append(request)
    model.opset_imports[DOMAIN] = 1
    return model, Checkpoints(request.name or "")


def _is_loop(node: ir.Node) -> bool:
    return node.op_type == "Loop" and node.domain in ("", "ai.onnx")
