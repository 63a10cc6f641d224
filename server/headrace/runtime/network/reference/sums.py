"""Sums of narrow floats, as onnx's reference evaluator should compute them."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
import onnx_ir as ir

_SUMMING: Final = frozenset(
    {
        "Attention",
        "AveragePool",
        "BatchNormalization",
        "CumSum",
        "DeformConv",
        "GlobalAveragePool",
        "GridSample",
        "InstanceNormalization",
        "LayerNormalization",
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
