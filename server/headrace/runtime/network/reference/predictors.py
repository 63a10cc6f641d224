"""Operators of ai.onnx.ml, as onnx's reference evaluator should compute them.

https://onnx.ai/onnx/operators/index_ml.html
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.ops.aionnxml.op_tree_ensemble_classifier import (
    TreeEnsembleClassifier as OpTreeEnsembleClassifier,
)


class TreeEnsembleClassifier(OpTreeEnsembleClassifier):
    """Takes votes for one class alone as what they are, unless it is the first of two. Then they
    are the second one's score, as converters and ONNX Runtime have it, and the first one's is what
    is left of 1, or the negative if a weight is negative."""

    def _run(  # type: ignore[override]
        self, x: Any, **options: Any
    ) -> tuple[Any, ...]:
        labels = options.get("classlabels_int64s") or options.get("classlabels_strings") or ()
        voted = {*(options.get("class_ids") or ())}
        if len(voted) == 1 and len(labels) > 1:
            _add_vote(options, next(at for at in (0, 1) if at not in voted))
            if len(labels) == 2 and voted == {0}:
                return self._of_one_score(x, labels, options)
        return (*super()._run(x, **options),)  # type: ignore[no-untyped-call]

    def _of_one_score(self, x: Any, labels: Any, options: dict[str, Any]) -> tuple[Any, ...]:
        transform = options.get("post_transform") or "NONE"
        bases = (options.get(name) for name in ("base_values", "base_values_as_tensor"))
        if transform not in ("NONE", "LOGISTIC") or any(
            base is not None and len(base) == len(labels) for base in bases
        ):
            raise NotImplementedError("a transformed score, or base values, of one of two classes")
        given = {**options, "post_transform": "NONE"}
        second = super()._run(x, **given)[1][:, :1]  # type: ignore[no-untyped-call]
        if transform == "LOGISTIC":
            scores = 1 / (1 + np.exp(np.concatenate([second, -second], axis=1)))
        else:
            weights = options.get("class_weights")
            negative = (
                np.min(options["class_weights_as_tensor"] if weights is None else weights) < 0
            )
            scores = np.concatenate([-second if negative else 1 - second, second], axis=1)
        return np.array(labels)[scores.argmax(axis=1)], scores.astype(second.dtype)


def _add_vote(options: dict[str, Any], number: int) -> None:
    """A vote of no weight."""
    for name in ("class_treeids", "class_nodeids"):
        options[name] = [*options[name], options[name][0]]
    options["class_ids"] = [*options["class_ids"], number]
    for name in ("class_weights", "class_weights_as_tensor"):
        if options.get(name) is not None:
            options[name] = np.append(np.asarray(options[name]), 0).tolist()
