"""How many steps a layer takes that the reference evaluator computes step by step."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.parser import parse_model
from onnx.reference import ReferenceEvaluator

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network.reference.evaluator import CorrectedEvaluator

REGIONS = """<ir_version: 10, opset_import: ["": 21]>
g (float[a,c,h,w] x, float[n,4] r, int64[n] b) => (float y) {{ y = RoiAlign<{}>(x, r, b) }}"""

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
    start = time.process_time()
    with pytest.raises(ValueError, match=why):
        CorrectedEvaluator(terms(**changes))
    assert time.process_time() - start < 5


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


def align(options: str, rois: Any, channels: int = 1, evaluator: Any = CorrectedEvaluator) -> Any:
    x = np.arange(16 * channels, dtype=np.float32).reshape(1, channels, 4, 4)
    rois = np.array(rois, np.float32)
    inputs = {"x": x, "r": rois, "b": np.zeros(len(rois), np.int64)}
    return evaluator(parse_model(REGIONS.format(options))).run(None, inputs)[0]


@pytest.mark.parametrize(
    "options",
    [
        "sampling_ratio = 0",
        "sampling_ratio = 3, output_width = 2",
        'coordinate_transformation_mode = "output_half_pixel", spatial_scale = 0.5',
        'mode = "max", output_height = 3',
    ],
)
def test_regions_are_aligned_as_by_onnx(options: str) -> None:
    rois = [[0, 0, 3, 3], [1, 2, 1, 2], [3, 3, 0, 0], [-5, -5, 50, 9]]
    expected = align(options, rois, 2, ReferenceEvaluator)
    np.testing.assert_array_equal(align(options, rois, 2), expected)


@pytest.mark.parametrize(
    ("options", "region", "channels"),
    [
        ("sampling_ratio = 1000000", [0, 0, 3, 3], 1),
        ("sampling_ratio = 0", [0, 0, 1e6, 1e6], 1),
        ('coordinate_transformation_mode = "half_pixel"', [1e6, 1e6, 0, 0], 1),
        ("output_height = 1000000000", [0, 0, 3, 3], 1),
        ('coordinate_transformation_mode = "half_pixel", output_width = 1000000', [0, 0, 0, 0], 1),
        ("sampling_ratio = 512", [0, 0, 3, 3], 33),
    ],
)
def test_a_request_for_too_many_samples_is_refused(
    options: str, region: list[float], channels: int
) -> None:
    with pytest.raises(InvalidArgument, match="steps are too many"):
        align(options, [region], channels)


def test_samples_of_all_regions_count_together() -> None:
    with pytest.raises(InvalidArgument, match="8,650,752 steps"):
        align("sampling_ratio = 512", [[0, 0, 3, 3]] * 33)
