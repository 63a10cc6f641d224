"""Normalisations, as onnx's reference evaluator should compute them."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_batch_normalization import BatchNormalization_14
from onnx.reference.ops.op_hardmax import Hardmax as OpHardmax
from onnx.reference.ops.op_softmax import Softmax as OpSoftmax

_BATCH_NORMALIZATION_TRAINS = 14
_SOFTMAX_OF_ONE_AXIS = 13


def opset_of(op: OpRun) -> int:
    return int(op.run_params["opsets"][""])


class BatchNormalization(BatchNormalization_14):
    """Before operator set 14, a layer with a single output does not train."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        opset = opset_of(self)
        self._older = opset < _BATCH_NORMALIZATION_TRAINS
        tested = opset >= 7 or getattr(self, "is_test", False)
        if self._older and (not tested or len(self.onnx_node.output) > 1):
            raise NotImplementedError("BatchNormalization that trains, before operator set 14")
        if not getattr(self, "spatial", True):
            raise NotImplementedError("BatchNormalization of each element, with spatial=0")

    def _run(self, *inputs: Any, **options: Any) -> tuple[Any, ...]:
        options = {name: options.get(name) for name in ("epsilon", "momentum", "training_mode")}
        if self._older:
            options["training_mode"] = 0
        results: tuple[Any, ...] = super()._run(*inputs, **options)  # type: ignore[no-untyped-call]
        return results


class LogSoftmax(OpSoftmax):
    """Subtracts the logarithm of the sum. A share that is too small for the type is not taken for
    none."""

    def _run(self, x: Any, axis: int | None = None) -> tuple[Any, ...]:
        if not x.size:
            return (x,)
        axis = axis or getattr(self, "axis", -1)
        below = x - x.max(axis=axis, keepdims=True)
        total = np.exp(below).sum(axis=axis, keepdims=True)
        return ((below - np.log(total)).astype(x.dtype),)


class LpNormalization(OpRun):
    """Divides by a norm of absolute values; a norm of 0 makes zeros."""

    def _run(self, x: Any, axis: int = -1, p: int = 2) -> tuple[Any, ...]:
        norm = np.linalg.norm(x, p, axis, keepdims=True)
        return (np.where(norm == 0, 0, x / norm).astype(x.dtype),)


class LRN(OpRun):
    """Normalises each channel by the squares of the channels around it, with any spatial axes.
    onnx's operator normalises as many channels as the batch has elements.

    https://onnx.ai/onnx/operators/onnx__LRN.html
    """

    def _run(
        self,
        x: Any,
        alpha: float = 1e-4,
        beta: float = 0.75,
        bias: float = 1.0,
        size: int = 1,
    ) -> tuple[Any, ...]:
        before = (size - 1) // 2
        sides = [(0, 0), (before, size - 1 - before), *((0, 0) for _ in x.shape[2:])]
        squares = np.pad(np.square(x, dtype=np.result_type(x, np.float32)), sides)
        around = np.lib.stride_tricks.sliding_window_view(squares, size, axis=1).sum(axis=-1)
        return ((x / (bias + alpha / size * around) ** beta).astype(x.dtype),)


def _coercing(base: Any) -> Any:
    """A Softmax or similar operator that joins all axes from the given one, by default 1, before
    operator set 13."""

    class Coercing(base):  # type: ignore[misc]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._first: int | None = None
            if opset_of(self) < _SOFTMAX_OF_ONE_AXIS:
                given = [
                    attribute.i
                    for attribute in self.onnx_node.attribute
                    if attribute.name == "axis"
                ]
                self._first, self.axis = (given or [1])[0], -1

        def _run(self, x: Any) -> tuple[Any, ...]:
            if self._first is None or not x.size:
                return (*super()._run(x),)
            rows = int(np.prod(x.shape[: self._first % x.ndim]))
            (result,) = super()._run(x.reshape(rows, -1))
            return (result.reshape(x.shape),)

    Coercing.__name__ = base.__name__  # the evaluator finds it by this name
    return Coercing


SOFTMAXES = tuple(map(_coercing, (OpHardmax, LogSoftmax, OpSoftmax)))
