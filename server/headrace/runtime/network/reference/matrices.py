"""Products of quantised matrices, as onnx's reference evaluator should compute them."""

from __future__ import annotations

from typing import Any

from onnx.reference.ops.op_matmul_integer import MatMulInteger as OpMatMulInteger
from onnx.reference.ops.op_qlinear_matmul import QLinearMatMul as OpQLinearMatMul


class MatMulInteger(OpMatMulInteger):
    """Takes a list of zero points of the first matrix as one for each row, as ONNX specifies."""

    def _run(self, a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
        return super()._run(a, b, _of_rows(a_zero, a), b_zero)  # type: ignore[no-untyped-call]


class QLinearMatMul(OpQLinearMatMul):
    """Takes lists of scales and zero points of the first matrix as one for each row, as ONNX
    specifies."""

    def _run(self, a: Any, a_scale: Any, a_zero: Any, *others: Any) -> Any:
        rows = _of_rows(a_scale, a), _of_rows(a_zero, a)
        return super()._run(a, *rows, *others)  # type: ignore[no-untyped-call]


def _of_rows(values: Any, matrix: Any) -> Any:
    """The values as a column if they are a list and `matrix` is a single matrix."""
    is_list = values is not None and values.ndim == 1 and values.size > 1
    return values.reshape(-1, 1) if is_list and matrix.ndim == 2 else values
