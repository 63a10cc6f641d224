"""Keeps products of integers of 8 bits exact on processors that saturate in between.

On a processor without instructions for products of uint8 by int8, ONNX Runtime 1.31 adds two of
them in 16 bits. Twice 255 * 127 is more than 16 bits hold, and the layer's result is wrong by a
tenth to a half (AVX2; measured with values of the full range). If both operands have one type, the
sums are exact. So this module moves the second operand into the type of the first, together with
its zero point, which changes no result. The layer then takes 1.4 times as long (128x768 by
768x3072: 5.4 ms against 3.7). Weights that cannot saturate therefore stay as they are; some
quantisers make such weights on purpose.

Of what was quantised to int8, ONNX Runtime makes uint8 before it multiplies, except weights. So a
product of int8 by int8, the default of its own quantiser, would become one that saturates. It has
kernels for int8 by int8, which are exact, and an option to use them (`keeps_int8`).

ONNX Runtime has a session option for all this, session.x64quantprecision. It ignores operands that
are not constants, and it finds no kernel for a QLinearConv of int8 by int8.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from headrace.plugins.cpu.backend import session
from headrace.plugins.cpu.backend.compatibility import tiny
from headrace.plugins.cpu.backend.dequantized import products, same_steps
from headrace.plugins.cpu.backend.inserter import LayerInserter, constant, opset_of
from headrace.runtime.intake.naming import Names, value_names, walk
from headrace.runtime.network.type_inference import infer_types
from headrace.runtime.transform.functions import inline_functions

_OWN: Final = "/headrace.exact"  # ends the names of values and layers that this module adds
_MICROSOFT: Final = "com.microsoft"
_HARMLESS: Final = 64  # 2 * 255 * 64 fits into 16 bits

_Operands = tuple[int | None, int, int]

_PRODUCTS: Final[Mapping[tuple[str, str], tuple[_Operands, ...]]] = MappingProxyType(
    {
        ("", "ConvInteger"): ((0, 1, 3),),
        ("", "MatMulInteger"): ((0, 1, 3),),
        ("", "QLinearConv"): ((0, 3, 5),),
        ("", "QLinearMatMul"): ((0, 3, 5),),
        (_MICROSOFT, "DynamicQuantizeLSTM"): ((None, 1, 9), (None, 2, 11)),
        (_MICROSOFT, "DynamicQuantizeMatMul"): ((None, 1, 3),),
        (_MICROSOFT, "MatMulIntegerToFloat"): ((0, 1, 5),),
        (_MICROSOFT, "QGemm"): ((0, 3, 5),),
    }
)
"""Inputs: the first operand, or None if the layer makes uint8 of it; the second; its zero point."""

_DEQUANTIZED: Final = (None, 0, 2)  # the backend multiplies what two DequantizeLinears take


def multiply_exactly(model: ir.Model) -> bool:
    """Gives both operands of an integer product one type, if the processor needs it."""
    return saturates() and move_operands(model)


def move_operands(model: ir.Model) -> bool:
    """Gives both operands of each integer product one type if it may saturate otherwise. Functions
    with such products are inlined, because nothing is known about the values in a function."""
    if any(
        _multiplies(node) for function in model.functions.values() for node in function.all_nodes()
    ):
        inline_functions(model)
        infer_types(model)
    movable = [(node, each) for node in walk(model.graph) for each in _mixed(node)]
    movable += [(node, _DEQUANTIZED) for node in _mixed_floats(model)]
    if not movable:
        return False
    moved = _Moved(model)
    for node, (_, second, zero) in movable:
        value = node.inputs[second]
        assert value is not None
        given = node.inputs[zero] if zero < len(node.inputs) else None
        if zero >= len(node.inputs):
            node.resize_inputs(zero + 1)
        node.replace_input_with(second, moved.value(node, value))
        is_signed = value.dtype == ir.DataType.INT8
        sizes = _sizes_of_scale(node) or ()
        moved_zero = moved.zero(is_signed, sizes) if given is None else moved.value(node, given)
        node.replace_input_with(zero, moved_zero)
    moved.drop_unused()
    return True


def keeps_int8(model: ir.Model) -> bool:
    """Whether the backend must multiply int8 by int8 as it is, because the product would saturate
    on a processor that does so (`saturates`). Then all that is quantised to int8 stays int8."""
    return any(
        first == ir.DataType.INT8 and _is_large(second) and not _becomes_unsigned(second)
        for first, second in products(model)
    )


def note(model: ir.Model) -> tuple[str, ...]:
    """The notes for a network whose products are not computed as the backend would by itself."""
    if not saturates():
        return ()
    changed = sum(
        any(value is not None and (value.name or "").endswith(_OWN) for value in node.inputs)
        for node in walk(model.graph)
    )
    how = f"{changed} product(s) of uint8 and int8 are computed in one type" if changed else ""
    if keeps_int8(model):
        how += " and " * bool(how) + "products of int8 stay in int8"
    if not how:
        return ()
    return (
        f"{how}, because this processor would overflow otherwise; ONNX Runtime by itself is faster "
        "and wrong; set DISABLE_TRANSFORMATIONS=YES to keep its results",
    )


@lru_cache(maxsize=1)
def saturates() -> bool:
    """Whether the backend's product of uint8 by int8 is wrong on this processor."""
    text = "(uint8[8, 8] a, int8[8, 8] b) => (int32[8, 8] y) { y = MatMulInteger(a, b) }"
    model = tiny(text, 8, {"": 13})
    opened = session.open_bytes(model, session.Provider(), session.SessionSettings())
    feed = {"a": np.full((8, 8), 255, np.uint8), "b": np.full((8, 8), 127, np.int8)}
    (result,) = opened.run(["y"], feed, session.run_options())
    return bool((result != 8 * 255 * 127).any())


def _multiplies(node: ir.Node) -> bool:
    return node.op_type == "DequantizeLinear" or (node.domain, node.op_type) in _PRODUCTS


def _mixed(node: ir.Node) -> list[_Operands]:
    """The operands of the node's products that may saturate."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    return [
        operands
        for operands in _PRODUCTS.get((domain, node.op_type), ())
        if _may_saturate(node, *operands[:2])
    ]


def _may_saturate(node: ir.Node, first: int | None, second: int) -> bool:
    weights = node.inputs[second] if second < len(node.inputs) else None
    one = node.inputs[first] if first is not None else None
    dtype = one.dtype if one is not None else ir.DataType.UINT8
    if weights is None or {dtype, weights.dtype} != {ir.DataType.UINT8, ir.DataType.INT8}:
        return False
    if node.op_type == "ConvInteger":  # multiplies the weights by the image, not the reverse
        return weights.dtype == ir.DataType.UINT8
    return _has_large(weights)


def _has_large(weights: ir.Value) -> bool:
    """Whether the operand may be int8 of which a product with uint8 saturates."""
    if weights.dtype != ir.DataType.INT8:
        return False
    tensor = constant(weights)
    if tensor is None:
        return True
    array = tensor.numpy()
    return bool(array.size and (array.min() < -_HARMLESS or array.max() > _HARMLESS))


def _mixed_floats(model: ir.Model) -> list[ir.Node]:
    """Each DequantizeLinear whose int8 may be multiplied with uint8, and may saturate."""
    kept = keeps_int8(model)
    found = dict.fromkeys(
        second
        for first, second in products(model)
        if first == ir.DataType.UINT8
        and _is_large(second)
        and (kept or not _becomes_unsigned(second))
        and _sizes_of_scale(second) is not None
    )
    return [*found]


def _is_large(node: ir.Node) -> bool:
    return node.inputs[0] is not None and _has_large(node.inputs[0])


def _becomes_unsigned(node: ir.Node) -> bool:
    """Whether a DequantizeLinear takes what a QuantizeLinear makes for it alone. The backend makes
    uint8 of such int8."""
    value = node.inputs[0]
    maker = value.producer() if value is not None else None
    if value is None or maker is None or maker.op_type != "QuantizeLinear":
        return False
    if len(value.uses()) != 1 or value.is_graph_output() or len(node.inputs) < 3:
        return False
    zero = constant(node.inputs[2]) if node.inputs[2] is not None else None
    return zero is not None and zero.size == 1 and same_steps(node, maker)


def _sizes_of_scale(node: ir.Node) -> tuple[int, ...] | None:
    """The sizes of a zero point: those of the scale for a DequantizeLinear, none for other nodes.

    Returns None if the scale's sizes are not known.
    """
    if node.op_type != "DequantizeLinear":
        return ()
    scale = node.inputs[1]
    tensor = constant(scale) if scale is not None else None
    return None if tensor is None else tuple(int(size) for size in tensor.shape.numpy())


class _Moved:
    """Values moved from int8 to uint8 or back, by half of the range."""

    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        self._opset = opset_of(model)
        self._names: Names = value_names(model)
        self._constants: dict[Any, ir.Value] = {}
        self._replaced: list[ir.Value] = []

    def value(self, node: ir.Node, value: ir.Value) -> ir.Value:
        tensor = constant(value)
        if tensor is None:
            return self._computed(node, value)
        if value not in self._constants:
            moved = tensor.numpy().view(np.uint8) ^ np.uint8(128)
            if value.dtype == ir.DataType.UINT8:
                moved = moved.view(np.int8)
            self._constants[value] = self._constant(f"{value.name}", moved)
            self._replaced.append(value)
        return self._constants[value]

    def zero(self, is_signed: bool, sizes: tuple[int, ...]) -> ir.Value:
        """The moved zero point of an operand that had none: 128 if it was signed, -128 if not."""
        key = (is_signed, sizes)
        if key not in self._constants:
            array = np.full(sizes, 128, np.uint8) if is_signed else np.full(sizes, -128, np.int8)
            self._constants[key] = self._constant("zero", array)
        return self._constants[key]

    def drop_unused(self) -> None:
        for value in self._replaced:
            name = value.name or ""
            if not value.uses() and not value.is_graph_output():
                self._graph.initializers.pop(name, None)

    def _constant(self, name: str, array: Any) -> ir.Value:
        name = self._names.fresh(f"{name}{_OWN}")
        tensor = ir.Tensor(array, name=name)
        value = ir.Value(
            name=name,
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(array.shape),
            const_value=tensor,
        )
        self._graph.register_initializer(value)
        return value

    def _computed(self, node: ir.Node, value: ir.Value) -> ir.Value:
        signed = value.dtype == ir.DataType.INT8
        step = np.array(128 if signed else -128, np.int32)
        last = ir.DataType.UINT8 if signed else ir.DataType.INT8
        if step.item() not in self._constants:
            self._constants[step.item()] = self._constant("half", step)
        before = LayerInserter(node, self._names, _OWN, self._opset)
        wide = before.cast(value, ir.DataType.INT32)
        half = self._constants[step.item()]
        added = before.layer("Add", wide, half, shape=value.shape)
        return before.cast(added, last)
