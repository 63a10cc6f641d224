"""Sums of narrow floats, as onnx's reference evaluator should compute them."""

from __future__ import annotations

from functools import cache, reduce
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from onnx.reference.op_run import OpRun


class Mean(OpRun):
    """The mean of tensors that take each other's shape. onnx's operator adds all to the first one,
    in its shape.

    https://onnx.ai/onnx/operators/onnx__Mean.html
    """

    def _run(self, *given: Any) -> tuple[Any, ...]:
        return ((reduce(np.add, given) / len(given)).astype(given[0].dtype),)


class ReduceLogSumExp(OpRun):
    """Reduces single numbers and infinities, too.

    https://onnx.ai/onnx/operators/onnx__ReduceLogSumExp.html
    """

    def _run(
        self, x: Any, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> tuple[Any, ...]:
        if x.dtype.kind in "iu":
            raise TypeError("integers have no exponential")
        axis = None if axes is None or not len(axes) else tuple(axes)
        if axis is None and noop_with_empty_axes:
            return (x,)
        most = x.max(axis=axis, keepdims=True, initial=-np.inf)
        most = np.where(np.isfinite(most), most, 0).astype(x.dtype)
        result = np.log(np.exp(x - most).sum(axis=axis, keepdims=True)) + most
        return (np.asarray(result if keepdims else result.squeeze(axis)).astype(x.dtype),)


_SUMMING: Final = frozenset(
    {
        "Attention",
        "AveragePool",
        "CumSum",
        "DeformConv",
        "GlobalAveragePool",
        "GridSample",
        "InstanceNormalization",
        "LogSoftmax",
        "LpNormalization",
        "LpPool",
        "NegativeLogLikelihoodLoss",
        "RMSNormalization",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMean",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
        "Softmax",
        "SoftmaxCrossEntropyLoss",
    }
)
"""Operators that add up elements, and whose sums onnx's evaluator keeps in the type of the
elements. It computes products of matrices and convolutions of narrow types in float32 itself."""


def with_wide_sums(operator: str, base: Any) -> Any:
    """The evaluator's class for an operator. An operator that adds up elements gets a class that
    does so in float32. In bfloat16, a sum of ones stays at 256."""
    return _wide(base) if operator in _SUMMING and isinstance(base, type) else base


@cache
def _wide(base: Any) -> Any:
    class Wide(base):  # type: ignore[misc]
        def _run(self, *inputs: Any, **options: Any) -> tuple[Any, ...]:
            narrow = next((array.dtype for array in inputs if _is_narrow(array)), None)
            given = [array.astype(np.float32) if _is_narrow(array) else array for array in inputs]
            results: tuple[Any, ...] = super()._run(*given, **options)
            if narrow is None:
                return results
            return tuple(
                result.astype(narrow) if getattr(result, "dtype", None) == np.float32 else result
                for result in results
            )

    Wide.__name__ = base.__name__  # the evaluator finds the operator's schema by this name
    return Wide


def _is_narrow(value: Any) -> bool:
    """Whether the value is an array of floats of less than 32 bits."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fV":
        return False
    return value.dtype.itemsize < 4 and ir.DataType.from_numpy(value.dtype).is_floating_point()
