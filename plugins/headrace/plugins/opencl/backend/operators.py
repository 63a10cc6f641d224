"""Finds tinygrad's function for an operator, or our own function if tinygrad's would fail.

tinygrad's functions take some inputs as Python values. `HOST_INPUTS` says which. These values must
be known before a kernel runs. A network is compiled for them in the same way as for its shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, prod
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
    "Loop": (0, 1),
}
"""Operator to the positions of the inputs whose values the host has to know."""

_VARYING: Final = frozenset(
    (
        "NonZero",  # the shape of its output depends on values that are read back from the device
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    )
)


def host_inputs(node: ir.Node) -> tuple[int, ...]:
    return HOST_INPUTS.get(node.op_type, ()) if node.domain in ("", "ai.onnx") else ()


def varies(node: ir.Node) -> bool:
    """Whether the node's output may have another shape or other numbers in another run with the
    same input shapes, so that its kernels cannot be kept."""
    if node.domain not in ("", "ai.onnx"):
        return False
    trains = node.op_type == "Dropout" and len(node.inputs) > 2
    return trains or node.op_type in _VARYING


def find(node: ir.Node, opset: int) -> Function | None:
    """The function that computes the node's operator. None if there is no such function."""
    own = _OWN.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if own is not None:
        return own
    if node.op_type in _FLATTENING and node.domain in ("", "ai.onnx") and opset < _BY_AXIS:
        return _FLATTENING[node.op_type]
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
    given = [each for each in arguments if isinstance(each, Tensor) and each.uop.base.is_realized]
    before = [each.uop for each in given]
    outputs = function(*arguments, **options)
    if any(each.uop is not uop for each, uop in zip(given, before, strict=True)):
        for each, uop in zip(given, before, strict=True):
            each.uop = uop
        raise RuntimeError("it assigns to an input")
    return outputs


def _div(x: Tensor, y: Tensor, **_: Any) -> Tensor:
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


_BY_AXIS: Final = 13  # before, a Softmax is over all axes from `axis` on


def _flattened(function: Function) -> Function:
    def run(x: Tensor, axis: int = 1) -> Tensor:
        rows = prod(int(size) for size in x.shape[: axis % x.ndim])
        result: Tensor = function(x.reshape(rows, -1), -1)
        return result.reshape(*x.shape)

    return run


_FLATTENING: Final = {
    "LogSoftmax": _flattened(Tensor.log_softmax),
    "Softmax": _flattened(Tensor.softmax),
}
_BATCH_AND_CHANNELS: Final = 2
_THEIR_RESIZE: Final[Any] = onnx_ops["Resize"]


def _resize(
    x: Tensor,
    roi: Any = None,
    scales: list[float] | None = None,
    sizes: list[int] | None = None,
    axes: Sequence[int] | None = None,
    keep_aspect_ratio_policy: str = "stretch",
    **options: Any,
) -> Tensor:
    """Resizes the axes that `axes` names. tinygrad's own function always takes the first two axes
    for batch and channels and resizes the others, whatever `axes` and the rank are."""
    options["keep_aspect_ratio_policy"] = keep_aspect_ratio_policy
    resized = [axis % x.ndim for axis in (range(x.ndim) if axes is None else axes)]
    if keep_aspect_ratio_policy != "stretch":
        if len(resized) != x.ndim - 2 and axes is not None:
            raise NotImplementedError("Resize of some axes that keeps their ratio")
        whole: Tensor = _THEIR_RESIZE(x, roi, scales, sizes, axes=axes, **options)
        return whole
    shape = [int(size) for size in x.shape]
    all_scales, all_sizes = [1.0] * x.ndim, [*shape]
    for index, axis in enumerate(resized):
        if scales is not None:
            all_scales[axis] = scales[index]
        elif sizes is not None:
            all_sizes[axis] = sizes[index]
    lead = [] if x.ndim > _BATCH_AND_CHANNELS else [1] * _BATCH_AND_CHANNELS
    result: Tensor = _THEIR_RESIZE(
        x.reshape(*lead, *shape),
        None,
        None if scales is None else [*lead, *all_scales],
        None if sizes is None else [*lead, *all_sizes],
        **options,
    )
    return result.reshape(*result.shape[len(lead) :])


_OWN: Final[dict[str, Function]] = {
    "ArgMax": _arg_max,
    "Div": _div,
    "Resize": _resize,
}
