"""Requests in flight: start_async and infer_many, of both clients."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from headrace.client import Client, aio, conversation, errors, infer_many
from headrace.client.aio import infer_many as aio_infer_many
from headrace.client.outputs import Outputs
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.errors import ErrorDetails
from tests.support.client_fake import ENDLESS, KINDS, REFUSED, Fake, connected, eventually
from tests.support.patience import PATIENCE_SECONDS


@pytest.fixture(params=KINDS)
def network(request: pytest.FixtureRequest, fake: Fake) -> Iterator[Any]:
    with connected(request.param, fake.target) as client:
        yield client.network("echo")


def inputs(*values: float) -> list[dict[str, Any]]:
    return [{"x": np.array([[value]], np.float32)} for value in values]


def value(outcome: Any) -> float:
    assert isinstance(outcome, Outputs), outcome
    return float(outcome["y"][0, 0])


# ---- start_async ----


def test_a_started_request_is_waited_for(network: Any) -> None:
    request = network.start_async(*inputs(5))
    assert request.wait(timeout=PATIENCE_SECONDS)
    assert request.done()
    assert value(request.result()) == 5
    assert request.result() is request.result()
    assert request.wait(timeout=0)
    assert not request.cancel()


@pytest.mark.parametrize("timeout", [1e300, float("inf")])
def test_waiting_takes_a_time_that_no_clock_can_hold(network: Any, timeout: float) -> None:
    assert network.start_async(*inputs(5)).wait(timeout=timeout)


def test_waiting_ends_when_time_is_up(network: Any) -> None:
    request = network.start_async(*inputs(ENDLESS))
    assert not request.wait(timeout=0.05)
    assert not request.done()
    request.cancel()


def test_a_cancelled_request_raises_cancelled_and_the_server_is_told(
    network: Any, fake: Fake
) -> None:
    request = network.start_async(*inputs(ENDLESS))
    assert not request.wait(timeout=0.05)
    assert eventually(fake.started.is_set)
    assert request.cancel()
    assert request.wait()
    with pytest.raises(errors.Cancelled):
        request.result()
    assert eventually(fake.cancelled.is_set)


def test_the_result_raises_what_the_request_raised(network: Any) -> None:
    request = network.start_async(*inputs(REFUSED))
    assert request.wait()
    for _ in range(2):
        with pytest.raises(errors.InvalidArgument) as caught:
            request.result()
        assert caught.value.details.reason == "NEGATIVE"


def test_inputs_that_do_not_fit_raise_at_the_start(network: Any) -> None:
    with pytest.raises(errors.InvalidArgument):
        network.start_async({"y": np.zeros(1)})


def test_callbacks_run_when_done_and_at_once_if_done(network: Any) -> None:
    done = threading.Event()
    found = []

    def note(request: Any) -> None:
        found.append(request)
        done.set()

    request = network.start_async(*inputs(1))
    request.add_done_callback(note)
    assert request.wait()
    assert eventually(lambda: done.is_set() or not request.wait(0))
    done.clear()
    request.add_done_callback(note)
    assert eventually(lambda: done.is_set() or not request.wait(0))
    assert len(found) == 2


def test_arrays_may_change_once_the_request_has_started(network: Any) -> None:
    array = np.full((1, 10_000), 7, np.float32)
    request = network.start_async({"x": array})
    array[:] = 0
    assert value(request.result()) == 7


def test_a_large_request_is_sent_in_parts_and_arrives_whole(network: Any, fake: Fake) -> None:
    """The arrays are not copied into the message."""
    large = np.arange(300_000, dtype=np.float32).reshape(1, -1)
    assert np.array_equal(network.infer({"x": large})["y"], large)
    fake.failures.append(ErrorDetails(grpc.StatusCode.UNAVAILABLE, "again"))
    assert np.array_equal(network.infer({"x": large})["y"], large)


# ---- infer_many ----


def test_every_input_has_its_result_in_the_order_of_finishing(network: Any, fake: Fake) -> None:
    results = list(network.infer_many(inputs(*range(100)), in_flight=8))
    assert sorted(index for index, _ in results) == list(range(100))
    assert all(value(outcome) == index for index, outcome in results)
    assert [index for index, _ in results[:8]] == [7, 6, 5, 4, 3, 2, 1, 0]  # the fake's order


def test_no_more_are_in_flight_than_asked_for(network: Any, fake: Fake) -> None:
    list(network.infer_many(inputs(*range(50)), in_flight=4))
    assert max(len(message.requests) for message in fake.requests("message")) <= 4


def test_requests_that_are_ready_together_travel_together(network: Any, fake: Fake) -> None:
    list(network.infer_many(inputs(*range(64)), in_flight=32))
    assert len(fake.requests("message")) <= 4


@pytest.mark.parametrize(("elements", "together"), [(4_500, 6), (20_000, 3)])
def test_requests_with_attachments_travel_together_up_to_the_size_of_a_message(
    network: Any, fake: Fake, elements: int, together: int
) -> None:
    given = [{"x": np.full((1, elements), number, np.float32)} for number in range(6)]
    results = dict(network.infer_many(given))
    assert [value(results[number]) for number in range(6)] == [0, 1, 2, 3, 4, 5]
    assert max(len(message.requests) for message in fake.requests("message")) == together


def test_large_requests_travel_alone(network: Any, fake: Fake) -> None:
    large = [{"x": np.full((1, 40_000), number, np.float32)} for number in range(6)]
    results = dict(network.infer_many(large))
    assert [value(results[number]) for number in range(6)] == [0, 1, 2, 3, 4, 5]
    assert [len(message.requests) for message in fake.requests("message")] == [1] * 6


def test_a_buffer_may_be_reused_for_the_next_input(network: Any) -> None:
    buffer = np.zeros((1, 10_000), np.float32)

    def refilled() -> Iterator[dict[str, Any]]:
        for number in range(10):
            buffer[:] = number
            yield {"x": buffer}

    assert all(value(outcome) == index for index, outcome in network.infer_many(refilled()))


def test_one_that_fails_ends_nothing_but_itself(network: Any) -> None:
    results = dict(network.infer_many([*inputs(1, REFUSED), {"nope": 1}, *inputs(4)]))
    assert value(results[0]) == 1
    assert isinstance(results[1], errors.InvalidArgument)
    assert results[1].details.reason == "NEGATIVE"
    assert isinstance(results[2], errors.InvalidArgument)
    assert "no input 'nope'" in str(results[2])
    assert value(results[3]) == 4


def test_all_may_fail_before_they_are_sent(network: Any) -> None:
    results = dict(network.infer_many([{"nope": 1}] * 40, in_flight=2))
    assert len(results) == 40


def test_no_inputs_give_no_results(network: Any) -> None:
    assert list(network.infer_many([])) == []


def test_the_options_go_with_each_request(network: Any, fake: Fake) -> None:
    list(
        network.infer_many(inputs(1), outputs=["y"], priority=2, timeout=3, performance_counts=True)
    )
    (request,) = fake.requests("message")[0].requests
    assert (list(request.outputs), request.priority) == (["y"], 2)
    assert (request.timeout_seconds, request.performance_counts) == (3, True)


def test_a_stream_that_fails_raises(network: Any, fake: Fake) -> None:
    fake.failures.append(ErrorDetails(grpc.StatusCode.UNAVAILABLE, "stopping", reason="DRAINING"))
    with pytest.raises(errors.Unavailable, match="stopping"):
        list(network.infer_many(inputs(1, 2)))


def test_an_error_of_the_users_iterable_reaches_the_user(network: Any) -> None:
    def failing() -> Iterator[dict[str, Any]]:
        yield from inputs(1)
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        list(network.infer_many(failing()))


def test_one_request_is_cancelled_by_its_index(network: Any) -> None:
    many = network.infer_many(inputs(ENDLESS, 1, ENDLESS), in_flight=3)
    results = iter(many)
    assert next(results)[0] == 1
    many.cancel(2)
    index, outcome = next(results)
    assert index == 2
    assert isinstance(outcome, errors.Cancelled)
    many.cancel()
    index, outcome = next(results)
    assert index == 0
    assert isinstance(outcome, errors.Cancelled)
    assert list(results) == []


def test_closing_ends_the_iteration(network: Any) -> None:
    many = network.infer_many(inputs(1, ENDLESS))
    results = iter(many)
    assert next(results)[0] == 0
    many.close()
    many.close()
    assert list(results) == []


def test_in_flight_must_allow_one(network: Any) -> None:
    with pytest.raises(errors.InvalidArgument, match="at least 1"):
        network.infer_many([], in_flight=0)


def test_an_abandoned_iteration_leaves_no_thread(fake: Fake) -> None:
    with Client(fake.target) as client:
        network = client.network("echo")
        next(network.infer_many(inputs(1, ENDLESS)))
        gc.collect()
        assert eventually(
            lambda: not [t for t in threading.enumerate() if "consume_request" in t.name.lower()]
        )


def test_results_arrive_while_an_asynchronous_source_waits(fake: Fake) -> None:
    async def main() -> list[float]:
        answered = asyncio.Event()

        async def source() -> AsyncIterator[dict[str, Any]]:
            yield inputs(1)[0]
            await answered.wait()
            yield inputs(2)[0]

        values = []
        async with aio.Client(fake.target) as client:
            network = await client.network("echo")
            async with network.infer_many(source()) as many:
                async for _, outcome in many:
                    values.append(value(outcome))
                    answered.set()
        return values

    assert asyncio.run(asyncio.wait_for(main(), 60)) == [1, 2]


def test_cancelling_the_task_that_awaits_infer_cancels_the_request(fake: Fake) -> None:
    async def main() -> None:
        async with aio.Client(fake.target) as client:
            network = await client.network("echo")
            task = asyncio.ensure_future(network.infer(*inputs(ENDLESS)))
            await asyncio.wait({task}, timeout=0.05)
            while not fake.started.is_set():
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(asyncio.wait_for(main(), 60))
    assert eventually(fake.cancelled.is_set)


def test_many_threads_share_a_client(fake: Fake) -> None:
    with Client(fake.target) as client:
        network = client.network("echo")
        failures: list[BaseException] = []

        def work(start: int) -> None:
            try:
                for number in range(start, start + 20):
                    assert value(network.infer(*inputs(number))) == number
            except BaseException as error:  # noqa: BLE001 - shown by the main thread
                failures.append(error)

        threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures


# ---- what a server does not answer ----


@pytest.fixture
def without_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (conversation, infer_many, aio_infer_many):
        monkeypatch.setattr(module, "SLACK_SECONDS", 0.0)
    monkeypatch.setattr(aio_infer_many, "_LOOK_SECONDS", 0.01)


def test_a_stream_whose_server_does_not_answer_in_time_ends(
    network: Any, without_slack: None
) -> None:
    with pytest.raises(errors.DeadlineExceeded):
        list(network.infer_many(inputs(1, ENDLESS, 2), timeout=0.2))


def test_a_stream_that_the_server_never_ends_is_over_when_all_results_have_come(
    network: Any, fake: Fake, without_slack: None
) -> None:
    fake.ends_streams = False
    assert len(list(network.infer_many(inputs(1, 2, 3)))) == 3


@pytest.mark.parametrize("timeout", [1e300, float("inf")])
def test_requests_of_a_stream_have_a_time_limit_that_no_clock_can_hold(
    network: Any, timeout: float
) -> None:
    assert len(list(network.infer_many(inputs(1, 2), timeout=timeout))) == 2


def test_time_counts_while_a_server_owes_a_result() -> None:
    def encode(_: object, *, identifier: str, **__: object) -> tuple[pb.InferRequest, list[Any]]:
        return pb.InferRequest(id=identifier), []

    said = conversation.Conversation(encode, conversation.ConversationPlace(None), timeout=1000)
    limits = [said.seconds_left]
    said.submit({})
    limits.append(said.seconds_left)
    answer = pb.InferStreamResult(id="0", reply=pb.InferReply())
    said.receive(pb.InferStreamReply(results=[answer]).SerializeToString())
    limits.append(said.seconds_left)
    assert [limit is not None and limit > 900 for limit in limits] == [False, True, False]
