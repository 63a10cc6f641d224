"""More than the server can take: refused in order, nothing lost, nothing counted twice."""

from __future__ import annotations

import queue
import random
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import grpc
import h2.events
import h2.settings
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc

from headrace.testing import networks
from headrace.testing.case import Case, parse
from headrace.v1 import inference_engine_pb2 as pb
from headrace.v1 import inference_engine_pb2_grpc as rpc
from tests.integration.harness import (
    BASIC,
    CALL_SECONDS,
    Server,
    Stream,
    assert_settled,
    details_of,
    infer_request,
    outcome_of,
    until,
)
from tests.support.raw_http2 import Raw

CAPACITY = 8
REQUESTS = 10_000
OUTCOMES = {
    "OK": "completed",
    "CANCELLED": "cancelled",
    "DEADLINE_EXCEEDED": "expired",
}


@pytest.fixture(scope="module")
def small() -> Iterator[Server]:
    """A server whose devices have one stream and a short queue."""
    with Server(*BASIC, "--max-streams-in-flight", "512") as running:
        for device in running.devices():
            request = pb.SetConfigRequest(
                target=pb.Target(device=device),
                config={"NUM_STREAMS": "1", "QUEUE_CAPACITY": str(CAPACITY)},
            )
            running.stub.SetConfig(request, timeout=CALL_SECONDS)
        yield running
        assert running.stop() == 0, running.log()
        assert "Traceback" not in running.log(), running.log()


@pytest.fixture(params=["TEMPLATE", "CPU"])
def device(request: pytest.FixtureRequest, small: Server) -> str:
    if request.param not in small.devices():
        pytest.skip(f"{request.param} is not up on this server")
    return str(request.param)


def test_a_full_queue_refuses_with_a_delay_for_the_retry(small: Server, device: str) -> None:
    case = networks.endless()
    small.load(case, device)
    stream = Stream(small.stub)
    names = [f"r{number}" for number in range(CAPACITY + 3)]  # one runs, CAPACITY wait
    for name in names:
        stream.send(infer_request("endless", case.inputs, id=name))
    for refused in (stream.next(), stream.next()):
        details = details_of(refused.error)
        assert (details.code.name, details.reason) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")
        assert details.retry_delay_seconds is not None
        assert details.retry_delay_seconds > 0
        assert refused.id in names[-2:]
    stream.send(cancel=names)
    stream.done()
    assert {each.id: outcome_of(each) for each in stream.results} == dict.fromkeys(
        names[:-2], "CANCELLED"
    )
    assert_settled(small)
    assert (
        small.total("headrace_device_refused_total", device=f"{device}.0", reason="queue_full") == 2
    )
    small.unload("endless")


def test_no_reply_is_lost_or_doubled_and_every_counter_is_exact(small: Server, device: str) -> None:
    """Four streams send as fast as they can, cancel at random, and give some no time at all."""
    dice = random.Random(2)
    case = networks.add()
    name = f"flooded-{device}"
    small.load(case, device, name)
    refused_before = small.total("headrace_device_refused_total", device=f"{device}.0")
    template = infer_request(name, case.inputs)
    streams = [Stream(small.stub) for _ in range(4)]
    for number in range(0, REQUESTS, 10):
        requests = []
        for each in range(number, number + 10):
            request = pb.InferRequest()
            request.CopyFrom(template)
            request.id = f"r{each}"
            if dice.random() < 0.1:
                request.timeout_seconds = dice.choice((1e-6, 1e-4, 1e-3))
            requests.append(request)
        stream = streams[number // 10 % len(streams)]
        stream.send(*requests)
        stream.send(cancel=[each.id for each in requests if dice.random() < 0.1])
    for stream in streams:
        stream.done()
    results = [each for stream in streams for each in stream.results]
    assert sorted(each.id for each in results) == sorted(f"r{n}" for n in range(REQUESTS))
    outcomes = Counter(map(outcome_of, results))
    refused = outcomes.pop("RESOURCE_EXHAUSTED", 0)
    assert outcomes["OK"] > 0
    assert outcomes.keys() <= OUTCOMES.keys(), outcomes
    assert (
        small.total("headrace_device_refused_total", device=f"{device}.0") - refused_before
        == refused
    )
    assert small.total("headrace_network_accepted_total", network=name) == REQUESTS - refused
    for status, outcome in OUTCOMES.items():
        counted = small.total("headrace_network_requests_total", network=name, outcome=outcome)
        assert counted == outcomes[status], outcome
    assert_settled(small)
    small.unload(name)


def test_a_stream_that_breaks_the_protocol_cancels_what_it_had_in_flight(small: Server) -> None:
    case = networks.endless()
    small.load(case, "CPU")
    stream = Stream(small.stub)
    for number in range(CAPACITY + 2):
        stream.send(infer_request("endless", case.inputs, id=f"r{number}"))
    assert outcome_of(stream.next()) == "RESOURCE_EXHAUSTED"
    stream.send(*[pb.InferRequest()] * 5000)
    with pytest.raises(grpc.RpcError, match="more than 4096"):
        stream.next()
    small.unload("endless")  # returns when nothing of it runs any more
    assert_settled(small)


def test_a_caller_that_goes_away_cancels_what_it_had_in_flight(small: Server, device: str) -> None:
    case = networks.endless()
    small.load(case, device)
    stream = Stream(small.stub)
    for number in range(CAPACITY + 2):  # the refusal of the last says that all others are in
        stream.send(infer_request("endless", case.inputs, id=f"r{number}"))
    assert outcome_of(stream.next()) == "RESOURCE_EXHAUSTED"
    stream.call.cancel()
    small.unload("endless")  # returns when nothing of it runs any more
    assert_settled(small)


MANY = 40
"""Calls that each test keeps open, on a server that takes sixteen of each kind."""


@pytest.fixture(scope="module")
def sixteen() -> Iterator[Server]:
    with Server(*BASIC, "--max-concurrent-rpcs", "16") as running:
        running.load(networks.add(), "TEMPLATE")
        yield running
        assert running.stop() == 0, running.log()
        assert "Traceback" not in running.log(), running.log()


def watch(channel: Any, silence: Any) -> Any:
    return health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())


def infer_stream(channel: Any, silence: Any) -> Any:
    return channel.stream_stream("/headrace.v1.InferenceEngine/InferStream")(silence)


def upload(channel: Any, silence: Any) -> Any:
    return channel.stream_unary("/headrace.v1.InferenceEngine/UploadModel").future(silence)


def unfinished_infer(channel: Any, silence: Any) -> Any:
    """Headers without a message. Such a call takes no place until its message has come."""
    return channel.stream_unary("/headrace.v1.InferenceEngine/Infer").future(silence)


def unfinished_check(channel: Any, silence: Any) -> Any:
    return channel.stream_unary("/grpc.health.v1.Health/Check").future(silence)


def reflection(channel: Any, silence: Any) -> Any:
    return reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(silence)


PLACED_WITH_ITS_MESSAGE = pytest.mark.native_front_end("gRPC hands calls over at their headers")


@pytest.mark.parametrize(
    ("begin", "kept"),
    [
        (watch, 9),
        (infer_stream, 9),
        (upload, 9),
        pytest.param(unfinished_infer, MANY, marks=PLACED_WITH_ITS_MESSAGE),
        pytest.param(unfinished_check, MANY, marks=PLACED_WITH_ITS_MESSAGE),
        (reflection, 9),
    ],
)
def test_calls_that_one_connection_keeps_open_leave_others_their_places(
    sixteen: Server, begin: Any, kept: int
) -> None:
    """Others are refused nothing: neither inference, nor streams, nor health."""
    case = networks.add()
    silence: queue.SimpleQueue[Any] = queue.SimpleQueue()  # what the calls send: nothing
    ended = partial(sixteen.total, "headrace_grpc_requests_total")
    before = ended()
    with closing(sixteen.connect()) as greedy, closing(sixteen.connect()) as other:
        calls = [begin(greedy, iter(silence.get, None)) for _ in range(MANY)]
        until(
            lambda: sum(call.is_active() for call in calls) == kept, "all others were to be refused"
        )
        codes = {call.code().name for call in calls if not call.is_active()}
        assert codes == ({"RESOURCE_EXHAUSTED"} if kept < MANY else set())
        stub = rpc.InferenceEngineStub(other)  # type: ignore[no-untyped-call]
        stub.Infer(infer_request("add", case.inputs), timeout=CALL_SECONDS)
        stream = Stream(stub)
        stream.send(infer_request("add", case.inputs, id="r"))
        assert outcome_of(stream.next()) == "OK"
        stream.done()
        health = health_pb2_grpc.HealthStub(other)
        asked = health_pb2.HealthCheckRequest()
        serving = health_pb2.HealthCheckResponse.SERVING
        assert health.Check(asked, timeout=CALL_SECONDS).status == serving
        watched = health.Watch(asked, timeout=CALL_SECONDS)
        assert next(watched).status == serving
        watched.cancel()
        for _ in calls:
            silence.put(None)
        for call in calls:
            if begin is watch:
                call.cancel()
            call.code()  # the others end with their messages
    # The next test finds all places free: those, and the four of the other connection's calls.
    until(lambda: ended() == before + MANY + 4, "the server was to hear that all calls had ended")


@pytest.fixture(scope="module")
def narrow() -> Iterator[Server]:
    """A server that takes sixteen calls, and messages of two mebibytes."""
    bounds = ("--max-concurrent-rpcs", "16", "--max-message-bytes", str(2 << 20))
    with Server(*BASIC, *bounds) as running:
        running.load(networks.add(), "TEMPLATE")
        running.load(SPREAD, "TEMPLATE")
        yield running
        assert running.stop() == 0, running.log()
        assert "Traceback" not in running.log(), running.log()


SPREAD = Case(
    "spread",
    parse(
        "spread (float[n,1,1] a, float[1,m,1] b, float[1,1,k] c) => (float[n,m,k] y) "
        "{ d = Add(a, b) y = Add(d, c) }"
    ),
    {
        "a": np.ones((80, 1, 1), np.float32),
        "b": np.ones((1, 80, 1), np.float32),
        "c": np.ones((1, 1, 80), np.float32),
    },
)
"""Its reply takes two megabytes, and its request little."""


@pytest.mark.parametrize(("case", "kept"), [(networks.add(), 9), (SPREAD, 5)])
def test_a_call_keeps_its_place_and_its_bytes_until_its_reply_is_read(
    narrow: Server, case: Case, kept: int
) -> None:
    """Otherwise one connection that reads nothing fills the server's memory with replies."""
    data = infer_request(case.name, case.inputs).SerializeToString()
    message = struct.pack(">BI", 0, len(data)) + data

    def ended(code: str) -> float:
        return narrow.total("headrace_grpc_requests_total", method="Infer", code=code)

    before = ended("OK"), ended("RESOURCE_EXHAUSTED")
    with Raw(narrow.address) as greedy, closing(narrow.connect()) as other:
        greedy.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
        greedy.flush()
        greedy.events(h2.events.SettingsAcknowledged)
        calls = [greedy.headers(path="/headrace.v1.InferenceEngine/Infer") for _ in range(MANY)]
        for call in calls:
            greedy.h2.send_data(call, message, end_stream=True)
        greedy.flush()
        until(lambda: ended("OK") + ended("RESOURCE_EXHAUSTED") >= sum(before) + MANY)
        assert ended("OK") - before[0] == kept, "all others are refused"
        stub = rpc.InferenceEngineStub(other)  # type: ignore[no-untyped-call]
        stub.Infer(infer_request(case.name, case.inputs), timeout=CALL_SECONDS)
        for call in calls:
            greedy.h2.reset_stream(call)
        greedy.h2.ping(bytes(8))
        greedy.flush()
        greedy.events(h2.events.PingAckReceived)  # by now all places are free


def test_a_burst_of_calls_ends_with_replies_and_refusals_alone(small: Server) -> None:
    """gRPC's core ends calls as CANCELLED of which it has more than Python has taken."""
    case = networks.add()
    small.load(case, "CPU", "burst")
    request = infer_request("burst", case.inputs).SerializeToString()
    channels = [small.connect() for _ in range(4)]
    calls = [
        channels[number % len(channels)]
        .unary_unary("/headrace.v1.InferenceEngine/Infer")
        .future(request, timeout=CALL_SECONDS)
        for number in range(4000)
    ]
    codes = Counter(call.code().name for call in calls)
    assert codes.keys() <= {"OK", "RESOURCE_EXHAUSTED", "UNAVAILABLE"}, codes
    assert codes["OK"] > 0
    for channel in channels:
        channel.close()
    small.unload("burst")
    assert_settled(small)
