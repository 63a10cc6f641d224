"""The threads that load, query and close: bounded, and ended by nothing that a task raises."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import pytest

from headrace.runtime.errors import Cancelled, Internal, ResourceExhausted, Stopped, Unavailable
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.loading import executor as module
from headrace.runtime.loading.executor import _SPARE, LoadExecutor
from headrace.runtime.system.asker import Asker
from headrace.runtime.system.interruption import check
from tests.support.gate import Gate
from tests.support.patience import PATIENCE_SECONDS

T = TypeVar("T")


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoadExecutor]:
    monkeypatch.setattr(module, "_CAPACITY", 2)
    executor = LoadExecutor(threads=1)
    yield executor
    executor.stop()


def test_a_task_has_a_result_or_raises(executor: LoadExecutor) -> None:
    assert executor.submit(lambda: 7).result(PATIENCE_SECONDS) == 7
    with pytest.raises(ZeroDivisionError):
        executor.submit(lambda: 1 // 0).result(PATIENCE_SECONDS)


def test_more_tasks_than_it_takes_are_refused(executor: LoadExecutor) -> None:
    gate = Gate()
    waiting = [executor.submit(gate), executor.submit(gate)]
    with pytest.raises(ResourceExhausted, match="2 loads and queries are waiting"):
        executor.submit(gate)
    waiting.append(executor.submit(gate, bounded=False))
    gate.open()
    for future in waiting:
        future.result(PATIENCE_SECONDS)
    assert executor.submit(lambda: 1).result(PATIENCE_SECONDS) == 1


def test_closing_waits_behind_no_load(executor: LoadExecutor) -> None:
    gate = Gate()
    load = executor.submit(gate)
    assert executor.close(lambda: "closed").result(PATIENCE_SECONDS) == "closed"
    gate.open()
    load.result(PATIENCE_SECONDS)


def test_a_task_that_nobody_wants_leaves_its_place_to_another(executor: LoadExecutor) -> None:
    """It is within a library that does not hear of it."""
    gate, token = Gate(), CancelToken()
    given_up = executor.submit(gate)
    executor.give_up(given_up, Cancelled("the caller left"))
    cancelled = executor.submit(gate, token)
    gate.await_arrivals(2)
    token.cancel(Cancelled("the caller left"))
    executor.close(gate.open)
    for future in (given_up, cancelled):
        future.result(PATIENCE_SECONDS)
    executor.submit(lambda: None).result(PATIENCE_SECONDS)


def test_who_asks_late_hears_of_an_end_after_those_who_asked_before(executor: LoadExecutor) -> None:
    told: list[str] = []
    start, telling = Gate(), Gate()

    def first(_: Future[None]) -> None:
        telling()
        told.append("first")

    future = executor.submit(start)
    future.add_done_callback(first)
    start.open()
    telling.await_arrivals()
    last = Gate()
    future.add_done_callback(lambda _: told.append("second"))
    future.add_done_callback(lambda _: last())
    telling.open()
    last.await_arrivals()
    last.open()
    assert told == ["first", "second"]


def test_a_task_has_left_when_its_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CAPACITY", 1)
    executor = LoadExecutor(threads=1)
    outcomes: list[object] = []
    gate, last = Gate(), Gate()

    def again(_: Future[None]) -> None:
        outcomes.append(executor.submit(lambda: 7))

    future = executor.submit(gate)
    future.add_done_callback(again)
    future.add_done_callback(lambda _: last())
    gate.open()
    last.await_arrivals()
    last.open()
    (second,) = outcomes
    assert isinstance(second, Future)
    assert second.result(PATIENCE_SECONDS) == 7
    executor.stop()


def test_a_task_that_waits_is_not_cancelled_with_who_waits_for_it() -> None:
    executor, gate = LoadExecutor(threads=1), Gate()
    first, second = executor.submit(gate), executor.submit(lambda: 7)

    async def leave() -> None:
        waiting = asyncio.ensure_future(asyncio.wrap_future(second))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(leave())
    gate.open()
    first.result(PATIENCE_SECONDS)
    assert second.result(PATIENCE_SECONDS) == 7
    executor.stop()


def test_other_tasks_run_meanwhile_as_long_as_there_are_threads() -> None:
    executor, gate = LoadExecutor(threads=1), Gate()
    stuck = [executor.submit(gate) for _ in range(_SPARE)]
    for future in stuck:  # each begins after the one before has left its place
        executor.give_up(future, Cancelled("the caller left"))
    assert executor.submit(lambda: 7).result(PATIENCE_SECONDS) == 7
    last = executor.submit(gate)
    executor.give_up(last, Cancelled("the caller left"))
    waiting = executor.submit(lambda: 8)
    assert not waiting.running()
    gate.open()
    assert waiting.result(PATIENCE_SECONDS) == 8
    executor.stop()


@pytest.mark.parametrize("way", ["submit", "close"])
@pytest.mark.parametrize("error", [SystemExit("bye"), StopIteration(), GeneratorExit()], ids=repr)
def test_what_would_end_whoever_waits_becomes_internal(
    executor: LoadExecutor, way: str, error: BaseException
) -> None:
    def task() -> None:
        raise error

    with pytest.raises(Internal) as caught:
        getattr(executor, way)(task).result(PATIENCE_SECONDS)
    assert caught.value.__cause__ is error
    assert executor.submit(sys.getrecursionlimit).result(PATIENCE_SECONDS)


def test_after_the_end_of_loading_closing_goes_on(executor: LoadExecutor) -> None:
    executor.stop_loading()
    with pytest.raises(Unavailable, match="shutting down"):
        executor.submit(lambda: 1)
    assert executor.close(lambda: "closed").result(PATIENCE_SECONDS) == "closed"


def test_a_task_that_nobody_wants_ends_at_its_next_layer(executor: LoadExecutor) -> None:
    gate, went_on = Gate(), []

    def task() -> None:
        gate()
        check()
        went_on.append("after the check")

    running, waiting = executor.submit(task), executor.submit(lambda: went_on.append("at all"))
    gate.await_arrivals()
    executor.give_up(waiting, Cancelled("its caller left"))
    executor.give_up(running, Cancelled("its caller left"))
    gate.open()
    with pytest.raises(Cancelled, match="its caller left"):
        running.result(PATIENCE_SECONDS)
    with pytest.raises(Cancelled, match="its caller left"):
        waiting.result(PATIENCE_SECONDS)
    assert executor.submit(lambda: 1).result(PATIENCE_SECONDS) == 1
    assert went_on == []


def test_a_stop_ends_what_runs_at_its_next_layer() -> None:
    executor, gate = LoadExecutor(threads=1), Gate()

    def task() -> None:
        gate()
        while True:
            check()

    running = executor.submit(task)
    gate.await_arrivals()
    gate.open()
    executor.stop()
    with pytest.raises(Stopped, match="shutting down"):
        running.result(PATIENCE_SECONDS)


def test_a_task_that_nobody_wants_any_more_does_not_wait(executor: LoadExecutor) -> None:
    gate, token = Gate(), CancelToken()
    running, waiting = executor.submit(gate), executor.submit(lambda: 1, token)
    gate.await_arrivals()
    token.cancel(Cancelled("the caller left"))
    with pytest.raises(Cancelled, match="the caller left"):
        waiting.result(PATIENCE_SECONDS)
    executor.submit(lambda: 1)  # there is room for it
    gate.open()
    running.result(PATIENCE_SECONDS)


class Askers:
    """Says who asks."""

    def __init__(self) -> None:
        self.name = ""

    def __call__(self) -> Asker:
        return Asker(self.name, trusted=False)

    def submit(self, executor: LoadExecutor, name: str, task: Callable[[], T]) -> Future[T]:
        self.name = name
        return executor.submit(task)


def test_the_task_of_whoever_has_the_fewest_running_is_next() -> None:
    askers, gates, order = Askers(), [Gate(), Gate()], list[str]()
    executor = LoadExecutor(threads=2, asker=askers)
    running = [askers.submit(executor, "eve", gate) for gate in gates]
    for gate in gates:
        gate.await_arrivals()
    waiting = [
        askers.submit(executor, name, partial(order.append, name)) for name in ("eve", "bob")
    ]
    gates[0].open()
    for future in (running[0], *waiting):
        future.result(PATIENCE_SECONDS)
    assert order == ["bob", "eve"]
    gates[1].open()
    executor.stop()


def test_one_identity_never_waits_in_all_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CAPACITY", 8)
    askers, gate = Askers(), Gate()
    executor = LoadExecutor(threads=1, asker=askers)
    held = [askers.submit(executor, "eve", gate) for _ in range(5)]
    with pytest.raises(ResourceExhausted, match="of your loads, queries"):
        askers.submit(executor, "eve", gate)
    held.append(askers.submit(executor, "bob", gate))
    gate.open()
    for future in held:
        future.result(PATIENCE_SECONDS)
    executor.stop()


def test_what_does_not_close_keeps_only_that_of_the_same_identity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_CAPACITY", 4)
    askers, gate, order = Askers(), Gate(), list[str]()
    executor = LoadExecutor(threads=1, asker=askers)
    executor.close(gate, "eve")
    mine = [executor.close(partial(order.append, f"eve {each}"), "eve") for each in range(4)]
    executor.close(partial(order.append, "bob"), "bob").result(PATIENCE_SECONDS)
    with pytest.raises(ResourceExhausted, match="5 of your loads, queries and unloads"):
        askers.submit(executor, "eve", lambda: None)
    askers.submit(executor, "bob", lambda: None).result(PATIENCE_SECONDS)
    gate.open()
    for future in mine:
        future.result(PATIENCE_SECONDS)
    assert order == ["bob", "eve 0", "eve 1", "eve 2", "eve 3"]
    executor.stop()


def test_a_task_waits_for_no_other_identity_s_tasks_that_hang() -> None:
    askers, gate = Askers(), Gate()
    executor = LoadExecutor(threads=1, asker=askers)
    stuck = [askers.submit(executor, "eve", gate) for _ in range(2 * _SPARE)]
    gate.await_arrivals()
    for name in ("bob", "carol", "dan"):
        assert askers.submit(executor, name, lambda: 7).result(PATIENCE_SECONDS) == 7
    assert sum(future.running() for future in stuck) == 1
    gate.open()
    for future in stuck:
        future.result(PATIENCE_SECONDS)
    executor.stop()


def test_what_others_may_wait_for_needs_no_place() -> None:
    """All threads are taken by tasks that wait for the outcome of one more."""
    askers, gate = Askers(), Gate()
    executor = LoadExecutor(threads=2, asker=askers)
    held = [askers.submit(executor, f"who{number}", gate) for number in range(2 + _SPARE)]
    gate.await_arrivals()
    assert executor.submit(lambda: 7, at_once=True).result(PATIENCE_SECONDS) == 7
    gate.open()
    for future in held:
        future.result(PATIENCE_SECONDS)
    executor.stop()


def test_a_task_that_a_thread_has_begun_goes_on_although_no_other_thread_can_start(
    executor: LoadExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(work: Callable[[], None]) -> None:
        work()  # as a thread does that was there: the pool queues the work first
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(executor._loading, "submit", submit)
    assert executor.submit(lambda: 7).result(PATIENCE_SECONDS) == 7


def test_a_task_for_which_there_is_no_thread_is_refused(
    executor: LoadExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(executor._loading, "submit", submit)
    with pytest.raises(ResourceExhausted, match="no thread"):
        executor.submit(lambda: 7).result(PATIENCE_SECONDS)
