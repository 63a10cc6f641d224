"""The tensors that constants hold.

onnx-ir's own `as_tensor`, `get_const_tensor` and `to_proto` look for each member of a protocol,
which took a third of a load's processor time. `get_const_tensor` also renames the tensor, which
other networks may share.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import onnx_ir as ir

_DTYPES = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


def tensor_of(attribute: ir.Attr) -> ir.TensorProtocol:
    """The tensor that an attribute of the type TENSOR holds."""
    assert attribute.type == ir.AttributeType.TENSOR, attribute.type
    return cast(ir.TensorProtocol, attribute.value)


def const_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor of an initialiser, or of the Constant that makes the value; None if the value has
    none of the two, or if the Constant takes its tensor from the call of a function. An
    initialiser that is an input of its graph counts, too."""
    if value.const_value is not None:
        return value.const_value
    node = value.producer()
    if node is None or node.op_type != "Constant" or node.domain != "":
        return None
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            return None
        if name == "value":
            return tensor_of(attribute)
        if (dtype := _DTYPES.get(name)) is not None:
            return ir.Tensor(np.array(attribute.value, dtype), name=value.name)
        if name in ("value_string", "value_strings"):
            return ir.StringTensor(np.array(attribute.value, np.bytes_), name=value.name)
    return None
