"""Requests that are like earlier ones are read as if they were parsed, and others are parsed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.oip import open_inference_pb2 as oip
from headrace.server.services.open_inference.messages import decode, parse, part_spans
from headrace.server.serving.call import InferCall
from headrace.server.serving.layouts import CallLayouts

X = np.arange(4, dtype=np.float32)


def message(*arrays: np.ndarray[Any, Any], **fields: Any) -> bytes:
    types = {"float32": "FP32", "int64": "INT64", "bool": "BOOL"}
    inputs = [
        oip.ModelInferRequest.InferInputTensor(
            name=f"x{number}", datatype=types[str(array.dtype)], shape=array.shape
        )
        for number, array in enumerate(arrays)
    ]
    raw = [array.tobytes() for array in arrays]
    ask = oip.ModelInferRequest(model_name="m", inputs=inputs, raw_input_contents=raw, **fields)
    data: bytes = ask.SerializeToString()
    return data


def learnt(layouts: CallLayouts, data: bytes) -> InferCall:
    """The call, after the layouts have seen it twice."""
    call = decode(*parse(data))
    for _ in range(2):
        layouts.learn(data, call)
    return call


def assert_same(one: InferCall, other: InferCall) -> None:
    assert one.inputs.keys() == other.inputs.keys()
    for name, value in one.inputs.items():
        np.testing.assert_array_equal(np.asarray(value), np.asarray(other.inputs[name]))
    facts = [(each.network, each.version, each.id, each.outputs) for each in (one, other)]
    assert facts[0] == facts[1]
    assert (one.priority, one.timeout_seconds) == (other.priority, other.timeout_seconds)


def test_other_data_and_another_id_are_read_as_they_are_parsed() -> None:
    layouts = CallLayouts(part_spans)
    said: dict[str, Any] = {
        "model_version": "2",
        "outputs": [oip.ModelInferRequest.InferRequestedOutputTensor(name="y")],
        "parameters": {"timeout": oip.InferParameter(int64_param=5)},
    }
    whole = np.arange(2, dtype=np.int64)
    learnt(layouts, message(X, whole, id="one", **said))
    data = message(X + 1, whole - 7, id="two", **said)
    known = layouts.read(data)
    assert known is not None
    assert_same(known, decode(*parse(data)))
    assert known.id == "two"


@pytest.mark.parametrize("model_version", ["1", "12", "123", "1234"], ids=len)
def test_large_tensors_are_read_wherever_they_lie(model_version: str) -> None:
    layouts, array = CallLayouts(part_spans), np.arange(1 << 16, dtype=np.float32)
    learnt(layouts, message(array, X, model_version=model_version))
    data = message(array + 1, X - 1, model_version=model_version)
    known = layouts.read(data)
    assert known is not None
    assert_same(known, decode(*parse(data)))
    assert all(np.asarray(value).flags.aligned for value in known.inputs.values())


def test_a_request_is_not_read_before_one_like_it_came_twice() -> None:
    layouts, data = CallLayouts(part_spans), message(X)
    layouts.learn(data, decode(*parse(data)))
    assert layouts.read(data) is None


@pytest.mark.parametrize(
    "other",
    [
        message(X, model_version="2"),
        message(X.reshape(2, 2)),
        message(X, parameters={"priority": oip.InferParameter(int64_param=1)}),
        message(X)[:-1] + b"\xff" + b"\x00",
        message(),
    ],
    ids=["version", "shape", "parameter", "bytes", "empty"],
)
def test_a_request_that_says_anything_else_is_parsed(other: bytes) -> None:
    layouts = CallLayouts(part_spans)
    learnt(layouts, message(X))
    assert layouts.read(other) is None


@pytest.mark.parametrize(
    "data",
    [
        message(np.array([True, False])),
        message(X, parameters={"sequence_id": oip.InferParameter(int64_param=7)}),
    ],
    ids=["bool", "sequence"],
)
def test_some_requests_are_always_parsed(data: bytes) -> None:
    layouts = CallLayouts(part_spans)
    learnt(layouts, data)
    assert layouts.read(data) is None


def test_a_call_that_was_read_may_be_changed_without_harm_to_the_next() -> None:
    layouts, data = CallLayouts(part_spans), message(X)
    learnt(layouts, data)
    first = layouts.read(data)
    assert first is not None
    first.inputs.clear()
    second = layouts.read(data)
    assert second is not None
    assert_same(second, decode(*parse(data)))
