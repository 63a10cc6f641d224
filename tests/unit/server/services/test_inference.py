"""Infer's requests and replies that take long to read and write."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.runtime.execution.job import Job
from headrace.server.services import inference as module
from headrace.server.services.inference import Inference, strings_in
from headrace.server.serving.completion_sink import CompletionSink
from headrace.server.serving.offload import HEAVY_ELEMENTS
from headrace.server.serving.serving import Serving
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import decode_values, encode_values
from headrace.wire.message import parse_infer_reply


class Echo:
    """Networks that answer with their input."""

    def acquire(self, *_: Any) -> Any:
        presentation = SimpleNamespace(max_batch_size=0, priority=0)
        return SimpleNamespace(
            record=SimpleNamespace(request=SimpleNamespace(presentation=presentation)),
            executable=SimpleNamespace(knows_callers=False),
        )

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
        return decode_values(*given)

    def build(*given: Any) -> Any:
        threads.append(threading.get_ident())
        return encode(*given)

    async def scenario() -> Any:
        networks: Any = Echo()
        regions: Any = None
        sink = CompletionSink(asyncio.get_running_loop())
        return await Inference(Serving(networks, sink, regions)).infer(message(value), context)

    threads: list[int] = []
    context: Any = Context()
    encode = module.encode
    monkeypatch.setattr(module, "decode_values", decode)
    monkeypatch.setattr(module, "encode", build)
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
