"""What a network computes of constants alone, computed once, when it is loaded.

OpenVINO's core computes most of it itself. What it leaves, such as a convolution of constants, the
plugin for processors runs once, and then has later operations write into that memory: each request
would find there what the request before has computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from headrace.plugins.openvino.empty_tensors import bodies
from headrace.plugins.openvino.library import openvino

Compute: TypeAlias = Callable[[openvino.Model], list[openvino.Tensor]]

_LEFT: Final = frozenset(
    {
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
    }
)
"""Operations that the core computes. Weights go through them: it may keep those as they are."""
_NEVER: Final = frozenset({"Multinomial", "Parameter", "RandomUniform", "ReadValue", "Result"})


def fold_constants(model: openvino.Model, compute: Compute) -> None:
    """Makes what constants give constants, in bodies too.

    Args:
        compute: the outputs of a network without inputs.
    """
    constant: dict[str, bool] = {}
    """Operations of constants, by name: whether one that the core may leave is among those."""
    wanted: list[openvino.Output] = []
    for operation in model.get_ordered_ops():
        for body in bodies(operation):
            fold_constants(body, compute)
        kind = operation.get_type_name()
        sources = [value.get_node().get_name() for value in operation.input_values()]
        if kind not in _NEVER and all(each in constant for each in sources):
            left = kind not in _LEFT or any(constant[each] for each in sources)
            constant[operation.get_name()] = left
    for operation in model.get_ops():
        if constant.get(operation.get_name()):
            wanted += [output for output in operation.outputs() if _is_read(output, constant)]
    if wanted:
        for output, tensor in zip(wanted, compute(openvino.Model(wanted, [])), strict=True):
            names = output.get_names()
            made = openvino.op.Constant(tensor).output(0)
            output.set_names(set())
            made.set_names(names)
            for reader in output.get_target_inputs():
                reader.replace_source_output(made)


def _is_read(output: openvino.Output, constant: dict[str, bool]) -> bool:
    readers = output.get_target_inputs()
    return any(reader.get_node().get_name() not in constant for reader in readers)
