"""Repairs activations in OpenVINO's graph, under the rules of `repairs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from headrace.plugins.openvino.library import openvino, operations


def _hard_sigmoid(operation: openvino.Node) -> openvino.Node | None:
    """The kernel takes a slope or an offset of 0 for one that is not given, and uses the default.
    No case shows it. So the operation is made of others."""
    data, alpha, beta = operation.input_values()
    if not _has_zero(alpha, beta):
        return None
    return operations.clamp(operations.add(operations.multiply(data, alpha), beta), 0.0, 1.0)


def _selu(operation: openvino.Node) -> openvino.Node | None:
    """The kernel takes a factor of 0 for one that is not given, as that of HardSigmoid does."""
    data, alpha, factor = operation.input_values()
    if not _has_zero(alpha, factor):
        return None
    return operations.multiply(operations.elu(data, alpha.get_node().data.item()), factor)


def _has_zero(*values: openvino.Output) -> bool:
    return not all(value.get_node().data.all() for value in values)


ACTIVATIONS: Final[Mapping[str, Callable[[openvino.Node], openvino.Node | None]]] = (
    MappingProxyType({"HardSigmoid": _hard_sigmoid, "Selu": _selu})
)
