"""Traces: which spans a request hands over, and when."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from headrace.runtime.errors import Cancelled, NotFound
from headrace.runtime.execution.trace import (
    MOST_CHILDREN,
    MOST_LINKS,
    Span,
    Trace,
    ends_with,
    names,
    parts_of,
    status_of,
    timed,
)


class Emitted:
    """Keeps the spans that a trace hands over, one list each time."""

    def __init__(self) -> None:
        self.handed: list[list[Span]] = []

    def __call__(self, spans: Sequence[Span]) -> None:
        self.handed.append(list(spans))

    @property
    def names(self) -> list[list[str]]:
        return [[span.name for span in spans] for spans in self.handed]


@pytest.fixture
def emitted() -> Emitted:
    return Emitted()


@pytest.fixture
def request_span(emitted: Emitted) -> Span:
    return Span(Trace(1, emitted), "request", 0, 10.0, "server")


def test_all_spans_of_a_request_are_handed_over_at_its_end(
    emitted: Emitted, request_span: Span
) -> None:
    part = request_span.child("part", 11.0)
    assert part is not None
    part.add("queue", 11.0, 12.0)
    part.finish(13.0)
    request_span.finish(14.0)
    assert emitted.handed == []
    request_span.trace.end()
    assert emitted.names == [["queue", "part", "request"]]
    (queue, _, _) = emitted.handed[0]
    assert (queue.parent, part.parent) == (part.id, request_span.id)


def test_what_ends_after_the_request_is_handed_over_at_once(
    emitted: Emitted, request_span: Span
) -> None:
    batch = request_span.child("batch")
    assert batch is not None
    request_span.finish(14.0)
    request_span.trace.end()
    batch.finish(15.0)
    assert emitted.names == [["request"], ["batch"]]


def test_the_parts_of_a_request_are_bounded_and_no_part_is_without_its_parent(
    emitted: Emitted, request_span: Span
) -> None:
    parts = [request_span.child("part") for _ in range(MOST_CHILDREN + 10)]
    assert parts.count(None) == 10
    assert parts[-1] is None


def test_links_are_bounded(request_span: Span) -> None:
    other = Span(request_span.trace, "batch", 0, 1.0)
    for _ in range(MOST_LINKS + 10):
        request_span.link(other)
    assert len(request_span.links) == MOST_LINKS


def test_times_are_those_of_the_wall_clock(request_span: Span) -> None:
    before = time.time_ns()
    now = Trace(1, lambda _: None).nanoseconds(time.monotonic())
    assert before - 1_000_000 <= now <= time.time_ns() + 1_000_000


def test_ids_are_hexadecimal_in_logs_and_metrics(request_span: Span) -> None:
    ids = names(request_span)
    assert ids == {"trace_id": f"{1:032x}", "span_id": f"{request_span.id:016x}"}
    assert names(None) == {}
    exemplar = request_span.exemplar(time.monotonic())
    assert exemplar[:2] == (ids["trace_id"], ids["span_id"])
    assert abs(exemplar.seconds - time.time()) < 60


def test_a_stage_of_a_load_becomes_a_part_with_its_status(
    emitted: Emitted, request_span: Span
) -> None:
    ended = parts_of(request_span)
    assert ended is not None
    ended("read", 1.0, 2.0, None)
    ended("compile", 2.0, 3.0, NotFound("no"))
    request_span.trace.end()
    assert [(span.name, span.end - span.start, span.status) for span in emitted.handed[0]] == [
        ("read", 1.0, ""),
        ("compile", 1.0, "NOT_FOUND"),
    ]
    assert parts_of(None) is None


@pytest.mark.parametrize(
    ("error", "status"),
    [(None, ""), (NotFound("no"), "NOT_FOUND"), (ValueError("a bug"), "INTERNAL")],
)
def test_a_load_of_its_own_ends_with_its_future(
    emitted: Emitted, error: BaseException | None, status: str
) -> None:
    span = Span(Trace(1, emitted), "load", 0, 1.0)
    future: Future[int] = Future()
    assert ends_with(span, future) is future
    assert emitted.handed == []
    if error is None:
        future.set_result(1)
    else:
        future.set_exception(error)
    assert [(each.name, each.status) for each in emitted.handed[0]] == [("load", status)]


def test_a_load_ended_when_its_work_did_however_late_its_future_tells(emitted: Emitted) -> None:
    span = Span(Trace(1, emitted), "load", 0, 1.0)
    future: Future[int] = Future()
    ends_with(span, future)
    loaded = timed(span, lambda: 1)()
    before = time.monotonic()
    future.set_result(loaded)
    assert 1.0 < emitted.handed[0][0].end <= before


def test_a_cancelled_load_says_so(emitted: Emitted) -> None:
    future: Future[int] = Future()
    ends_with(Span(Trace(1, emitted), "load", 0, 1.0), future)
    future.cancel()
    assert emitted.handed[0][0].status == "CANCELLED"
    assert status_of(Cancelled("no")) == "CANCELLED"
