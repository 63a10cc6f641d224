"""Which requests get a line in the log, what is in it, and what is only counted."""

from __future__ import annotations

import io
import json
import logging
import time
from typing import Any

import pytest

from headrace.runtime.execution.job import Job
from headrace.server.access.identity import ANONYMOUS, STRANGER, Identity, Role
from headrace.server.logs import configure_logging
from headrace.server.request_log import LINES_A_SECOND, LINES_OF_A_CLIENT, RequestLog, RequestRecord

CI = Identity("token:ci", frozenset({Role.INFER}))


@pytest.fixture
def written() -> io.StringIO:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def ended(code: str = "OK", seconds: float = 0.001, **facts: Any) -> RequestRecord:
    given = {"request_id": "r1", "caller": CI, "peer": "ipv4:10.0.0.1:5", **facts}
    return RequestRecord("Infer", code, seconds, **given)


def finished(queued: float, execution: float, trace: str = "r1") -> Job:
    job = Job({}, lambda _: None, trace=trace)
    job.network, job.version = "m", "3"
    job.queued, job.started = 1.0, 1.0 + queued
    job.inferred, job.finished = job.started + 0.5, job.started + execution
    return job


@pytest.mark.parametrize(
    ("code", "level"),
    [
        ("NOT_FOUND", "info"),
        ("UNAUTHENTICATED", "info"),
        ("RESOURCE_EXHAUSTED", "warning"),
        ("DEADLINE_EXCEEDED", "warning"),
        ("UNAVAILABLE", "warning"),
        ("INTERNAL", "warning"),
        ("404", "info"),
        ("503", "warning"),
    ],
)
def test_a_failed_request_has_a_line_whose_level_tells_who_can_mend_it(
    code: str, level: str, written: io.StringIO
) -> None:
    RequestLog().ended(ended(code, message="the reason"))
    (line,) = lines(written)
    assert (line["event"], line["level"], line["code"]) == ("request failed", level, code)
    assert (line["request_id"], line["who"], line["reason"]) == ("r1", "token:ci", "the reason")
    assert line["seconds"] == 0.001


@pytest.mark.parametrize("code", ["OK", "200", "304", "CANCELLED", "499"])
def test_a_request_that_went_well_or_was_given_up_has_a_line_when_debugging_alone(
    code: str, written: io.StringIO
) -> None:
    RequestLog().ended(ended(code))
    assert lines(written) == []
    logging.getLogger("headrace").setLevel("DEBUG")
    RequestLog().ended(ended(code))
    (line,) = lines(written)
    assert (line["event"], line["level"], line["code"]) == ("request ended", "debug", code)


def test_a_slow_request_has_a_line_with_its_times_by_stage(written: io.StringIO) -> None:
    log = RequestLog(slow_seconds=2.0)
    assert not log.wants("OK", 1.99)
    assert log.wants("OK", 2.0)
    log.ended(ended(seconds=3.0, job=finished(1.25, 1.5)))
    (line,) = lines(written)
    assert (line["event"], line["level"]) == ("slow request", "warning")
    assert (line["network"], line["version"]) == ("m", "3")
    names = ("seconds", "queue_seconds", "execution_seconds", "inference_seconds", "other_seconds")
    assert [line[name] for name in names] == [3.0, 1.25, 1.5, 0.5, 0.25]
    assert {each.family.name: each.value for each in log.snapshot()} == {
        "slow_requests_total": 1.0,
        "log_lines_left_out_total": 0.0,
    }


def test_a_call_that_ended_before_its_request_tells_the_stages_until_then(
    written: io.StringIO,
) -> None:
    now = time.monotonic()
    running, waiting = finished(0.0, 0.0), finished(0.0, 0.0, trace="")
    for job, started in ((running, now - 60.0), (waiting, 0.0)):
        job.queued, job.started, job.inferred, job.finished = now - 100.0, started, 0.0, 0.0
    for job in (running, waiting):
        RequestLog().ended(ended("DEADLINE_EXCEEDED", seconds=100.0, job=job))
    first, second = lines(written)
    assert (first["queue_seconds"], second["execution_seconds"]) == (40.0, 0.0)
    assert first["execution_seconds"] >= 60.0
    assert second["queue_seconds"] >= 100.0
    assert first["other_seconds"] == second["other_seconds"] == 0.0
    assert "id" not in second


def test_what_may_take_any_time_is_never_slow(written: io.StringIO) -> None:
    log = RequestLog(slow_seconds=2.0)
    log.ended(ended(seconds=100.0), may_be_slow=False)
    RequestLog().ended(ended(seconds=100.0))
    assert lines(written) == []
    assert [each.family.name for each in log.snapshot()] == ["log_lines_left_out_total"]


def test_lines_beyond_the_bound_are_counted_and_the_next_line_tells(written: io.StringIO) -> None:
    seconds = [1.0]
    log = RequestLog(clock=lambda: seconds[0])
    for number in range(LINES_OF_A_CLIENT + 7):
        log.ended(ended("NOT_FOUND", request_id=f"r{number}"))
    assert len(lines(written)) == LINES_OF_A_CLIENT
    log.ended(ended("NOT_FOUND", caller=ANONYMOUS))
    assert lines(written)[-1]["left_out"] == 7
    for number in range(LINES_A_SECOND):
        log.ended(ended("UNAUTHENTICATED", caller=STRANGER, peer=f"ipv4:10.0.{number}.1:1"))
    assert len(lines(written)) == LINES_A_SECOND
    seconds[0] = 2.0
    log.ended(ended("NOT_FOUND"))
    assert lines(written)[-1]["left_out"] == LINES_OF_A_CLIENT + 1
    (left_out,) = log.snapshot()
    assert left_out.value == 7 + LINES_OF_A_CLIENT + 1


def test_each_failure_is_passed_on_even_if_it_gets_no_line() -> None:
    failed: list[RequestRecord] = []
    log = RequestLog(slow_seconds=2.0, failed=failed.append)
    requests = [ended("INVALID_ARGUMENT"), ended("500"), ended("404")]
    for each in (*requests, ended("CANCELLED"), ended("OK", seconds=9.0), ended("499")):
        log.ended(each)
    for _ in range(LINES_A_SECOND):
        log.ended(requests[0])
    assert failed == [*requests, *(requests[:1] * LINES_A_SECOND)]


def test_a_client_s_own_id_is_shown_too_if_the_request_has_another(written: io.StringIO) -> None:
    RequestLog().ended(ended("INTERNAL", job=finished(0.0, 0.0, trace="body's")))
    assert lines(written)[0]["id"] == "body's"


def test_hostile_names_make_one_bounded_line(written: io.StringIO) -> None:
    name = "n\n\x1b[2J" * 100_000
    RequestLog().ended(ended("NOT_FOUND", message=name, request_id=name, network=name))
    assert written.getvalue().count("\n") == 1
    assert len(written.getvalue()) < 50_000
