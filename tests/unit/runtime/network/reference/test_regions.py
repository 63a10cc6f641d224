"""Operators on boxes: each behaviour is one that onnx's own evaluator gets wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model
from onnxruntime import InferenceSession

from headrace.runtime.network.reference.evaluator import CorrectedEvaluator

_BOXES = np.array([[[0, 0, 1, 1], [0, 0, 1, 1.1], [5, 5, 6, 6]]], np.float32)
_SCORES = np.array([[[0.9, 0.8, 0.3]]], np.float32)


@pytest.mark.parametrize("axes", ["", "[1]"], ids=["scalars", "lists"])
@pytest.mark.parametrize("most", [-1, 0, 1, 3])
@pytest.mark.parametrize("taken", ["m, i, s", "m, i", "m", "m, , s", ""])
def test_boxes_are_suppressed_by_limits_of_any_form(taken: str, most: int, axes: str) -> None:
    text = f"""g (float[1,3,4] boxes, float[1,1,3] scores, int64{axes} m, float{axes} i,
        float{axes} s) => (int64[n,3] y) {{ y = NonMaxSuppression(boxes, scores, {taken}) }}"""
    model = parse_model(f'<ir_version: 10, opset_import: ["": 21]>{text.replace(", )", ")")}')
    limits = {"m": np.int64(most), "i": np.float32(0.5), "s": np.float32(0.35)}
    inputs: dict[str, Any] = {"boxes": _BOXES, "scores": _SCORES}
    inputs |= {name: np.full((1,) if axes else (), each) for name, each in limits.items()}
    (found,) = CorrectedEvaluator(model).run(None, inputs)
    (expected,) = InferenceSession(model.SerializeToString()).run(None, inputs)
    np.testing.assert_array_equal(found, expected)
