"""Keeps products of uint8 by int8 exact on processors that saturate in between.

On a processor without instructions for such products, ONNX Runtime 1.31 adds two products in 16
bits. Twice 255 * 127 is more than 16 bits hold, and the layer's result is wrong by a tenth (AVX2;
measured with values of the full range). If both operands have one type, the sums are exact. So this
module moves the second operand into the type of the first, together with its zero point, which
changes no result. The layer then takes 1.4 times as long (128x768 by 768x3072: 5.4 ms against 3.7).
Weights that cannot saturate therefore stay as they are; some quantisers make such weights on
purpose. ONNX Runtime has a session option for this, session.x64quantprecision. It ignores operands
that are not constants, and it finds no kernel for a QLinearConv of int8 by int8.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import onnx
import onnx_ir as ir

from headrace.plugins.cpu.graph.inserted import Inserted, opset_of
from headrace.plugins.cpu.graph.proven_shapes import constant
from headrace.plugins.cpu.session import session
from headrace.runtime.intake.naming import Names, value_names, walk

_OF_FLOATS: Final = ("Conv", "Gemm", "MatMul")
_OWN: Final = "/headrace.exact"  # ends the names of values and layers that this module adds
_MICROSOFT: Final = "com.microsoft"
_HARMLESS: Final = 64  # 2 * 255 * 64 fits into 16 bits

_Operands = tuple[int | None, int, int]

_PRODUCTS: Final[Mapping[tuple[str, str], tuple[_Operands, ...]]] = MappingProxyType(
    {
        ("", "ConvInteger"): ((0, 1, 3),),
        ("", "DequantizeLinear"): (
            (None, 0, 2),
        ),  # the backend fuses three layers into a QLinearConv
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


def multiply_exactly(model: ir.Model) -> bool:
    """Gives both operands of an integer product one type, if the processor needs it."""
    found = [(node, each) for node in walk(model.graph) for each in _mixed(node)]
    if not found or not saturates():
        return False
    moved = _Moved(model)
    for node, (_, second, zero) in found:
        value = node.inputs[second]
        assert value is not None
        given = node.inputs[zero] if zero < len(node.inputs) else None
        if zero >= len(node.inputs):
            node.resize_inputs(zero + 1)
        node.replace_input_with(second, moved.value(node, value))
        is_signed = value.dtype == ir.DataType.INT8
        sizes = _sizes_of_zero(node) or ()
        moved_zero = moved.zero(is_signed, sizes) if given is None else moved.value(node, given)
        node.replace_input_with(zero, moved_zero)
    moved.drop_unused()
    return True


def note(model: ir.Model) -> tuple[str, ...]:
    """The notes for a network that `multiply_exactly` changed."""
    changed = sum(
        any(value is not None and (value.name or "").endswith(_OWN) for value in node.inputs)
        for node in walk(model.graph)
        if (node.domain, node.op_type) in _PRODUCTS
    )
    if not changed:
        return ()
    return (
        f"{changed} integer product(s) of uint8 and int8 are computed in one type, "
        "because this processor would overflow otherwise; ONNX Runtime by itself is faster and "
        "wrong; set DISABLE_TRANSFORMATIONS=YES to keep its results",
    )


@lru_cache(maxsize=1)
def saturates() -> bool:
    """Whether the backend's product of uint8 by int8 is wrong on this processor."""
    names, types = "aby", (onnx.TensorProto.UINT8, onnx.TensorProto.INT8, onnx.TensorProto.INT32)
    a, b, y = (
        onnx.helper.make_tensor_value_info(name, kind, [8, 8])
        for name, kind in zip(names, types, strict=True)
    )
    node = onnx.helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", [a, b], [y]),
        ir_version=8,
        opset_imports=[onnx.helper.make_opsetid("", 13)],
    )
    opened = session.open_bytes(model.SerializeToString(), session.Provider(), session.Settings())
    feed = {"a": np.full((8, 8), 255, np.uint8), "b": np.full((8, 8), 127, np.int8)}
    (found,) = opened.run(["y"], feed, session.run_options())
    return bool((found != 8 * 255 * 127).any())


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
    if weights.dtype == ir.DataType.UINT8:
        return False
    if node.op_type == "DequantizeLinear" and not _is_multiplied(node):
        return False
    if _sizes_of_zero(node) is None:
        return False
    tensor = constant(weights)
    if tensor is None:
        return True
    array = tensor.numpy()
    return bool(array.size and (array.min() < -_HARMLESS or array.max() > _HARMLESS))


def _sizes_of_zero(node: ir.Node) -> tuple[int, ...] | None:
    """The sizes of the zero point: those of the scale for a DequantizeLinear, none for other nodes.

    Returns None if the scale's sizes are not known.
    """
    if node.op_type != "DequantizeLinear":
        return ()
    scale = node.inputs[1]
    tensor = constant(scale) if scale is not None else None
    return None if tensor is None else tuple(int(size) for size in tensor.shape.numpy())


def _is_multiplied(node: ir.Node) -> bool:
    """Whether the node's result is multiplied by a value that was dequantised from uint8."""
    for reader, at in node.outputs[0].uses():
        if reader.op_type in _OF_FLOATS and at == 1 and reader.inputs[0] is not None:
            other = reader.inputs[0].producer()
            if other is not None and other.op_type == "DequantizeLinear" and other.inputs[0]:
                return other.inputs[0].dtype == ir.DataType.UINT8
    return False


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
        before = Inserted(node, self._names, _OWN, self._opset)
        wide = before.cast(value, ir.DataType.INT32)
        half = self._constants[step.item()]
        added = before.layer("Add", wide, half, shape=value.shape)
        return before.cast(added, last)
