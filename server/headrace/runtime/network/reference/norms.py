"""Normalisations, as onnx's reference evaluator should compute them."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_batch_normalization import BatchNormalization_14
from onnx.reference.ops.op_layer_normalization import LayerNormalization as OpLayerNormalization
from onnx.reference.ops.op_log_softmax import LogSoftmax as OpLogSoftmax

_BATCH_NORMALIZATION_TRAINS = 14


def opset_of(op: OpRun) -> int:
    return int(op.run_params["opsets"][""])


class BatchNormalization(BatchNormalization_14):
    """Before operator set 14, a layer with a single output does not train. The new statistics are
    computed in float32 at least and have the type of the old ones."""

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
        given = [array.astype(_wide(array)) for array in inputs]
        results: tuple[Any, ...] = super()._run(*given, **options)  # type: ignore[no-untyped-call]
        types = (inputs[0].dtype, inputs[3].dtype, inputs[3].dtype)
        return tuple(result.astype(dtype) for result, dtype in zip(results, types, strict=False))


class LayerNormalization(OpLayerNormalization):
    """Computes and returns the mean and the deviation in float32.

    https://onnx.ai/onnx/operators/onnx__LayerNormalization.html
    """

    def _run(  # type: ignore[override]
        self, x: Any, scale: Any, bias: Any = None, **options: Any
    ) -> tuple[Any, ...]:
        options = {name: options.get(name) for name in ("axis", "epsilon", "stash_type")}
        given = [None if array is None else array.astype(_wide(x)) for array in (x, scale, bias)]
        results: tuple[Any, ...] = super()._run(*given, **options)  # type: ignore[no-untyped-call]
        statistics = (result.astype(np.float32) for result in results[1:])
        return (results[0].astype(x.dtype), *statistics)[: len(self.output)]


class LogSoftmax(OpLogSoftmax):
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
        if p not in (1, 2):
            raise ValueError(f"p must be 1 or 2, not {p}")
        norm = np.linalg.norm(x, p, axis, keepdims=True)
        return (np.where(norm == 0, 0, x / norm).astype(x.dtype),)


def _wide(values: Any) -> Any:
    return np.result_type(values.dtype, np.float32) if values.dtype.kind == "f" else np.float32


class Softsign(OpRun):
    """Takes single numbers, too.

    https://onnx.ai/onnx/operators/onnx__Softsign.html
    """

    def _run(self, x: Any) -> tuple[Any, ...]:
        return ((x / (1 + np.abs(x))).astype(x.dtype),)
