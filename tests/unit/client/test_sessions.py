"""Sessions of both clients: what they send, in which order, and what errors make of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import grpc
import numpy as np
import pytest

from headrace.client import Client, errors, forks
from headrace.client.conversation import Conversation, ConversationPlace
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.errors import ErrorDetails
from headrace.wire.stream import EncodedResult, serialize_infer_stream_reply
from tests.support.client_fake import ENDLESS, KINDS, REFUSED, Fake, connected, eventually
from tests.support.patience import PATIENCE_SECONDS


@pytest.fixture(params=KINDS)
def network(request: pytest.FixtureRequest, fake: Fake) -> Iterator[Any]:
    with connected(request.param, fake.target) as client:
        yield client.network("stateful")


def x(value: float) -> dict[str, Any]:
    return {"x": np.array([[value]], np.float32)}


def asked(fake: Fake) -> list[str]:
    """What the server was asked of its sessions: value, then start and end."""
    told = []
    for request in fake.requests("Infer"):
        value = (
            f"{np.frombuffer(request.inputs[0].tensor.data, np.float32)[0]:g}"
            if request.inputs
            else "-"
        )
        flags = [name for name in ("start", "end") if getattr(request.session, name)]
        told.append(" ".join([value, *flags]))
    return told


def test_the_first_request_starts_the_session_and_its_end_ends_it(fake: Fake, network: Any) -> None:
    session = network.session()
    for value in (1, 2, 3):
        assert session.infer(x(value))["y"] == value
    session.end()
    session.end()
    assert asked(fake) == ["1 start", "2", "3", "- end"]
    assert {request.session.id for request in fake.requests("Infer")} == {session.id}


def test_ids_are_random_or_given(network: Any) -> None:
    assert len({network.session().id for _ in range(10)}) == 10
    assert len(network.session().id) == 32
    assert network.session("mine").id == "mine"


def test_a_session_that_was_not_used_has_nothing_to_end(fake: Fake, network: Any) -> None:
    session = network.session()
    session.end()
    assert asked(fake) == []
    with pytest.raises(errors.FailedPrecondition, match="has ended"):
        session.infer(x(1))


def test_a_last_request_needs_no_further_end(fake: Fake, network: Any) -> None:
    session = network.session()
    session.infer(x(1), end=True)
    session.end()
    assert asked(fake) == ["1 start end"]


def test_as_long_as_no_request_has_completed_each_starts_the_session(
    fake: Fake, network: Any
) -> None:
    session = network.session()
    with pytest.raises(errors.InvalidArgument):
        session.infer(x(REFUSED))
    session.infer(x(1))
    with pytest.raises(errors.InvalidArgument):
        session.infer(x(REFUSED))
    session.infer(x(2))
    assert asked(fake) == ["-1 start", "1 start", "-1", "2"]


def test_what_the_client_refuses_is_not_sent_and_changes_nothing(fake: Fake, network: Any) -> None:
    session = network.session()
    for bad in ({"x": np.zeros((1, 1))}, {}, {"h": np.zeros(1)}):
        with pytest.raises(errors.InvalidArgument):
            session.infer(bad)
    with pytest.raises(errors.InvalidArgument, match="timeout"):
        session.infer(x(1), timeout=-1)
    session.infer(x(1))
    assert asked(fake) == ["1 start"]


def test_a_last_request_that_fails_ends_nothing(fake: Fake, network: Any) -> None:
    session = network.session()
    session.infer(x(1))
    with pytest.raises(errors.InvalidArgument):
        session.infer(x(REFUSED), end=True)
    session.infer(x(2), end=True)
    assert asked(fake) == ["1 start", "-1 end", "2 end"]


def test_a_session_that_the_server_does_not_know_any_more_is_over(fake: Fake, network: Any) -> None:
    code = grpc.StatusCode.FAILED_PRECONDITION
    session = network.session()
    session.infer(x(1))
    fake.failures.append(ErrorDetails(code, "it is not open", "R", field="session.id"))
    with pytest.raises(errors.FailedPrecondition, match="not open"):
        session.infer(x(2))
    with pytest.raises(errors.FailedPrecondition, match="has ended; begin another"):
        session.start_async(x(2))
    session.end()
    assert asked(fake) == ["1 start", "2"]


def test_ending_a_session_that_the_server_does_not_know_any_more_is_no_error(
    fake: Fake, network: Any
) -> None:
    code = grpc.StatusCode.FAILED_PRECONDITION
    session = network.session()
    session.infer(x(1))
    fake.failures.append(ErrorDetails(code, "it is not open", "R", field="session.id"))
    session.end()
    session.end()
    assert asked(fake) == ["1 start", "- end"]


def test_other_errors_of_an_end_are_told_and_it_may_be_repeated(fake: Fake, network: Any) -> None:
    session = network.session()
    session.infer(x(1))
    fake.failures.append(ErrorDetails(grpc.StatusCode.UNAVAILABLE, "not now", "R"))
    with pytest.raises(errors.Unavailable):
        session.end()
    session.end()
    assert asked(fake) == ["1 start", "- end", "- end"]


def test_a_request_that_may_have_taken_part_is_not_sent_again(fake: Fake, network: Any) -> None:
    session = network.session()
    session.infer(x(1))
    for send in (session.infer, lambda inputs: session.start_async(inputs).result()):
        fake.failures.append(ErrorDetails(grpc.StatusCode.UNAVAILABLE, "not now", "R"))
        with pytest.raises(errors.Unavailable):
            send(x(2))
    assert asked(fake) == ["1 start", "2", "2"]


def test_started_requests_are_sent_one_after_the_other(fake: Fake, network: Any) -> None:
    session = network.session()
    data = x(0)
    requests = []
    for value in range(20):
        data["x"][0, 0] = value  # the arrays may change afterwards
        requests.append(session.start_async(data))
    assert [float(each.result()["y"][0, 0]) for each in requests] == list(range(20))
    session.end()
    assert asked(fake) == ["0 start", *map(str, range(1, 20)), "- end"]


def test_a_request_that_is_cancelled_while_it_waits_is_not_sent(fake: Fake, network: Any) -> None:
    session = network.session()
    first, second = session.start_async(x(ENDLESS)), session.start_async(x(2))
    third = session.start_async(x(3))
    assert eventually(lambda: not second.wait(0.01) and fake.started.is_set())
    assert second.cancel()
    assert not third.wait(0.01)
    assert first.cancel()
    assert third.result()["y"] == 3
    assert third.done()
    for cancelled in (first, second):
        with pytest.raises(errors.Cancelled):
            cancelled.result()
    assert asked(fake)[-1] == "3"
    assert "2" not in asked(fake)


def test_time_passes_while_a_request_waits(fake: Fake, network: Any) -> None:
    session = network.session()
    first = session.start_async(x(ENDLESS))
    late = session.start_async(x(2), timeout=0.0)
    first.cancel()
    with pytest.raises(errors.DeadlineExceeded):
        late.result()
    assert session.infer(x(3))["y"] == 3


def test_ten_thousand_requests_that_cannot_be_sent_end_without_recursion(fake: Fake) -> None:
    with Client(fake.target) as client:
        session = client.network("stateful").session()
        first = session.start_async(x(ENDLESS))
        rest = [session.start_async(x(2), timeout=0.0) for _ in range(10_000)]
        first.cancel()
        for each in rest:
            with pytest.raises(errors.DeadlineExceeded):
                each.result()


def test_callbacks_run_before_the_next_request_and_may_start_one(fake: Fake) -> None:
    with Client(fake.target) as client:
        session = client.network("stateful").session()
        started: list[Any] = []
        finished = threading.Event()

        def follow(_: Any) -> None:
            started.append(session.start_async(x(5)))
            finished.set()

        request = session.start_async(x(1))
        request.add_done_callback(follow)
        assert finished.wait(PATIENCE_SECONDS)
        assert started[0].result()["y"] == 5
        assert asked(fake) == ["1 start", "5"]


def test_a_closed_client_fails_what_waits(fake: Fake) -> None:
    client = Client(fake.target)
    session = client.network("stateful").session()
    first, second = session.start_async(x(ENDLESS)), session.start_async(x(2))
    assert eventually(fake.started.is_set)
    client.close()
    for each in (first, second):
        with pytest.raises(errors.Error):
            each.result()


def test_in_a_forked_process_a_request_is_its_parents(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(fake.target) as client:
        request = client.network("stateful").session().start_async(x(ENDLESS))
        with monkeypatch.context() as child:
            child.setattr(forks, "_process", object())
            assert request.wait(0)
            assert request.done()
            assert not request.cancel()
            with pytest.raises(errors.FailedPrecondition, match="forked"):
                request.result()
        assert not request.done()


def test_in_a_forked_process_a_session_that_has_begun_is_over(fake: Fake) -> None:
    with Client(fake.target) as client, client.network("stateful").session() as session:
        request = session.start_async(x(ENDLESS))
        session.inherit()
        with pytest.raises(errors.FailedPrecondition, match="has ended"):
            session.infer(x(1))
        session.end()
        assert not request.done()


# -- many requests over one stream --


def streamed(fake: Fake) -> list[str]:
    """What the server was asked over streams: value, then start and end."""
    told = []
    for message in fake.requests("message"):
        for request in message.requests:
            value = np.frombuffer(request.inputs[0].tensor.data, np.float32)[0]
            flags = [name for name in ("start", "end") if getattr(request.session, name)]
            told.append(" ".join([f"{value:g}", *flags]))
    return told


def values(many: Any) -> list[float | str]:
    """The results in the order of their requests: the value, or the error's class."""
    found: dict[int, float | str] = {}
    for index, outputs in many:
        is_error = isinstance(outputs, errors.Error)
        found[index] = type(outputs).__name__ if is_error else float(outputs["y"][0, 0])
    return [found[index] for index in sorted(found)]


@pytest.mark.parametrize("in_flight", [1, 4])
def test_many_requests_of_a_session_go_over_one_stream(
    fake: Fake, network: Any, in_flight: int
) -> None:
    session = network.session()
    given = [x(value) for value in range(10)]
    assert values(session.infer_many(given, in_flight=in_flight)) == list(range(10))
    assert session.infer(x(10))["y"] == 10
    assert values(session.infer_many([x(11)])) == [11]
    session.end()
    assert streamed(fake) == ["0 start", *map(str, range(1, 10)), "11"]
    assert asked(fake) == ["10", "- end"]
    ids = {each.session.id for m in fake.requests("message") for each in m.requests}
    assert ids == {session.id}


def test_a_request_that_fails_on_a_stream_does_not_end_the_others(fake: Fake, network: Any) -> None:
    session = network.session()
    given = [x(REFUSED), x(1), {"x": np.zeros((1, 1))}, x(REFUSED), x(2)]
    refused = "InvalidArgument"
    assert values(session.infer_many(given, in_flight=1)) == [refused, 1, refused, refused, 2]
    assert streamed(fake) == ["-1 start", "1 start", "-1", "2"]


def test_results_of_a_session_come_in_order_whatever_the_server_tells_first() -> None:
    """A result in a message may overtake one in shared memory."""

    def encode(inputs: Any, *, identifier: str, **_: Any) -> tuple[pb.InferRequest, list[Any]]:
        if not inputs:
            raise errors.invalid("inputs", "there are none")
        return pb.InferRequest(id=identifier), []

    def told(*numbers: int) -> list[int]:
        results = [
            EncodedResult(str(each), pb.InferReply().SerializeToString()) for each in numbers
        ]
        return [index for index, _ in many.receive(serialize_infer_stream_reply(results))]

    many = Conversation(encode, ConversationPlace(None), progress=Mock(), in_flight=3)
    refused = many.submit({})
    assert refused is not None
    assert refused[0] == 0
    for _ in range(2):
        assert many.submit({"x": 1}) is None
    assert many.submit({}) is None, "it waits for the two before it"
    assert not many.has_room
    assert told(2) == []
    assert not many.has_room, "what waits counts, too"
    assert told(1) == [1, 2, 3]
    assert many.unanswered == 0


def test_a_session_takes_no_other_call_while_its_stream_is_open(fake: Fake, network: Any) -> None:
    session = network.session()
    many = session.infer_many([x(1), x(2), x(3)], in_flight=1)
    for call in (session.infer, session.start_async, lambda inputs: session.infer_many([inputs])):
        with pytest.raises(errors.FailedPrecondition, match="infer_many runs"):
            call(x(4))
    assert values(many) == [1, 2, 3]
    assert session.infer(x(5))["y"] == 5


def test_a_stream_needs_that_nothing_else_is_in_flight(fake: Fake, network: Any) -> None:
    session = network.session()
    first = session.start_async(x(ENDLESS))
    with pytest.raises(errors.FailedPrecondition, match="in flight"):
        session.infer_many([x(1)])
    first.cancel()
    assert first.wait(PATIENCE_SECONDS)
    assert values(session.infer_many([x(1)])) == [1]


@pytest.mark.parametrize("how", ["close", "end"])
def test_a_stream_that_is_closed_early_frees_the_session(
    fake: Fake, network: Any, how: str
) -> None:
    session = network.session()
    many = session.infer_many([x(1), x(ENDLESS), x(3)], in_flight=1)
    index, outputs = next(iter(many))
    assert (index, float(outputs["y"][0, 0])) == (0, 1)
    if how == "end":
        session.end()
        assert asked(fake) == ["- end"]
        with pytest.raises(errors.FailedPrecondition, match="has ended"):
            session.infer_many([x(1)])
    else:
        many.close()
        assert session.infer(x(4))["y"] == 4
    assert list(many) == []


def test_one_at_a_time_an_input_may_follow_from_the_result_before_it(fake: Fake) -> None:
    with Client(fake.target) as client:
        session = client.network("stateful").session()
        last = [1.0]
        inputs = (x(last[-1] + 1) for _ in range(5))
        for _, outputs in session.infer_many(inputs, in_flight=1):
            last.append(float(outputs["y"][0, 0]))  # type: ignore[index]
        assert last == [1, 2, 3, 4, 5, 6]


def test_a_stream_that_nobody_keeps_frees_the_session(fake: Fake) -> None:
    with Client(fake.target) as client:
        session = client.network("stateful").session()
        for _ in session.infer_many([x(1), x(2), x(3)]):
            break
        assert session.infer(x(4))["y"] == 4


def test_a_session_that_the_server_does_not_know_any_more_fails_what_follows(
    fake: Fake, network: Any
) -> None:
    code = grpc.StatusCode.FAILED_PRECONDITION
    session = network.session()
    session.infer(x(1))
    fake.refusals.append(ErrorDetails(code, "it is not open", "R", field="session.id"))
    given = [x(2), x(3), x(4)]
    assert values(session.infer_many(given, in_flight=1)) == ["FailedPrecondition"] * 3
    assert streamed(fake) == ["2"]


def test_a_stream_that_fails_frees_the_session(fake: Fake, network: Any) -> None:
    session = network.session()
    fake.failures.append(ErrorDetails(grpc.StatusCode.UNAVAILABLE, "not now", "R"))
    with pytest.raises(errors.Unavailable):
        list(session.infer_many([x(1), x(2)]))
    assert session.infer(x(3))["y"] == 3
    assert asked(fake) == ["3 start"]
