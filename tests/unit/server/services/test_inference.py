"""Infer's requests and replies that take long to read and write."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest

from headrace.runtime.execution.job import Job
from headrace.server.services import inference as module
from headrace.server.services.aside import HEAVY_ELEMENTS
from headrace.server.services.completion_sink import CompletionSink
from headrace.server.services.inference import Inference, strings_in
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import ATTACHMENT_BYTES, decode_values, encode_values
from headrace.wire.message import SMALL_BYTES, parse_infer_reply
from headrace.wire.request import Decoded, decode_request
from headrace.wire.stream import (
    StreamRequest,
    parse_infer_stream_request,
    serialize_infer_stream_request,
)


class Echo:
    """Networks that answer with their input."""

    def acquire(self, *_: Any) -> Any:
        return None

    def submit(self, _entry: Any, job: Job) -> None:
        job.outputs = {"y": job.inputs["x"]}
        job.output_names = ("y",)
        job.complete()


class Context:
    def time_remaining(self) -> None:
        return None


def message(value: Any) -> bytes:
    request = pb.InferRequest(network="net", id="a")
    encode_values({"x": value}, request.inputs, [])
    return request.SerializeToString()


def texts(count: int) -> np.ndarray[Any, Any]:
    return np.array(["a"] * count, object)


@pytest.mark.parametrize(
    ("value", "aside"),
    [
        (texts(HEAVY_ELEMENTS), False),
        (texts(HEAVY_ELEMENTS + 1), True),
        ([texts(HEAVY_ELEMENTS), [texts(1)]], True),
        (np.zeros(9, np.uint8), False),
    ],
)
def test_many_texts_are_read_and_written_on_another_thread(
    value: Any, aside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(*given: Any) -> Any:
        threads.append(threading.get_ident())
        return decode_request(*given)

    def build(*given: Any) -> Any:
        threads.append(threading.get_ident())
        return build_reply(*given)

    async def scenario() -> Any:
        networks: Any = Echo()
        shared_memory: Any = None
        sink = CompletionSink(asyncio.get_running_loop())
        return await Inference(networks, sink, shared_memory).infer(message(value), Context())

    threads: list[int] = []
    build_reply = module.build_reply
    monkeypatch.setattr(module, "decode_request", decode)
    monkeypatch.setattr(module, "build_reply", build)
    reply, parts = parse_infer_reply(asyncio.run(scenario()))
    (answered,) = decode_values(reply.outputs, parts).values()
    assert _lists(answered) == _lists(value)
    assert threads
    assert all((each != threading.get_ident()) is aside for each in threads)


def _lists(value: Any) -> Any:
    return [_lists(each) for each in value] if isinstance(value, list) else value.tolist()


@pytest.mark.parametrize(
    ("values", "count"),
    [((), 0), ((texts(3),), 3), ((texts(3), [texts(2), [texts(1)]], np.zeros(9)), 6)],
)
def test_strings_are_counted_in_tensors_and_sequences(values: Sequence[Any], count: int) -> None:
    request = pb.InferRequest()
    encode_values({f"x{at}": each for at, each in enumerate(values)}, request.inputs, [])
    assert strings_in(request.inputs) == count


@pytest.mark.parametrize("size", [100, ATTACHMENT_BYTES, ATTACHMENT_BYTES + 1, SMALL_BYTES - 200])
def test_small_requests_of_a_stream_are_known_again_wherever_they_lie_in_a_message(
    size: int,
) -> None:
    def stream(*names: str, number: int) -> bytes:
        requests = []
        for name in names:
            request = pb.InferRequest(network="net", id=name)
            attachments: list[Any] = []
            encode_values({"x": np.full(size, number, np.uint8)}, request.inputs, attachments)
            requests.append(StreamRequest(request, attachments))
        return serialize_infer_stream_request(requests)

    inference = Inference(*[cast(Any, Mock())] * 3)
    for request in parse_infer_stream_request(stream("a", "b", number=1)).requests:
        inference.decode(*request)
    found = inference.layouts.read_stream(stream("c", "d", "e", number=2))
    assert found is not None
    decoded = [cast(Decoded, each) for each in found]
    assert [each.request.id for each in decoded] == ["c", "d", "e"]
    assert all(np.all(each.inputs["x"] == 2) for each in decoded)


def test_a_request_whose_attachments_were_taken_out_is_not_remembered() -> None:
    inference = Inference(*[cast(Any, Mock())] * 3)
    request = pb.InferRequest(network="net", id="a")
    attachments: list[Any] = []
    encode_values({"x": np.zeros(SMALL_BYTES, np.uint8)}, request.inputs, attachments)
    for _ in range(2):
        inference.decode(request, attachments)
    assert inference.layouts.read(request.SerializeToString()) is None
