"""What a worker counts: asked for seldom, waited for briefly, and read with care."""

from __future__ import annotations

import json
from concurrent.futures import Future
from typing import Any

import pytest

from headrace.runtime.errors import Unavailable
from headrace.runtime.isolation.server import telemetry as module
from headrace.runtime.isolation.server.telemetry import NOTHING, Telemetry
from headrace.runtime.isolation.wire.telemetry import WorkerCounts, counts_from_json, counts_to_json
from headrace.runtime.metrics.histogram import HistogramSnapshot
from headrace.runtime.metrics.series import Family, SeriesSnapshot
from headrace.runtime.network.graph import RunningShape
from tests.support.manual_clock import ManualClock

SERIES = (
    SeriesSnapshot(Family("runs_total", "counter", ("kind",), "Runs."), ("whole",), 3.0),
    SeriesSnapshot(
        Family("cut_seconds", "histogram", (), "Cuts.", (0.1, 1.0)),
        (),
        HistogramSnapshot((0.1, 1.0), (1, 2, 3), 9.5),
    ),
)
SHAPES = (RunningShape("2x3", "CPU", "compiling", 0), RunningShape("1", "X.0", "faster", 99))
FACTS = counts_to_json({"0": 512}, {7: SERIES}, {7: SHAPES, 8: ()})
COUNTS = WorkerCounts({"0": 512}, {7: SERIES}, {7: SHAPES})


class Worker:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Future[Any]] = []
        self.gone = False

    def __call__(self) -> Any:
        if self.gone:
            raise Unavailable("there is none")
        return self

    def ask(self, method: str) -> Future[Any]:
        assert method == "telemetry"
        self.asked.append(Future())
        return self.asked[-1]

    def answers(self, facts: Any = FACTS) -> None:
        self.asked[-1].set_result((facts, []))


class Prompt(Worker):
    def ask(self, method: str) -> Future[Any]:
        super().ask(method)
        self.answers()
        return self.asked[-1]


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.0)


def test_what_is_told_survives_json() -> None:
    assert counts_from_json(json.loads(json.dumps(FACTS))) == COUNTS


def test_one_scrape_asks_once_and_the_next_one_again() -> None:
    worker, clock = Prompt(), ManualClock()
    telemetry = Telemetry(worker, clock=clock)
    assert [telemetry.counts() for _ in range(5)] == [COUNTS] * 5
    assert len(worker.asked) == 1
    clock.advance(0.1)
    telemetry.counts()
    assert len(worker.asked) == 2


def test_a_late_answer_is_not_waited_for_nor_asked_for_twice() -> None:
    worker, clock = Worker(), ManualClock()
    telemetry = Telemetry(worker, clock=clock)
    for _ in range(3):
        assert telemetry.counts() is None
        clock.advance(2)
    assert len(worker.asked) == 1
    worker.answers()
    assert telemetry.counts() == COUNTS
    clock.advance(2)
    assert telemetry.counts() == COUNTS  # the last that it told


def test_after_a_late_answer_a_scrape_waits_no_second_time() -> None:
    worker, clock = Worker(), ManualClock()
    telemetry = Telemetry(worker, clock=clock)
    telemetry.counts()
    worker.answers()
    clock.advance(0.5)
    assert telemetry.counts() is None
    clock.advance(0.6)
    assert telemetry.counts() == COUNTS


def test_a_worker_that_has_ended_holds_and_counts_nothing() -> None:
    worker, clock = Prompt(), ManualClock()
    telemetry = Telemetry(worker, clock=clock)
    telemetry.counts()
    worker.gone = True
    clock.advance(1)
    assert telemetry.counts() == NOTHING


def test_what_a_worker_told_is_nothing_that_the_next_one_counts() -> None:
    first, second, clock = Prompt(), Worker(), ManualClock()
    workers: list[Worker] = [first]
    telemetry = Telemetry(lambda: workers[-1](), clock=clock)
    assert telemetry.counts() == COUNTS
    workers.append(second)
    clock.advance(1)
    assert telemetry.counts() is None


def test_a_worker_that_ends_before_it_answers_is_asked_no_more() -> None:
    worker, clock = Worker(), ManualClock()
    telemetry = Telemetry(worker, clock=clock)
    telemetry.counts()
    worker.asked[-1].set_exception(Unavailable("it ended"))
    clock.advance(2)
    assert telemetry.counts() == NOTHING
    clock.advance(2)
    telemetry.counts()
    assert len(worker.asked) == 2  # the next worker


@pytest.mark.parametrize(
    "facts",
    [
        None,
        {},
        {"memory": {"0": "much"}, "series": []},
        {"memory": [], "series": []},
        {"memory": {}, "series": [[1, [["no", "series"]]]]},
        {"memory": {}, "series": [[1, [[["a", "gauge", [], "", []], [], None, 1]]]]},
        {"memory": {}, "series": [[1, [[["a", "counter", ["b"], "", []], [], None, 1]]]]},
        {"memory": {}, "series": [[1, [[["a", "histogram", [], "", [1]], [], [1], 1]]]]},
    ],
)
def test_what_cannot_be_read_changes_nothing(facts: Any) -> None:
    worker, clock = Worker(), ManualClock()
    telemetry = Telemetry(worker, clock=clock)
    telemetry.counts()
    worker.answers()
    clock.advance(2)
    assert telemetry.counts() == COUNTS
    clock.advance(2)
    telemetry.counts()
    worker.answers(facts)
    clock.advance(2)
    assert telemetry.counts() == COUNTS
