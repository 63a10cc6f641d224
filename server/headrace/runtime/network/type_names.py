"""Types of values as ONNX's operator schemas write them, for example ``tensor(float)``."""

from __future__ import annotations

import onnx_ir as ir


def type_text(value_type: ir.TypeProtocol) -> str:
    """The type as a schema writes it."""
    if isinstance(value_type, ir.OptionalType):
        return f"optional({type_text(value_type.elem_type)})"
    if isinstance(value_type, ir.SequenceType):
        return f"seq({type_text(value_type.elem_type)})"
    return f"tensor({value_type.dtype.name.lower()})"


def type_of(text: str) -> ir.TypeProtocol | None:
    """The type that a schema writes as `text`. None for a map or a sparse tensor, because they are
    not supported here."""
    kind, _, inside = text.removesuffix(")").partition("(")
    if kind == "tensor":
        name = inside.upper()
        return ir.TensorType(ir.DataType[name]) if name in ir.DataType.__members__ else None
    element = type_of(inside) if kind in ("seq", "optional") else None
    if element is None:
        return None
    return ir.SequenceType(element) if kind == "seq" else ir.OptionalType(element)
