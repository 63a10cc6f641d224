"""Repairs reductions in OpenVINO's graph, under the rules of `repairs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from headrace.plugins.openvino.library import openvino, operations


def _apart(reduce: Callable[..., Any]) -> Callable[[openvino.Node], openvino.Node | None]:
    """The compiler joins reductions with operations behind them to a Softmax, an MVN or an RMS. It
    takes them for reductions that keep the reduced axes, also if they do not. Then a division of
    whole rows by the sums of columns becomes a Softmax. So the axes are kept, and removed
    afterwards. No case shows it."""

    def repaired(operation: openvino.Node) -> openvino.Node | None:
        data, axes = operation.input_values()
        constant = axes.get_node().get_type_name() == "Constant"
        if operation.get_attributes()["keep_dims"] or not constant or not axes.get_node().data.size:
            return None
        return operations.squeeze(reduce(data, axes, True), axes)

    return repaired


REDUCTIONS: Final[Mapping[str, Callable[[openvino.Node], openvino.Node | None]]] = MappingProxyType(
    {"ReduceMean": _apart(operations.reduce_mean), "ReduceSum": _apart(operations.reduce_sum)}
)
