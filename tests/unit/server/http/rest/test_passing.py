"""Requests of REST that another server computes."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.execution.job import Job, Sequence
from headrace.server.http.rest.passing import request_of, result_of
from headrace.server.services.open_inference.messages import decode, encode, parse
from headrace.server.serving.call import InferCall, InferResult, WantedOutput
from headrace.wire.request import MAX_PRIORITY

INPUTS = {
    "numbers": np.arange(6, dtype=np.float32).reshape(2, 3),
    "texts": np.array(["a", "", "ä"], object),
    "bools": np.array([True, False]),
    "nothing": np.zeros((0, 2), np.int64),
}


def call(priority: int = 0, sequence: Sequence | None = None) -> InferCall:
    wanted = {"y": WantedOutput(classification=3)}
    return InferCall(
        "n",
        "2",
        "7",
        dict(INPUTS),
        ("y", "z"),
        wanted,
        priority,
        1.5,
        sequence,
    )


@pytest.mark.parametrize("sequence", [None, Sequence("s"), Sequence("s", start=True, end=True)])
@pytest.mark.parametrize("priority", [0, MAX_PRIORITY, -MAX_PRIORITY])
def test_another_server_reads_the_same_call(priority: int, sequence: Sequence | None) -> None:
    asked = call(priority, sequence)
    read = decode(*parse(request_of(asked)))
    for name in ("network", "version", "id", "outputs", "priority", "timeout_seconds", "sequence"):
        assert getattr(read, name) == getattr(asked, name), name
    assert read.wanted["y"].classification == 3
    assert list(read.inputs) == list(INPUTS)
    for name, value in INPUTS.items():
        np.testing.assert_array_equal(read.inputs[name], value)


def test_its_reply_is_read_as_the_result() -> None:
    job = Job({}, lambda _: None, output_names=tuple(INPUTS))
    job.version, job.outputs = "2", dict(INPUTS)
    result = result_of(call(), encode(InferResult(call(), job, job.outputs)))
    assert (result.job.version, result.job.output_names) == ("2", tuple(INPUTS))
    for name, value in INPUTS.items():
        np.testing.assert_array_equal(result.outputs[name], value)
        assert result.outputs[name].dtype == value.dtype  # type: ignore[union-attr]


def test_a_call_without_parameters_has_none() -> None:
    plain = InferCall("n", "", "", {}, (), {})
    assert request_of(plain) == oip.ModelInferRequest(model_name="n").SerializeToString()
