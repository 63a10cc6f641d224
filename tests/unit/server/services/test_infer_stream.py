"""InferStream's order of events, where a caller that reads slowly, or not at all, decides it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias

import numpy as np
import onnx_ir as ir
import pytest

from headrace.runtime.errors import Unavailable
from headrace.runtime.execution.job import Job
from headrace.runtime.metrics.counters import Counters
from headrace.runtime.network.network import Port
from headrace.server.services.infer_stream import InferStreams
from headrace.server.services.inference import part_spans
from headrace.server.serving.call import InferCall
from headrace.server.serving.completion_sink import CompletionSink
from headrace.server.serving.layouts import CallLayouts
from headrace.server.serving.offload import HEAVY_ELEMENTS
from headrace.server.transport.boundary import Boundary
from headrace.server.transport.call import Take, deliver_one_by_one
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import ATTACHMENT_BYTES, CodecError, encode_values
from headrace.wire.errors import from_status
from headrace.wire.message import SMALL_BYTES
from headrace.wire.stream import (
    StreamRequest,
    StreamResult,
    parse_infer_stream_reply,
    serialize_infer_stream_request,
)

Shape: TypeAlias = tuple[int | str | None, ...] | None

GARBAGE = b"\xff\xff"
RESULT_BYTES = 1 << 20


class Declared:
    """A network with one input and one output. Its shapes are those that it declares."""

    def __init__(self, x: Shape, y: Shape) -> None:
        self.inputs = (Port("x", ir.DataType.UINT8, x),)
        self.outputs = (Port("y", ir.DataType.UINT8, y),)
        self.executable = self

    def find(self, _name: str, _version: str) -> Declared:
        return self


class Echo:
    """Inference whose every request is completed at once with a mebibyte."""

    def __init__(self, x: Shape = (), y: Shape = None) -> None:
        self.networks = Declared(x, y)
        self.sink = CompletionSink(asyncio.get_running_loop())
        self.elsewhere = None
        self.started = 0

    def find_elsewhere(self, *_: Any) -> str:
        return ""

    def start(self, _call: InferCall, _remaining: Any, done: Callable[[Job], None]) -> Job:
        self.started += 1
        job = Job({}, done, output_names=("y",))
        job.outputs = {"y": np.zeros(RESULT_BYTES, np.uint8)}
        job.complete()
        return job


class Endless(Echo):
    """Inference whose requests never end."""

    def start(self, _call: InferCall, _remaining: Any, done: Callable[[Job], None]) -> Job:
        return Job({}, done, output_names=("y",))


class Texts(Echo):
    """Inference whose first request is completed with many texts, and each later one with none."""

    def start(self, _call: InferCall, _remaining: Any, done: Callable[[Job], None]) -> Job:
        job = Job({}, done, output_names=("y",))
        count = 0 if self.started else HEAVY_ELEMENTS + 1
        self.started += 1
        job.outputs = {"y": np.array([Text("a")] * count, object)}
        job.complete()
        return job


class Text(str):
    """Knows which threads have encoded such texts."""

    __slots__ = ()
    threads: ClassVar[set[int]] = set()

    def encode(self, *how: Any) -> bytes:
        self.threads.add(threading.get_ident())
        return super().encode(*how)


class Sink:
    """Delivers what is completed after whatever is being done."""

    def __init__(self, soon: Callable[..., object]) -> None:
        self.put = soon


class Held:
    """Delivers what is completed when it is told to, and from then on at once."""

    def __init__(self) -> None:
        self._kept: list[tuple[Callable[[Job], None], Job]] = []
        self._keeps = True

    def put(self, deliver: Callable[[Job], None], job: Job) -> None:
        if self._keeps:
            self._kept.append((deliver, job))
        else:
            asyncio.get_running_loop().call_soon(deliver, job)

    def release(self) -> None:
        self._keeps = False
        for deliver, job in self._kept:
            deliver(job)


class Caller:
    """Sends messages, and reads only while `reads` is set."""

    def __init__(self, *messages: bytes, more: bool = False, peer: str = "ipv4:10.0.0.1:1") -> None:
        self._messages = list(messages)
        self._more = more
        self._peer = peer
        self.reads = asyncio.Event()
        self.asked = asyncio.Event()
        self.writing = asyncio.Event()
        self.results: list[StreamResult] = []

    def peer(self) -> str:
        return self._peer

    def time_remaining(self) -> None:
        return None

    async def read(self) -> Any:
        if self._messages:
            return self._messages.pop(0)
        self.asked.set()
        if self._more:
            await asyncio.Event().wait()
        return None

    async def deliver(self, take: Take) -> None:
        call: Any = self
        await deliver_one_by_one(call, take)

    def try_write(self, message: bytes) -> bool:
        return False

    async def write(self, message: bytes) -> None:
        self.writing.set()
        await self.reads.wait()
        self.writing.clear()
        self.results += parse_infer_stream_reply(message).results


def message(*identifiers: str, x: np.ndarray | None = None) -> bytes:
    requests = [pb.InferRequest(network="net", id=each) for each in identifiers]
    for each in requests if x is not None else ():
        encode_values({"x": x}, each.inputs, [])
    return pb.InferStreamRequest(requests=requests).SerializeToString()


def streams(max_stream_bytes: int = 1 << 30, x: Shape = (), y: Shape = None) -> InferStreams:
    """Those of a network that declares these shapes. By default nothing is known of its output."""
    serving: Any = Echo(x, y)
    return InferStreams(
        serving, CallLayouts(part_spans), Boundary(Counters(), 100), 256, max_stream_bytes
    )


def code(result: StreamResult) -> str:
    return "OK" if result.error is None else str(from_status(result.error).code.name)


def test_a_result_that_is_ready_is_written_before_the_next_message_is_asked_for() -> None:
    class Asking(Caller):
        async def read(self) -> Any:
            begun.append(self.writing.is_set())
            return await super().read()

        async def write(self, message: bytes) -> None:
            self.writing.set()
            await asyncio.sleep(0)
            await super().write(message)

    async def scenario() -> None:
        caller = Asking(message("a"))
        caller.reads.set()
        await streams().serve(caller)
        assert [each.id for each in caller.results] == ["a"]

    begun: list[bool] = []
    asyncio.run(scenario())
    assert begun == [False, True]


def test_a_reply_of_many_texts_is_encoded_on_another_thread_and_holds_up_no_other() -> None:
    async def scenario() -> None:
        serving: Any = Texts()
        owner = InferStreams(
            serving, CallLayouts(part_spans), Boundary(Counters(), 100), 256, 1 << 30
        )
        caller = Caller(message("many", "none"))
        caller.reads.set()
        await owner.serve(caller)
        assert [(each.id, code(each)) for each in caller.results] == [
            ("none", "OK"),
            ("many", "OK"),
        ]

    Text.threads.clear()
    asyncio.run(scenario())
    assert Text.threads
    assert threading.get_ident() not in Text.threads


def test_an_error_ends_the_stream_only_when_no_message_is_being_written() -> None:
    async def scenario() -> None:
        caller = Caller(message("a"), GARBAGE)
        serving = asyncio.create_task(streams().serve(caller))
        await caller.writing.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not serving.done(), "gRPC takes no status beside a message"
        caller.reads.set()
        with pytest.raises(CodecError):
            await serving
        assert not caller.writing.is_set()

    asyncio.run(scenario())


def test_the_end_of_the_server_ends_a_stream_only_when_all_is_written() -> None:
    async def scenario() -> None:
        owner, caller = streams(), Caller(message("a"), more=True)
        serving = asyncio.create_task(owner.serve(caller))
        await caller.writing.wait()
        draining = asyncio.create_task(owner.drain())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not serving.done()
        caller.reads.set()
        with pytest.raises(Unavailable):
            await serving
        await draining
        assert [each.id for each in caller.results] == ["a"]

    asyncio.run(scenario())


def test_a_stream_that_its_caller_has_ended_ends_well_although_the_server_stops() -> None:
    async def scenario() -> None:
        owner, caller = streams(), Caller(message("a"))
        serving = asyncio.create_task(owner.serve(caller))
        await caller.writing.wait()
        await caller.asked.wait()
        draining = asyncio.create_task(owner.drain())
        await asyncio.sleep(0)
        caller.reads.set()
        await serving
        await draining

    asyncio.run(scenario())


def test_a_stream_that_is_not_read_is_not_read_from_once_its_share_is_used() -> None:
    async def scenario() -> None:
        owner = streams(16 * RESULT_BYTES)
        caller = Caller(*(message(f"r{number}") for number in range(100)))
        serving = asyncio.create_task(owner.serve(caller))
        await caller.writing.wait()
        for _ in range(200):
            await asyncio.sleep(0)
        assert not caller.asked.is_set()
        assert owner.serving.started < 4  # type: ignore[attr-defined]
        assert owner.memory.taken <= owner.memory.capacity
        caller.reads.set()
        await serving
        assert [code(each) for each in caller.results] == ["OK"] * 100, "and none of them failed"
        assert owner.memory.taken == 0

    asyncio.run(scenario())


SQUARE = np.zeros(1024, np.uint8)
"""A result has the square of its bytes."""


@pytest.mark.parametrize(
    ("x", "y"),
    [
        pytest.param((1024,), (RESULT_BYTES,), id="fixed"),
        pytest.param(("n",), ("n", "n"), id="symbols"),
    ],
)
def test_room_for_a_result_whose_size_is_declared_is_reserved_before_there_is_one(
    x: Shape, y: Shape
) -> None:
    async def scenario() -> None:
        owner = streams(32 * RESULT_BYTES, x, y)
        requests = [f"r{number}" for number in range(20)]
        caller = Caller(message(*requests, x=SQUARE), *(message(f"{each}s") for each in requests))
        held = held_back(owner)
        serving = asyncio.create_task(owner.serve(caller))
        for _ in range(200):
            await asyncio.sleep(0)
        started = owner.serving.started  # type: ignore[attr-defined]
        assert 1 <= started <= 3, "an eighth of what is left has room for the results of so many"
        held.release()
        caller.reads.set()
        await serving
        assert [code(each) for each in caller.results] == ["OK"] * 40
        assert owner.memory.taken == 0

    asyncio.run(scenario())


def test_some_requests_with_results_of_unknown_size_begin_before_there_is_a_result() -> None:
    async def scenario() -> None:
        owner = streams(512 * RESULT_BYTES)
        caller = Caller(message(*(f"r{number}" for number in range(200))))
        held = held_back(owner)
        serving = asyncio.create_task(owner.serve(caller))
        for _ in range(200):
            await asyncio.sleep(0)
        assert 6 <= owner.serving.started <= 8  # type: ignore[attr-defined]
        held.release()
        caller.reads.set()
        await serving
        assert [code(each) for each in caller.results] == ["OK"] * 200
        assert owner.memory.taken == 0

    asyncio.run(scenario())


def test_a_result_for_which_there_is_no_room_is_an_error_and_the_stream_goes_on() -> None:
    async def scenario() -> None:
        owner = streams(8 * RESULT_BYTES, y=(16,))  # which is not true
        caller = Caller(message(*(f"r{number}" for number in range(20))))
        soon = asyncio.get_running_loop().call_soon
        owner.serving.sink = Sink(soon)  # type: ignore[assignment]
        serving = asyncio.create_task(owner.serve(caller))
        await caller.asked.wait()
        assert owner.memory.taken <= owner.memory.capacity
        caller.reads.set()
        await serving
        codes = [code(each) for each in caller.results]
        assert len(codes) == 20
        assert set(codes) == {"OK", "RESOURCE_EXHAUSTED"}
        assert owner.memory.taken == 0

    asyncio.run(scenario())


def test_streams_that_are_not_read_leave_room_for_others() -> None:
    async def scenario() -> None:
        owner = streams(32 * RESULT_BYTES)
        idle = [
            Caller(*(message(f"r{number}") for number in range(100)), peer=f"ipv4:10.0.0.{host}:1")
            for host in range(5)
        ]
        serving = [asyncio.create_task(owner.serve(caller)) for caller in idle]
        for caller in idle:
            await caller.writing.wait()
        for _ in range(500):
            await asyncio.sleep(0)
        good = Caller(message("good"), peer="ipv4:10.0.0.9:1")
        good.reads.set()
        await owner.serve(good)
        assert [code(each) for each in good.results] == ["OK"]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        assert owner.memory.taken == 0, "what nobody will read is given back"

    asyncio.run(scenario())


def test_a_reply_that_cannot_be_made_is_its_request_s_error() -> None:
    async def scenario() -> None:
        owner, caller = streams(), Caller(message("a", "b"))
        start = owner.serving.start

        def spoil(call: InferCall, remaining: Any, done: Callable[[Job], None]) -> Job:
            def spoilt(job: Job) -> None:
                if call.id == "a":
                    job.outputs = {}
                done(job)

            return start(call, remaining, spoilt)

        owner.serving.start = spoil  # type: ignore[method-assign, assignment]
        caller.reads.set()
        await owner.serve(caller)
        assert {each.id: code(each) for each in caller.results} == {"a": "INTERNAL", "b": "OK"}

    asyncio.run(scenario())


def held_back(owner: InferStreams) -> Held:
    held = Held()
    owner.serving.sink = held  # type: ignore[assignment]
    return held


def test_room_that_was_reserved_for_a_result_stays_although_others_took_the_rest() -> None:
    class Late(Caller):
        async def read(self) -> Any:
            if len(self._messages) == 1:
                await go.wait()
            return await super().read()

    async def scenario() -> None:
        owner = streams(64 * RESULT_BYTES)
        caller = Late(message("a"), message("b"), more=True)
        serving = asyncio.create_task(owner.serve(caller))
        await caller.writing.wait()
        held = held_back(owner)
        go.set()
        await caller.asked.wait()
        assert owner.memory.take("ipv4:10.0.0.2:1", 52 * RESULT_BYTES)
        held.release()
        caller.reads.set()
        while len(caller.results) < 2:
            await asyncio.sleep(0)
        assert [code(each) for each in caller.results] == ["OK", "OK"]
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    go = asyncio.Event()
    asyncio.run(scenario())


def test_a_request_that_is_refused_after_it_has_waited_is_told_so() -> None:
    async def scenario() -> None:
        serving: Any = Echo((), None)
        owner = InferStreams(
            serving, CallLayouts(part_spans), Boundary(Counters(), 100), 1, 1 << 30
        )
        held = held_back(owner)
        caller = Caller(message("a", ""), more=True)  # an id is never empty
        caller.reads.set()
        serving = asyncio.create_task(owner.serve(caller))
        for _ in range(50):
            await asyncio.sleep(0)
        assert caller.results == []
        held.release()
        for _ in range(50):
            await asyncio.sleep(0)
        assert [code(each) for each in caller.results] == ["OK", "INVALID_ARGUMENT"]
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(scenario())


def test_a_message_of_many_requests_leaves_turns_of_the_loop_to_other_callers() -> None:
    async def scenario() -> None:
        serving: Any = Echo((1,), (1,))
        owner = InferStreams(
            serving, CallLayouts(part_spans), Boundary(Counters(), 100), 4096, 1 << 30
        )
        caller = Caller(message(*map(str, range(500))))
        caller.reads.set()
        stream = asyncio.create_task(owner.serve(caller))
        begun = [0]
        while not stream.done():
            await asyncio.sleep(0)
            begun.append(serving.started)
        await stream
        assert max(later - before for before, later in pairwise(begun)) <= 64
        assert begun[-1] == 500

    asyncio.run(scenario())


def test_refusals_among_many_requests_of_a_message_come_while_the_stream_is_open() -> None:
    class Quick(Caller):
        def try_write(self, message: bytes) -> bool:
            self.results += parse_infer_stream_reply(message).results
            return True

    async def scenario() -> None:
        caller = Quick(message(*["same"] * 200), more=True)
        held: Any = Endless((1,), (1,))
        owner = InferStreams(
            held, CallLayouts(part_spans), Boundary(Counters(), 100), 4096, 1 << 30
        )
        stream = asyncio.create_task(owner.serve(caller))
        while len(caller.results) < 199:
            await asyncio.sleep(0)
        assert {code(each) for each in caller.results} == {"INVALID_ARGUMENT"}
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), 30))


@pytest.mark.parametrize("size", [100, ATTACHMENT_BYTES, ATTACHMENT_BYTES + 1, SMALL_BYTES - 200])
def test_small_requests_are_known_again_wherever_they_lie_in_a_message(size: int) -> None:
    def data(*names: str, number: int) -> bytes:
        requests = []
        for name in names:
            request = pb.InferRequest(network="net", id=name)
            attachments: list[Any] = []
            encode_values({"x": np.full(size, number, np.uint8)}, request.inputs, attachments)
            requests.append(StreamRequest(request, attachments))
        return serialize_infer_stream_request(requests)

    async def scenario() -> None:
        owner = streams()
        caller = Caller(data("a", "b", number=1), data("c", "d", "e", number=2))
        caller.reads.set()
        started: list[InferCall] = []
        start = owner.serving.start

        def note(call: InferCall, remaining: Any, done: Callable[[Job], None]) -> Job:
            started.append(call)
            return start(call, remaining, done)

        owner.serving.start = note  # type: ignore[method-assign, assignment]
        stream: Any = owner._stream(caller)
        for each in caller._messages:
            read = stream._requests(each)
            for request in read:
                stream._begin(request, request.id if isinstance(request, InferCall) else "x")
        assert [isinstance(each, InferCall) for each in read] == [True] * 3
        assert [each.id for each in started] == ["a", "b", "c", "d", "e"]
        assert [int(np.asarray(each.inputs["x"])[0]) for each in started] == [1, 1, 2, 2, 2]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "more",
    [
        pb.InferStreamRequest(requests=[pb.InferRequest(network="other", id="z")]),
        pb.InferStreamRequest(cancel=["a"]),
        pb.InferStreamRequest(ask_limits=True),
    ],
    ids=["another request", "cancel", "limits"],
)
def test_any_other_message_is_parsed(more: pb.InferStreamRequest) -> None:
    async def scenario() -> None:
        stream: Any = streams()._stream(Caller())
        known = message("a", x=np.zeros(4, np.uint8))
        for _ in range(2):
            (request,) = stream._requests(known)
            stream._decoded(request)
        (call,) = stream._requests(known)
        assert isinstance(call, InferCall)
        read = stream._requests(known + more.SerializeToString())
        assert not any(isinstance(each, InferCall) for each in read)

    asyncio.run(scenario())
