"""Integers that follow from constants, and that need more than the 32 bits with a sign in which
OpenVINO computes integers.

OpenVINO's core computes them exactly. Then OpenVINO takes the nearest integer that fits, and
reports nothing. No backend case of onnx has such integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from headrace.plugins.openvino.library import openvino
from headrace.runtime.errors import InvalidModel

_WIDE: Final = (openvino.Type.i64, openvino.Type.u32, openvino.Type.u64)
_LEAST: Final = -(2**31)
_GREATEST: Final = 2**31 - 1


def is_wide(output: openvino.Output) -> bool:
    """Whether the type of the output has integers that need more than 32 bits with a sign."""
    return output.get_element_type() in _WIDE


def refuse_wide(outputs: Sequence[openvino.Output]) -> None:
    """
    Args:
        outputs: outputs that the core computes from constants.

    Raises:
        InvalidModel: one of them has an integer that needs more than 32 bits.
    """
    for output, exact in zip(outputs, _exact(outputs) or [], strict=False):
        if not _LEAST <= exact.min(initial=0) <= exact.max(initial=0) <= _GREATEST:
            raise _error(output)


def refuse_cut_off(output: openvino.Output, found: Any) -> None:
    """
    Args:
        output: an output that a run computes from constants.
        found: its values, which a run cuts off at the ends of 32 bits.

    Raises:
        InvalidModel: a value may have been cut off.
    """
    if _LEAST < found.min(initial=0) <= found.max(initial=0) < _GREATEST:
        return
    exact = _exact([output])
    if not exact or not np.array_equal(exact[0], found):
        raise _error(output)
    refuse_wide([output])


def _exact(outputs: Sequence[openvino.Output]) -> list[Any] | None:
    """The values that the core computes for the outputs; None if it computes none."""
    if not all(output.get_partial_shape().is_static for output in outputs):
        return None
    made = [openvino.Tensor(each.get_element_type(), each.get_shape()) for each in outputs]
    done = openvino.Model(list(outputs), []).evaluate(made, [])
    return [each.data for each in made] if done else None


def _error(output: openvino.Output) -> InvalidModel:
    kind = output.get_node().get_type_name()
    message = f"{kind} of constants needs more than the 32 bits in which OpenVINO has integers"
    return InvalidModel(message, field="model")
