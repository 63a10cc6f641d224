"""Operators of ai.onnx.ml, as onnx's reference evaluator should compute them.

https://onnx.ai/onnx/operators/index_ml.html
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.ops.aionnxml._op_run_aionnxml import OpRunAiOnnxMl
from onnx.reference.ops.aionnxml.op_linear_classifier import LinearClassifier as OpLinearClassifier
from onnx.reference.ops.aionnxml.op_linear_regressor import LinearRegressor as OpLinearRegressor
from onnx.reference.ops.aionnxml.op_svm_classifier import SVMClassifier as OpSVMClassifier
from onnx.reference.ops.aionnxml.op_tree_ensemble_classifier import (
    TreeEnsembleClassifier as OpTreeEnsembleClassifier,
)


class LinearClassifier(OpLinearClassifier):
    """Intercepts are 0 if there are none. onnx's are not numbers. Features without a batch are one
    row, as ONNX says of FeatureVectorizer."""

    def _run(  # type: ignore[override]
        self, x: Any, **options: Any
    ) -> tuple[Any, ...]:
        x = np.atleast_2d(x)
        if options.get("intercepts") is None:
            columns = len(options["coefficients"]) // max(1, x.shape[1])
            options["intercepts"] = [0.0] * columns
        return (*super()._run(x, **options),)  # type: ignore[no-untyped-call]


class LinearRegressor(OpLinearRegressor):
    """As for LinearClassifier."""

    def _run(  # type: ignore[override]
        self, x: Any, **options: Any
    ) -> tuple[Any, ...]:
        if options.get("intercepts") is None:
            options["intercepts"] = [0.0] * (options.get("targets") or 1)
        return (*super()._run(np.atleast_2d(x), **options),)  # type: ignore[no-untyped-call]


class Normalizer(OpRunAiOnnxMl):
    """Divides by the largest number, and not by the largest size. Takes a row without a batch."""

    def _run(self, x: Any, norm: str | None = None) -> tuple[Any, ...]:
        x = x.astype(np.float32)
        if norm == "L1":
            divisor = np.abs(x).sum(axis=-1, keepdims=True)
        elif norm == "L2":
            divisor = np.sqrt(np.square(x).sum(axis=-1, keepdims=True))
        else:
            divisor = x.max(axis=-1, keepdims=True)
        return (x / np.where(divisor == 0, np.float32(1), divisor),)


class OneHotEncoder(OpRunAiOnnxMl):
    """Casts numbers to integers before it looks for them, takes any rank, and has a place for each
    category, even if two are the same."""

    def _run(
        self, x: Any, cats_int64s: Any = None, cats_strings: Any = None, zeros: int = 1
    ) -> tuple[Any, ...]:
        categories = cats_int64s or cats_strings
        values = x if x.dtype.kind in "OSU" else x.astype(np.int64)
        places = {category: at for at, category in enumerate(categories)}
        columns = np.array(
            [places.get(element, -1) for element in values.ravel().tolist()], np.int64
        )
        if not zeros and (columns < 0).any():
            raise ValueError("an element has none of the categories")
        hot = columns.reshape(*x.shape, 1) == np.arange(len(categories))
        return (hot.astype(np.float32),)


class Scaler(OpRunAiOnnxMl):
    """Computes floating-point numbers of integers, too. Refuses features that are not a matrix, if
    each has a number of its own: ONNX does not say where they are."""

    def _run(self, x: Any, offset: Any = None, scale: Any = None) -> tuple[Any, ...]:
        if x.ndim > 2 and max(len(offset), len(scale)) > 1:
            raise NotImplementedError("features of more axes than a matrix has")
        return (((x - np.array(offset)) * np.array(scale)).astype(np.float32),)


class SVMClassifier(OpSVMClassifier):
    """If each of two classes has its own score, the class with the higher score wins. Features
    without a batch are one row. Sums are made in float64: in float32 they may lose all their
    digits. Probabilities of more than two classes are refused, because onnx's are of other
    couplings than the library's."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        given = (getattr(self, f"classlabels_{kind}", None) for kind in ("ints", "strings"))
        labels = max(len(value) if isinstance(value, list) else 0 for value in given)
        if labels > 2 and getattr(self, "prob_a", None):
            raise NotImplementedError("probabilities of more than two classes")

    def _run(  # type: ignore[override]
        self, x: Any, **options: Any
    ) -> tuple[Any, ...]:
        rho = options.get("rho")
        if not options.get("vectors_per_class") and rho is not None and len(rho) == 1:
            options["rho"] = [*rho, *rho]  # onnx takes two scores for one if there is one number
        names = options.pop("classlabels_strings", None)
        if names:  # of which onnx takes more than two alone
            options["classlabels_ints"] = [*range(len(names))]
        wide = np.atleast_2d(x).astype(np.float64)
        label, scores = super()._run(wide, **options)  # type: ignore[no-untyped-call]
        return np.array(names)[label] if names else label, scores.astype(np.float32)


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
