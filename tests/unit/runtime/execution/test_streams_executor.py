"""Streams: every task is run, failed or removed exactly once, within every limit."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from headrace.runtime.errors import Internal, Unavailable
from headrace.runtime.execution.fair_queue import Entry
from headrace.runtime.execution.stream import ExecutionStream, Task
from headrace.runtime.execution.streams_executor import Share, StreamsExecutor
from tests.support.gate import Gate, join, run_together
from tests.support.interleaving import frequent_switches
from tests.support.patience import PATIENCE_SECONDS


class Load:
    """Counts what runs at once and what has ended. Thread-safe; `_changed` guards the fields."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.running: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.ended = 0

    def begin(self, *names: str) -> None:
        with self._changed:
            for name in names:
                self.running[name] = self.running.get(name, 0) + 1
                self.most[name] = max(self.most.get(name, 0), self.running[name])

    def leave(self, *names: str) -> None:
        with self._changed:
            for name in names:
                self.running[name] -= 1

    def end(self) -> None:
        with self._changed:
            self.ended += 1
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.ended >= count, PATIENCE_SECONDS), (
                f"{self.ended} of {count} tasks have ended"
            )


class Probe:
    """A task that writes down what happens to it."""

    def __init__(
        self,
        body: Callable[[], object] | None = None,
        *,
        load: Load | None = None,
        flow: str = "flow",
        priority: int = 0,
    ) -> None:
        self.entry: Entry[Task] | None = None
        self.priority = priority
        self.flow = flow
        self.load = load or Load()
        self.body = body
        self.runs = 0
        self.streams: list[int] = []
        self.threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []
        self.removed = 0

    def run(self, stream: int) -> None:
        self.streams.append(stream)
        self.threads.append(threading.current_thread())
        self.load.begin("all", self.flow, f"stream {stream}")
        self.runs += 1
        try:
            if self.body is not None:
                self.body()
        except BaseException:
            self.load.leave("all", self.flow, f"stream {stream}")
            raise
        self.load.leave("all", self.flow, f"stream {stream}")
        self.load.end()

    def dispatch(self, stream: ExecutionStream) -> bool:
        return False

    def fail(self, error: BaseException) -> None:
        self.errors.append(error)
        self.load.end()

    def wait(self) -> Probe:
        self.load.wait(1)
        return self


@pytest.fixture
def executor() -> Iterator[StreamsExecutor]:
    executor = StreamsExecutor("FAKE.0", 1)
    yield executor
    executor.stop(PATIENCE_SECONDS)


def streams() -> list[threading.Thread]:
    """The threads of executors called FAKE."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("FAKE-")]


def raise_(error: BaseException) -> None:
    raise error


def occupy(share: Share, streams: int = 1) -> Gate:
    """Fills streams with tasks that end when the gate opens."""
    gate = Gate()
    for _ in range(streams):
        share.submit(Probe(gate))
    gate.await_arrivals(streams)
    return gate


# -- where a task runs --


def test_a_task_runs_on_a_stream_of_the_device(executor: StreamsExecutor) -> None:
    probe = Probe()
    executor.share(1).submit(probe)
    probe.wait()
    assert probe.streams == [0]
    assert probe.threads[0].name == "FAKE.0-stream-0"
    assert probe.entry is None


def test_who_enters_takes_the_place_of_a_stream(executor: StreamsExecutor) -> None:
    share, probe = executor.share(2), Probe()
    place = executor.enter(share.flow)
    assert place is not None
    assert executor.busy == 1
    share.submit(probe)
    assert executor.waiting == 1
    executor.leave(place, share.flow)
    probe.wait()
    assert probe.threads[0].name == "FAKE.0-stream-0"


def test_a_place_that_was_left_is_idle_again(executor: StreamsExecutor) -> None:
    share = executor.share(1)
    for _ in range(3):
        place = executor.enter(share.flow)
        assert place is not None
        executor.leave(place, share.flow)
    assert executor.busy == 0
    share.submit(probe := Probe())
    probe.wait()


def test_nobody_enters_where_no_stream_is_idle_or_the_share_is_used_up() -> None:
    executor = StreamsExecutor("FAKE", 2)
    narrow, wide = executor.share(1), executor.share(2)
    gate = occupy(narrow)
    assert executor.enter(narrow.flow) is None
    place = executor.enter(wide.flow)
    assert place is not None
    assert executor.enter(wide.flow) is None
    gate.open()
    executor.leave(place, wide.flow)
    executor.stop(PATIENCE_SECONDS)


def test_as_many_tasks_run_at_once_as_there_are_streams() -> None:
    executor = StreamsExecutor("FAKE", 3)
    gate = occupy(executor.share(10), 3)
    last = Probe()
    executor.share(10).submit(last)
    assert (executor.busy, executor.waiting) == (3, 1)
    gate.open()
    last.wait()
    executor.stop(PATIENCE_SECONDS)
    assert gate.most_inside == 3


def test_a_share_runs_no_more_than_its_limit_and_leaves_the_rest_to_others() -> None:
    executor = StreamsExecutor("FAKE", 3)
    narrow, wide = executor.share(1), executor.share(3)
    gate = occupy(narrow)
    waiting, other = Probe(), Probe()
    narrow.submit(waiting)
    wide.submit(other)
    other.wait()
    assert waiting.runs == 0
    gate.open()
    waiting.wait()
    executor.stop(PATIENCE_SECONDS)


def test_raising_a_limit_starts_what_waits_for_it() -> None:
    executor = StreamsExecutor("FAKE", 2)
    share = executor.share(1)
    gate = occupy(share)
    waiting = Probe()
    share.submit(waiting)
    share.limit = 2
    assert share.limit == 2
    waiting.wait()
    gate.open()
    executor.stop(PATIENCE_SECONDS)


def test_the_order_is_the_queues(executor: StreamsExecutor) -> None:
    share, order = executor.share(1), list[str]()
    gate, load = occupy(share), Load()
    for name, priority in [("low", -1), ("normal", 0), ("high", 5)]:
        share.submit(Probe(partial(order.append, name), load=load, priority=priority))
    gate.open()
    load.wait(3)
    assert order == ["high", "normal", "low"]


# -- removal --


def test_a_waiting_task_can_be_removed_and_a_started_one_cannot(executor: StreamsExecutor) -> None:
    share = executor.share(1)
    gate, removed, kept = occupy(share), Probe(), Probe()
    share.submit(removed)
    share.submit(kept)
    assert removed.entry is not None
    assert kept.entry is not None
    assert share.remove(removed.entry) is True
    assert share.remove(removed.entry) is False
    gate.open()
    kept.wait()
    assert share.remove(kept.entry) is False
    assert removed.runs == 0


# -- size --


def test_growing_takes_effect_at_once(executor: StreamsExecutor) -> None:
    share = executor.share(3)
    gate, waiting = occupy(share), Probe()
    share.submit(waiting)
    executor.resize(2)
    waiting.wait()
    assert executor.streams == 2
    gate.open()


def test_shrinking_lets_what_runs_finish_and_then_runs_fewer() -> None:
    executor = StreamsExecutor("FAKE", 3)
    share = executor.share(3)
    first = occupy(share, 3)
    executor.resize(1)
    gate, load = Gate(), Load()
    for _ in range(3):
        share.submit(Probe(gate, load=load))
    first.open()
    gate.await_arrivals(1)
    gate.open()
    load.wait(3)
    executor.stop(PATIENCE_SECONDS)
    assert gate.most_inside == 1


def test_shrinking_ends_idle_threads() -> None:
    executor = StreamsExecutor("FAKE", 4)
    threads = streams()
    executor.resize(1)
    join(*(thread for thread in threads if thread.name != "FAKE-stream-0"))
    executor.stop(PATIENCE_SECONDS)
    assert not streams()


def test_streams_have_numbers_of_their_own_after_shrinking_and_growing() -> None:
    executor = StreamsExecutor("FAKE", 2)
    share, gates, started = executor.share(2), [Gate(), Gate()], list[Probe]()
    for gate in gates:
        probe = Probe(gate)
        started.append(probe)
        share.submit(probe)
        gate.await_arrivals()
    # Ends the stream with the lower number, so that the higher one stays.
    executor.resize(1)
    first = min(started, key=lambda probe: probe.streams[0])
    gates[started.index(first)].open()
    join(first.threads[0])
    executor.resize(2)
    gate, probe = Gate(), Probe()
    probe.body = gate
    share.submit(probe)
    gate.await_arrivals()
    other = next(each for each in started if each is not first)
    assert {probe.streams[0], other.streams[0]} == {0, 1}
    gate.open()
    for each in gates:
        each.open()
    executor.stop(PATIENCE_SECONDS)


def test_an_executor_needs_a_stream(executor: StreamsExecutor) -> None:
    with pytest.raises(ValueError, match="needs a stream"):
        executor.resize(0)


# -- what a task raises --


@pytest.mark.parametrize("error", [SystemExit(3), RuntimeError("a bug"), KeyboardInterrupt()])
def test_a_task_that_raises_fails_and_its_stream_goes_on(
    executor: StreamsExecutor, error: BaseException
) -> None:
    share = executor.share(1)
    broken, following = Probe(lambda: raise_(error)), Probe()
    share.submit(broken)
    share.submit(following)
    following.wait()
    broken.wait()
    assert isinstance(broken.errors[0], Internal)
    assert following.errors == []
    assert executor.streams == 1


def test_a_task_that_raises_gives_its_shares_place_back(executor: StreamsExecutor) -> None:
    share, load = executor.share(1), Load()
    gate = occupy(share)
    probes = [Probe(lambda: raise_(SystemExit()), load=load) for _ in range(20)]
    for probe in probes:
        share.submit(probe)
    gate.open()
    load.wait(20)
    assert all(len(probe.errors) == 1 for probe in probes)


# -- the end --


def test_stop_fails_what_waits_and_lets_what_runs_finish() -> None:
    executor = StreamsExecutor("FAKE", 1)
    share = executor.share(1)
    gate, running, waiting = Gate(), Probe(), Probe()
    running.body = gate
    share.submit(running)
    gate.await_arrivals()
    share.submit(waiting)
    stopper = threading.Thread(target=executor.stop)
    stopper.start()
    waiting.wait()
    gate.open()
    join(stopper)
    assert isinstance(waiting.errors[0], Unavailable)
    assert (running.runs, running.errors) == (1, [])


def test_stop_waits_for_all_streams_together_no_longer_than_told() -> None:
    executor = StreamsExecutor("FAKE", 4)
    gate = occupy(executor.share(4), 4)
    executor.stop(timeout=0.01)
    gate.open()
    executor.stop(PATIENCE_SECONDS)


def test_stop_waits_for_who_has_entered() -> None:
    executor = StreamsExecutor("FAKE", 1)
    share = executor.share(1)
    place = executor.enter(share.flow)
    assert place is not None
    stopper = threading.Thread(target=executor.stop)
    stopper.start()
    executor.stop(timeout=0.01)
    assert stopper.is_alive()
    executor.leave(place, share.flow)
    join(stopper)
    with pytest.raises(Unavailable, match="shutting down"):
        executor.enter(share.flow)


def test_a_stopped_executor_takes_nothing_and_starts_no_thread() -> None:
    executor = StreamsExecutor("FAKE", 1)
    share = executor.share(1)
    executor.stop(PATIENCE_SECONDS)
    executor.stop(PATIENCE_SECONDS)
    with pytest.raises(Unavailable, match="shutting down"):
        share.submit(Probe())
    with pytest.raises(Unavailable, match="shutting down"):
        executor.resize(2)
    assert not streams()


# -- binding --


def test_bound_streams_stay_on_one_processor_of_the_process() -> None:
    allowed = os.sched_getaffinity(0)
    executor = StreamsExecutor("FAKE", 1, bind=True)
    masks: list[set[int]] = []
    probe = Probe(lambda: masks.append(os.sched_getaffinity(0)))
    executor.share(1).submit(probe)
    probe.wait()
    executor.stop(PATIENCE_SECONDS)
    assert len(masks[0]) == 1
    assert masks[0] <= allowed


def test_a_stream_that_cannot_be_bound_runs_unbound(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, mask: set[int]) -> None:
        raise PermissionError("not here")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    executor = StreamsExecutor("FAKE", 1, bind=True)
    probe = Probe()
    executor.share(1).submit(probe)
    probe.wait()
    executor.stop(PATIENCE_SECONDS)
    assert probe.runs == 1


# -- all at once --

STREAMS = (1, 2, 3)
LIMITS = {"a": (1, 2), "b": (1, 2, 3), "c": (3,)}
TASKS = 200


class Storm:
    """Threads that submit, remove, resize and set limits on one executor, in an order that a seed
    gives, tasks that raise and places that are taken among theirs."""

    def __init__(self, seed: int) -> None:
        self.executor = StreamsExecutor("FAKE", max(STREAMS))
        self.shares = {name: self.executor.share(limits[-1]) for name, limits in LIMITS.items()}
        self.load = Load()
        self.seed = seed
        self.accepted: list[Probe] = []
        self.refused: list[Probe] = []

    def submit(self, number: int) -> None:
        choose = random.Random(f"{self.seed} {number}")
        mine: list[Probe] = []
        for _ in range(TASKS):
            flow = choose.choice("abc")
            body = choose.choice([None, None, None, lambda: raise_(SystemExit())])
            probe = Probe(body, load=self.load, flow=flow, priority=choose.randint(-10, 10))
            try:
                if choose.random() > 0.3 or not self.run_here(probe):
                    self.shares[flow].submit(probe)
            except Unavailable:
                self.refused.append(probe)
                continue
            mine.append(probe)
            if choose.random() < 0.3:
                self.remove(choose.choice(mine))
        self.accepted.extend(mine)

    def run_here(self, probe: Probe) -> bool:
        flow = self.shares[probe.flow].flow
        place = self.executor.enter(flow)
        if place is None:
            return False
        try:
            probe.run(place.index)
        except SystemExit as error:
            probe.fail(error)
        finally:
            self.executor.leave(place, flow)
        return True

    def remove(self, probe: Probe) -> None:
        if probe.entry is not None and self.shares[probe.flow].remove(probe.entry):
            probe.removed += 1
            self.load.end()

    def change(self) -> None:
        choose = random.Random(f"{self.seed} change")
        for _ in range(TASKS):
            try:
                self.executor.resize(choose.choice(STREAMS))
            except Unavailable:
                return
            flow = choose.choice("abc")
            self.shares[flow].limit = choose.choice(LIMITS[flow])

    def check(self) -> None:
        self.load.wait(len(self.accepted))
        for probe in self.accepted:
            # A task that raised has run and failed; one that was abandoned has failed only.
            assert max(probe.runs, len(probe.errors), probe.removed) == 1
            assert not (probe.removed and (probe.runs or probe.errors))
        assert all(probe.runs == 0 and not probe.errors for probe in self.refused)
        for flow, limits in LIMITS.items():
            assert self.load.most.get(flow, 0) <= max(limits)
        for number in range(max(STREAMS)):
            assert self.load.most.get(f"stream {number}", 0) <= 1
        assert set(self.load.running.values()) <= {0}


@pytest.mark.parametrize("seed", range(6))
def test_every_task_has_one_end_in_a_storm(seed: int) -> None:
    storm = Storm(seed)
    with frequent_switches():
        run_together(*[partial(storm.submit, number) for number in range(4)], storm.change)
    storm.check()
    # Nothing is stuck: with all streams and limits open the executor is idle and works.
    assert storm.executor.waiting == 0
    probe = Probe()
    storm.shares["a"].submit(probe)
    probe.wait()
    storm.executor.stop(PATIENCE_SECONDS)


@pytest.mark.parametrize("seed", range(6))
def test_every_accepted_task_has_one_end_when_the_executor_stops_in_a_storm(seed: int) -> None:
    storm = Storm(seed)

    def stop() -> None:
        storm.load.wait(TASKS)
        storm.executor.stop(PATIENCE_SECONDS)

    with frequent_switches():
        run_together(*[partial(storm.submit, number) for number in range(4)], storm.change, stop)
    storm.check()


def test_no_wake_up_is_lost_between_two_threads_that_hand_work_to_and_fro() -> None:
    one, two = StreamsExecutor("ONE", 1), StreamsExecutor("TWO", 1)
    shares = [one.share(1), two.share(1)]
    load, left = Load(), [2000]

    def step() -> None:
        left[0] -= 1
        if left[0] > 0:
            shares[left[0] % 2].submit(Probe(step, load=load))

    with frequent_switches():
        shares[0].submit(Probe(step, load=load))
        load.wait(2000)
    for executor in (one, two):
        executor.stop(PATIENCE_SECONDS)
    assert left == [0]
