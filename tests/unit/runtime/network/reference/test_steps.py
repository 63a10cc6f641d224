"""How many steps a layer takes that the reference evaluator computes step by step."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network.reference.evaluator import CorrectedEvaluator

TERMS: dict[str, Any] = {
    "mode": "TF",
    "min_gram_length": 1,
    "max_gram_length": 2,
    "max_skip_count": 2,
    "ngram_counts": [0, 2],
    "ngram_indexes": [0, 1, 2],
    "pool_int64s": [1, 2, 3, 4],
}


def terms(**changes: Any) -> onnx.ModelProto:
    layer = helper.make_node("TfIdfVectorizer", ["x"], ["y"], **{**TERMS, **changes})
    ports = [helper.make_tensor_value_info("x", TensorProto.INT64, None)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([layer], "g", ports, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_terms_are_counted_as_by_onnx() -> None:
    x = np.array([[1, 3, 4, 2], [3, 0, 4, 1]])
    for model in (terms(), terms(mode="IDF", weights=[0.5, 2.0, 3.0])):
        (found,) = CorrectedEvaluator(model).run(None, {"x": x})
        (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
        np.testing.assert_array_equal(found, expected)
        assert np.asarray(found).any()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ngram_counts": [0, 2**31]}, "ngram_counts do not ascend"),
        ({"max_skip_count": 2**60}, "max_skip_count"),
        ({"ngram_indexes": [0, 1, 2**31]}, "ngram_indexes"),
    ],
    ids=str,
)
def test_terms_that_would_never_be_counted_are_refused_before_a_run(
    changes: dict[str, Any], why: str
) -> None:
    start = time.monotonic()
    with pytest.raises(ValueError, match=why):
        CorrectedEvaluator(terms(**changes))
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("changes", "shape"),
    [({"max_skip_count": 256}, (16_384,)), ({"ngram_indexes": [0, 1, 2**23]}, (1, 4))],
    ids=str,
)
def test_a_request_for_too_many_terms_is_refused(
    changes: dict[str, Any], shape: tuple[int, ...]
) -> None:
    with pytest.raises(InvalidArgument, match="steps are too many"):
        CorrectedEvaluator(terms(**changes)).run(None, {"x": np.ones(shape, np.int64)})
