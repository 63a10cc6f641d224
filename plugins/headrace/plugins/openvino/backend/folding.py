"""Computes the results that depend on constants alone, once, when a network is compiled.

OpenVINO's core computes most of these results itself. It leaves some, for example a convolution of
constants. OpenVINO's plugin for processors runs these operations only once, and then lets later
operations write into the memory of their results. So each request would read there what the request
before it has computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from headrace.plugins.openvino.backend.operations import constants
from headrace.plugins.openvino.library import openvino

Compute: TypeAlias = Callable[[openvino.Model], list[openvino.Tensor]]

_LEFT: Final = frozenset(
    [
        "Add",
        "Broadcast",
        "Concat",
        "Constant",
        "Convert",
        "Divide",
        "Gather",
        "Multiply",
        "Negative",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "StridedSlice",
        "Subtract",
        "Transpose",
        "Unsqueeze",
        "VariadicSplit",
    ]
)
"""Operations that the core computes. Weights pass through them, and the core may keep weights as
they are."""


def fold_constants(model: openvino.Model, compute: Compute) -> None:
    """Replaces the results of operations on constants by constants.

    Args:
        compute: returns the outputs of a network without inputs.
    """
    known, computed = constants(model), set[str]()
    for operation in model.get_ordered_ops():
        sources = {each.get_node().get_name() for each in operation.input_values()}
        is_left = operation.get_type_name() in _LEFT and sources.isdisjoint(computed)
        if operation.get_name() in known and not is_left:
            computed.add(operation.get_name())
    wanted = [
        output
        for operation in model.get_ops()
        if operation.get_name() in computed
        for output in operation.outputs()
        if any(port.get_node().get_name() not in known for port in output.get_target_inputs())
    ]
    if wanted:
        for output, tensor in zip(wanted, compute(openvino.Model(wanted, [])), strict=True):
            names = output.get_names()
            made = openvino.op.Constant(tensor).output(0)
            output.set_names(set())
            made.set_names(names)
            for reader in output.get_target_inputs():
                reader.replace_source_output(made)
