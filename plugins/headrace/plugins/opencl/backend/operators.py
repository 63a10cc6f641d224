"""Finds tinygrad's function for an operator, or our own function if tinygrad's would fail.

tinygrad's functions take some inputs as Python values. `HOST_INPUTS` says which. These values must
be known before a kernel runs. A network is compiled for them in the same way as for its shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Final

import onnx_ir as ir
from tinygrad.dtype import dtypes
from tinygrad.nn.onnx import Domain, OnnxRunner, OpSetId, onnx_ops, required_input_python_consts
from tinygrad.tensor import Tensor

Function = Callable[..., Any]

HOST_INPUTS: Final[Mapping[str, tuple[int, ...]]] = {
    **required_input_python_consts,
    "ConstantOfShape": (0,),
    "If": (0,),
}
"""Operator to the positions of the inputs whose values the host has to know."""


def host_inputs(node: ir.Node) -> tuple[int, ...]:
    return HOST_INPUTS.get(node.op_type, ()) if node.domain in ("", "ai.onnx") else ()


def find(node: ir.Node, opset: int) -> Function | None:
    """The function that computes the node's operator. None if there is no such function."""
    own = _OWN.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if own is not None:
        return own
    try:
        domain = Domain.from_onnx(node.domain)
        selector = OnnxRunner.__new__(OnnxRunner)
        selector.onnx_ops = onnx_ops
        function: Function = selector._select_op(node.op_type, OpSetId(domain, opset))
    except (ValueError, NotImplementedError):
        return None
    return function


def computed(function: Function, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """The function's outputs.

    Raises:
        RuntimeError: the function assigns to an argument. That would change a weight for good.
            Captured kernels would write to their input, and later return another request's data.
    """
    given = [
        argument
        for argument in arguments
        if isinstance(argument, Tensor) and argument.uop.base.is_realized
    ]
    before = [tensor.uop for tensor in given]
    outputs = function(*arguments, **options)
    if any(tensor.uop is not uop for tensor, uop in zip(given, before, strict=True)):
        for tensor, uop in zip(given, before, strict=True):
            tensor.uop = uop
        raise RuntimeError("it assigns to an input")
    return outputs


def _div(x: Tensor, y: Tensor, **_: Any) -> Tensor:
    """ONNX drops the fraction of a quotient of integers."""
    if not dtypes.is_int(x.dtype):
        return x.div(y)
    if dtypes.is_unsigned(x.dtype):
        return x.div((y == 0).where(1, y), rounding_mode="trunc")
    safe = ((y == 0) | (y == -1)).where(1, y)
    return (y == -1).where(-x, x.div(safe, rounding_mode="trunc"))


def _arg_max(x: Tensor, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    """Treats NaN as infinity. tinygrad's own function skips NaN, and returns an index out of bounds
    if all elements are NaN."""
    if dtypes.is_float(x.dtype):
        x = x.isnan().where(inf, x)
    if not select_last_index:
        return x.argmax(axis, keepdim=bool(keepdims)).cast(dtypes.int64)
    return int(x.shape[axis]) - 1 - _arg_max(x.flip(axis), axis, keepdims)


_OWN: Final[Mapping[str, Function]] = {"ArgMax": _arg_max, "Div": _div}
