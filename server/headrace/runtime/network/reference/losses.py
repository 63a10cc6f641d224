"""Losses, as onnx's reference evaluator should compute them."""

from __future__ import annotations

from typing import Any

from onnx.reference.ops.op_negative_log_likelihood_loss import (
    NegativeLogLikelihoodLoss as OpNegativeLogLikelihoodLoss,
)
from onnx.reference.ops.op_softmax_cross_entropy_loss import (
    SoftmaxCrossEntropyLoss as OpSoftmaxCrossEntropyLoss,
)


def _of_one_class_each(base: Any) -> Any:
    """A loss that refuses a target without one class for each place, and weights without one weight
    for each class. onnx's operators ignore what there is too much.

    https://onnx.ai/onnx/operators/onnx__NegativeLogLikelihoodLoss.html
    """

    class Loss(base):  # type: ignore[misc]
        def _run(
            self, scores: Any, target: Any, weight: Any = None, **options: Any
        ) -> tuple[Any, ...]:
            places = (*scores.shape[:1], *scores.shape[2:])
            if scores.ndim < 2 or target.shape != places:
                raise ValueError(f"the target has shape {target.shape}, not {places}")
            if weight is not None and weight.shape != scores.shape[1:2]:
                raise ValueError(f"weights of shape {weight.shape} for {scores.shape[1]} classes")
            results: tuple[Any, ...] = super()._run(scores, target, weight=weight, **options)
            return results

    Loss.__name__ = base.__name__  # the evaluator finds it by this name
    return Loss


LOSSES = tuple(map(_of_one_class_each, (OpNegativeLogLikelihoodLoss, OpSoftmaxCrossEntropyLoss)))
