"""Computes the results that depend on constants alone, once, when a network is loaded.

OpenVINO's core computes most of these results itself. It leaves some, for example a convolution of
constants. OpenVINO's plugin for processors runs these operations only once, and then lets later
operations write into the memory of their results. So each request would read there what the request
before it has computed.

It also keeps quantised weights with their scales, and its kernels take some scales for others. Such
weights are computed too.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from headrace.plugins.openvino.constants.computed_integers import (
    is_wide,
    refuse_cut_off,
    refuse_wide,
)
from headrace.plugins.openvino.graph.empty_tensors import bodies
from headrace.plugins.openvino.graph.quantizing import misread_weights
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
"""Operations that the core computes. Weights pass through them, and the core may keep weights as
they are."""
_NEVER: Final = frozenset({"Multinomial", "Parameter", "RandomUniform", "ReadValue", "Result"})


class _Kind(enum.Enum):
    """How the result of an operation on constants is treated.

    LEFT: the core computes the result, or keeps it as weights that are multiplied by a scale.
    RAW: the result is quantised numbers without their scale. The core keeps these too, and expects
        a scale.
    COMPUTED: the core does not compute the result, or a kernel would misread it.
    """

    LEFT = enum.auto()
    RAW = enum.auto()
    COMPUTED = enum.auto()


def fold_constants(model: openvino.Model, compute: Compute) -> None:
    """Replaces the results of operations on constants by constants, in bodies too.

    Args:
        compute: returns the outputs of a network without inputs.

    Raises:
        InvalidModel: a result has an integer that needs more than 32 bits.
    """
    known: dict[str, _Kind] = {}
    misread = misread_weights(model)
    wanted: list[openvino.Output] = []
    left: list[openvino.Output] = []
    for operation in model.get_ordered_ops():
        for body in bodies(operation):
            fold_constants(body, compute)
        sources = [value.get_node().get_name() for value in operation.input_values()]
        if operation.get_type_name() not in _NEVER and all(each in known for each in sources):
            kinds = [known[each] for each in sources]
            scaled = _Kind.RAW in kinds and operation.get_name() in misread
            known[operation.get_name()] = _Kind.COMPUTED if scaled else _kind(operation, kinds)
    for operation in model.get_ops():
        if known.get(operation.get_name(), _Kind.LEFT) is not _Kind.LEFT:
            wanted += [output for output in operation.outputs() if _is_read(output, known)]
        elif operation.get_name() in known and operation.get_type_name() != "Constant":
            left += [output for output in operation.outputs() if _is_passed(output, known)]
    if left:
        refuse_wide(left)
    if wanted:
        for output, tensor in zip(wanted, compute(openvino.Model(wanted, [])), strict=True):
            if is_wide(output):
                refuse_cut_off(output, tensor.data)
            names = output.get_names()
            made = openvino.op.Constant(tensor).output(0)
            output.set_names(set())
            made.set_names(names)
            for reader in output.get_target_inputs():
                reader.replace_source_output(made)


def _kind(operation: openvino.Node, sources: list[_Kind]) -> _Kind:
    kind = operation.get_type_name()
    if kind not in _LEFT or _Kind.COMPUTED in sources:
        return _Kind.COMPUTED
    if kind == "Convert" and operation.get_input_element_type(0).is_integral():
        return _Kind.RAW
    return _Kind.RAW if _Kind.RAW in sources and kind != "Multiply" else _Kind.LEFT


def _is_read(output: openvino.Output, known: Mapping[str, _Kind]) -> bool:
    readers = output.get_target_inputs()
    if is_wide(output):  # its values are looked at
        return bool(readers)
    return any(reader.get_node().get_name() not in known for reader in readers)


def _is_passed(output: openvino.Output, known: Mapping[str, _Kind]) -> bool:
    """Whether a run reads the output, and its type has wide integers."""
    if not is_wide(output):
        return False
    readers = [reader.get_node().get_name() for reader in output.get_target_inputs()]
    return any(known.get(name, _Kind.COMPUTED) is _Kind.COMPUTED for name in readers)
