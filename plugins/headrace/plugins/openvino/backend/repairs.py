"""Repairs operations whose faults depend on values, so that no comparison of answers finds them.

Each repair is small and exact, and names the case of onnx's backend tests that shows its purpose.
A layer that would need a larger repair is not claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from headrace.plugins.openvino.library import openvino, operations, replace_node

_LEAST_STEP: Final = -(2**31) + 1
_FLOATS: Final = (openvino.Type.f32, openvino.Type.f16, openvino.Type.bf16)


def repair(model: openvino.Model) -> None:
    """Changes the model in place."""
    for operation in model.get_ops():
        change = _REPAIRS.get(operation.get_type_name())
        made = change(operation) if change is not None else None
        if made is not None:
            made.output(0).set_names(operation.output(0).get_names())
            replace_node(operation, made)


def _top_k(operation: openvino.Node) -> None:
    """ONNX takes equal elements of lower index first: test_top_k_same_values."""
    if operation.get_attributes()["sort"] != "index":
        operation.set_attribute("sort", "value")
        operation.set_attribute("stable", True)


def _extreme(operation: openvino.Node) -> openvino.Node | None:
    """The extreme of infinities alone is infinite. The kernel starts from the largest finite number
    and stays there: test_attention_23_fullymasked_qk_matmul_output_mode3_zero_expanded.

    So the kernel also computes the extreme of the halves of all elements, which is beyond the
    halves of all finite numbers, on the side where it starts, only if none of them is another.
    """
    kind = operation.output(0).get_element_type()
    if kind not in _FLOATS:
        return None
    data, axes = operation.input_value(0), operation.input_value(1)
    keeps = operation.get_attributes()["keep_dims"]
    largest = operation.get_type_name() == "ReduceMax"
    reduce = operations.reduce_max if largest else operations.reduce_min
    halves = operations.multiply(operations.convert(data, "f32"), np.float32(0.5))
    extreme, end = reduce(halves, axes, keeps), np.float32(0.75) * np.finfo(np.float32).max
    beyond = operations.less(extreme, -end) if largest else operations.greater(extreme, end)
    infinity = operations.constant(-np.inf if largest else np.inf, kind)
    return operations.select(beyond, infinity, reduce(data, axes, keeps))


def _apart(reduce: Callable[..., openvino.Node]) -> Callable[[openvino.Node], openvino.Node | None]:
    """The compiler joins reductions with operations behind them to a Softmax, an MVN or an RMS,
    which differ by how far a sum or a variance is from 0. It looks for reductions that remove their
    axes, too. So the axes are kept, and removed afterwards. No case shows it."""

    def repaired(operation: openvino.Node) -> openvino.Node | None:
        data, axes = operation.input_values()
        constant = axes.get_node().get_type_name() == "Constant"
        if operation.get_attributes()["keep_dims"] or not constant or not axes.get_node().data.size:
            return None
        return operations.squeeze(reduce(data, axes, True), axes)

    return repaired


def _divide(operation: openvino.Node) -> None:
    """ONNX drops the fraction of a quotient of integers. The core rounds down when it computes a
    quotient of sizes. No case shows it."""
    if operation.get_output_element_type(0).is_integral():
        operation.set_attribute("m_pythondiv", False)


def _slice(operation: openvino.Node) -> None:
    """The least step of 32 bits has no opposite in 32 bits, and ends the process. The next larger
    step picks the same elements: one at most."""
    step = operation.input_value(3)
    kind, known = step.get_element_type().to_dtype(), step.get_node()
    if known.get_type_name() == "Constant":
        if known.data.min(initial=0) > _LEAST_STEP:
            return
        bounded = operations.constant(np.maximum(known.data, kind.type(_LEAST_STEP)))
    else:
        bounded = operations.maximum(step, kind.type(_LEAST_STEP))
    operation.input(3).replace_source_output(bounded.output(0))


_REPAIRS: Final[Mapping[str, Callable[[openvino.Node], openvino.Node | None]]] = MappingProxyType(
    {
        "Divide": _divide,
        "ReduceMax": _extreme,
        "ReduceMean": _apart(operations.reduce_mean),
        "ReduceMin": _extreme,
        "ReduceSum": _apart(operations.reduce_sum),
        "Slice": _slice,
        "TopK": _top_k,
    }
)
