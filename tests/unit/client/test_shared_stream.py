"""Requests that share a stream, of both clients: each is as it would be in a call of its own."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from headrace.client import Client, errors
from headrace.client.multiplex.threads.stream import Stream
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.errors import ErrorDetails
from tests.support.client_fake import ENDLESS, KINDS, REFUSED, Fake, connected, eventually, running

IN_FLIGHT = 8
WAIT_SECONDS = 60.0


@pytest.fixture
def fake() -> Iterator[Fake]:
    with running() as server:
        server.limits = pb.StreamLimits(in_flight=IN_FLIGHT)
        yield server


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(kind: str, fake: Fake) -> Iterator[Any]:
    with connected(kind, fake.target) as made:
        yield made


@pytest.fixture
def network(client: Any, fake: Fake) -> Any:
    """A network of a client that shares its stream."""
    found = client.network("echo")
    share(found, fake)
    return found


def x(value: float) -> dict[str, Any]:
    return {"x": np.array([[value]], np.float32)}


def value(outputs: Any) -> float:
    return float(outputs["y"][0, 0])


def shared(fake: Fake) -> list[pb.InferRequest]:
    """The requests that have come over streams."""
    return [each for message in fake.requests("message") for each in message.requests]


def share(network: Any, fake: Fake) -> None:
    """Sends requests until one goes over a stream."""
    before = len(shared(fake))

    def goes() -> bool:
        assert value(network.infer(x(1))) == 1
        return len(shared(fake)) > before

    assert eventually(goes)


def test_requests_go_over_one_stream_once_it_has_answered(network: Any, fake: Fake) -> None:
    alone = len(fake.requests("Infer"))
    for number in range(10):
        assert value(network.infer(x(number))) == number
    assert len(fake.requests("Infer")) == alone
    assert len(fake.requests("InferStream")) == 1
    identifiers = [each.id for each in shared(fake)]
    assert len(set(identifiers)) == len(identifiers)


def test_requests_that_wait_together_travel_together(network: Any, fake: Fake) -> None:
    requests = [network.start_async(x(number)) for number in range(IN_FLIGHT)]
    assert [value(each.result()) for each in requests] == list(range(IN_FLIGHT))


def test_an_older_server_gets_a_call_for_each_request(client: Any, fake: Fake) -> None:
    fake.limits = None
    network = client.network("echo")
    for number in range(20):
        assert value(network.infer(x(number))) == number
    assert len(fake.requests("Infer")) == 20
    assert not shared(fake)


def test_a_program_of_few_requests_opens_no_stream(client: Any, fake: Fake) -> None:
    client.network("echo").infer(x(1))
    assert not fake.requests("InferStream")


def test_a_bad_request_among_good_ones_fails_alone_with_all_details(
    network: Any, fake: Fake
) -> None:
    requests = [network.start_async(x(each)) for each in (1, REFUSED, 3)]
    assert value(requests[0].result()) == 1
    assert value(requests[2].result()) == 3
    with pytest.raises(errors.InvalidArgument, match="x is negative") as caught:
        requests[1].result()
    details = caught.value.details
    assert (details.reason, details.field, details.metadata) == (
        "NEGATIVE",
        "inputs['x']",
        {"x": "-1"},
    )
    assert shared(fake)[-1].inputs, "it went over the stream"


def test_a_full_queue_says_when_to_try_again_and_infer_does(network: Any, fake: Fake) -> None:
    full = ErrorDetails(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "full", reason="QUEUE_FULL", retry_delay_seconds=0.01
    )
    fake.refusals.append(full)
    with pytest.raises(errors.ResourceExhausted) as caught:
        network.infer(x(1))
    assert caught.value.details.retry_delay_seconds == 0.01
    fake.refusals.append(full)
    assert value(network.infer(x(2), retry_when_full=True)) == 2


def test_a_request_that_the_server_could_not_take_is_sent_again(network: Any, fake: Fake) -> None:
    alone = len(fake.requests("Infer"))
    fake.refusals.append(ErrorDetails(grpc.StatusCode.UNAVAILABLE, "stopping"))
    assert value(network.infer(x(5))) == 5
    fake.refusals.append(ErrorDetails(grpc.StatusCode.UNAVAILABLE, "stopping"))
    assert value(network.start_async(x(6)).result()) == 6
    assert len(fake.requests("Infer")) == alone + 2


def test_requests_of_a_stream_that_breaks_are_sent_again(network: Any, fake: Fake) -> None:
    fake.failures.append(ErrorDetails(grpc.StatusCode.INTERNAL, "RST_STREAM"))
    requests = [network.start_async(x(number)) for number in range(4)]
    assert [value(each.result()) for each in requests] == [0, 1, 2, 3]
    assert value(network.infer(x(7))) == 7
    assert len(fake.requests("InferStream")) == 1, "it is tried again only later"


def test_a_request_of_a_session_is_not_sent_again(client: Any, fake: Fake, network: Any) -> None:
    session = client.network("stateful").session()
    assert value(session.infer(x(1))) == 1
    assert shared(fake)[-1].session.start
    alone = len(fake.requests("Infer"))
    fake.refusals.append(ErrorDetails(grpc.StatusCode.UNAVAILABLE, "no", reason="UNAVAILABLE"))
    with pytest.raises(errors.Unavailable):
        session.infer(x(2))
    fake.failures.append(ErrorDetails(grpc.StatusCode.INTERNAL, "RST_STREAM"))
    with pytest.raises(errors.Unavailable):
        session.infer(x(3))
    assert len(fake.requests("Infer")) == alone
    assert value(session.infer(x(4))) == 4


def test_more_than_the_stream_takes_go_in_calls_of_their_own(network: Any, fake: Fake) -> None:
    stuck = [network.start_async(x(ENDLESS)) for _ in range(IN_FLIGHT)]
    alone = len(fake.requests("Infer"))
    assert value(network.infer(x(3))) == 3
    assert len(fake.requests("Infer")) == alone + 1
    for each in stuck:
        each.cancel()


def test_a_large_request_goes_in_a_call_of_its_own(network: Any, fake: Fake) -> None:
    alone, over = len(fake.requests("Infer")), len(shared(fake))
    large = np.ones((1, 100_000), np.float32)
    assert network.infer({"x": large})["y"].shape == large.shape
    assert (len(fake.requests("Infer")), len(shared(fake))) == (alone + 1, over)


def test_a_cancelled_request_raises_and_the_server_is_told(network: Any, fake: Fake) -> None:
    request = network.start_async(x(ENDLESS))
    assert eventually(lambda: not request.wait(0.01) and _first(shared(fake)[-1]) == ENDLESS)
    identifier = shared(fake)[-1].id
    assert request.cancel()
    assert request.wait(WAIT_SECONDS)
    with pytest.raises(errors.Cancelled):
        request.result()

    def told() -> bool:
        network.infer(x(1))
        return identifier in [
            each for message in fake.requests("message") for each in message.cancel
        ]

    assert eventually(told)


def test_a_timeout_holds_although_the_server_says_nothing(network: Any, fake: Fake) -> None:
    with pytest.raises(errors.DeadlineExceeded):
        network.infer(x(ENDLESS), timeout=0.05)
    share(network, fake)  # the server has been asked again, and has answered
    request = network.start_async(x(ENDLESS), timeout=0.05)
    with pytest.raises(errors.DeadlineExceeded):
        request.result()
    share(network, fake)
    sent = [each.timeout_seconds for each in shared(fake) if _first(each) == ENDLESS]
    assert all(0.04 < each < 0.06 for each in sent)
    assert len(fake.requests("InferStream")) == 1


def test_each_request_ends_at_its_own_time(network: Any) -> None:
    timeouts = WAIT_SECONDS, 0.2, 0.05, WAIT_SECONDS
    requests = [network.start_async(x(ENDLESS), timeout=each) for each in timeouts]
    for each in (requests[2], requests[1]):
        with pytest.raises(errors.DeadlineExceeded):
            each.result()
    assert not any(requests[each].wait(0) for each in (0, 3))
    for each in (requests[0], requests[3]):
        assert each.cancel()


def test_a_new_token_takes_a_new_stream(kind: str, fake: Fake) -> None:
    token = ["first"]
    with connected(kind, fake.target, token=lambda: token[0]) as client:
        network = client.network("echo")
        for number in range(100):
            assert value(network.infer(x(number))) == number
        assert len(fake.requests("InferStream")) == 1
        token[0] = "second"
        share(network, fake)
        assert len(fake.requests("InferStream")) == 2
        token[0] = "third"  # a stream that carries a few requests is not worth it
        for number in range(5):
            assert value(network.infer(x(number))) == number
        assert len(fake.requests("InferStream")) == 2


def test_small_clients_share_no_stream(kind: str, fake: Fake) -> None:
    with connected(kind, fake.target, max_message_bytes=1 << 20) as client:
        network = client.network("echo")
        for number in range(10):
            network.infer(x(number))
    assert not fake.requests("InferStream")


def test_closing_cancels_what_is_in_flight(fake: Fake) -> None:
    with Client(fake.target) as client:
        network = client.network("echo")
        share(network, fake)
        request = network.start_async(x(ENDLESS))
    with pytest.raises(errors.Cancelled):
        request.result()
    with pytest.raises(errors.FailedPrecondition, match="closed"):
        network.infer(x(1))


def assert_a_callback_may_call_infer(fake: Fake, first: dict[str, Any], seconds: float) -> None:
    """`first` are the inputs of the request whose callback calls `infer`."""
    with Client(fake.target) as client:
        network = client.network("echo")
        share(network, fake)
        found: list[float] = []
        ended = threading.Event()

        def again(_: object) -> None:
            found.append(value(network.infer(x(2), timeout=WAIT_SECONDS)))
            ended.set()

        network.start_async(first).add_done_callback(again)
        assert ended.wait(seconds)
        assert found == [2]


def test_a_callback_may_call_infer(fake: Fake) -> None:
    assert_a_callback_may_call_infer(fake, x(1), WAIT_SECONDS)


def test_a_callback_on_grpcs_thread_may_call_infer(fake: Fake) -> None:
    """A request in a call of its own ends on the thread that receives the stream's results, too."""
    large = {"x": np.ones((1, 100_000), np.float32)}
    assert_a_callback_may_call_infer(fake, large, WAIT_SECONDS / 2)


def test_an_abandoned_client_leaves_no_thread(fake: Fake) -> None:
    before = set(threading.enumerate())
    client = Client(fake.target)
    network = client.network("echo")
    share(network, fake)
    network.start_async(x(1)).result()
    assert [each for each in threading.enumerate() if each.name == "headrace-results"]
    del client, network
    gc.collect()
    ours = ("headrace-results", "headrace-deadlines")
    assert eventually(
        lambda: not [each for each in set(threading.enumerate()) - before if each.name in ours]
    )


@pytest.mark.parametrize("busy", [False, True])
def test_a_closed_client_has_no_thread_and_no_call(
    fake: Fake, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[weakref.ref[Any]] = []
    run = Stream._run

    def noted(self: Stream, opens: Any) -> None:
        def starts(deserialize: Any) -> Any:
            def start(*args: Any, **kwargs: Any) -> Any:
                call = opens(deserialize)(*args, **kwargs)
                calls.append(weakref.ref(call))
                return call

            return start

        run(self, starts)

    monkeypatch.setattr(Stream, "_run", noted)
    before = set(threading.enumerate())
    client = Client(fake.target)
    network = client.network("echo")
    share(network, fake)
    if busy:
        for _ in range(4):
            network.start_async(x(ENDLESS))
    client.close()
    ours = [each for each in set(threading.enumerate()) - before if "headrace" in each.name]
    assert not ours
    assert [call() for call in calls] == [None]


def test_a_callback_may_close_the_client(fake: Fake) -> None:
    client = Client(fake.target)
    network = client.network("echo")
    share(network, fake)
    ended = threading.Event()

    def close(_: object) -> None:
        client.close()
        ended.set()

    request = network.start_async(x(1))
    request.add_done_callback(close)
    assert ended.wait(WAIT_SECONDS)
    assert value(request.result()) == 1
    with pytest.raises(errors.FailedPrecondition, match="closed"):
        network.infer(x(1))


def test_requests_end_in_time_although_nobody_reads_results(fake: Fake) -> None:
    """A callback that blocks keeps the stream's results from everybody."""
    with Client(fake.target) as client:
        network = client.network("echo")
        share(network, fake)
        blocked, go_on = threading.Event(), threading.Event()

        def block(_: object) -> None:
            if threading.current_thread().name == "headrace-results":
                blocked.set()
                go_on.wait(WAIT_SECONDS)

        def blocks() -> bool:
            network.start_async(x(1)).add_done_callback(block)  # runs here if it has ended
            return blocked.wait(0.01)

        assert eventually(blocks)
        with pytest.raises(errors.DeadlineExceeded):
            network.infer(x(2), timeout=0.05)
        alone = len(fake.requests("Infer"))
        assert value(network.infer(x(3))) == 3
        assert len(fake.requests("Infer")) == alone + 1
        go_on.set()
        share(network, fake)


EXITS = """
import sys, threading
import numpy as np
from headrace.client import Client
from headrace.client.multiplex.threads.exits import close_at_exit

class Bad:
    def close(self): raise ValueError

sys.setswitchinterval(1e-6)
bad = Bad()
close_at_exit(bad)
X = {"x": np.ones((1, 4), np.float32)}
client = Client(sys.argv[1])
network = client.network("echo")

def ask():
    for _ in range(6):
        network.infer(X)

threads = [threading.Thread(target=ask) for _ in range(32)]
for each in threads: each.start()
for each in threads: each.join()
if sys.argv[2] == "closed":
    client.close()
elif sys.argv[2] == "busy":
    requests = [network.start_async(X, timeout=60) for _ in range(200)]
    many = network.infer_many(X for _ in range(1000))
    next(many)
elif sys.argv[2] == "dropped":
    del client, network
"""


@pytest.mark.parametrize("how", ["closed", "open", "busy", "dropped"])
def test_a_program_exits_whatever_its_client_does(fake: Fake, how: str) -> None:
    """A thread that the interpreter froze with a lock of gRPC would keep it from exiting."""
    program = [sys.executable, "-c", EXITS, fake.target, how]
    ended = subprocess.run(program, timeout=WAIT_SECONDS, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def _first(request: pb.InferRequest) -> float:
    return float(np.frombuffer(request.inputs[0].tensor.data, np.float32)[0])
