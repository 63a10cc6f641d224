"""Logs: one form for all loggers, the request's id on every line, and ids for internal errors."""

from __future__ import annotations

import io
import json
import logging
import string
from concurrent.futures import Future
from contextvars import copy_context

import onnx
import pytest

from headrace.runtime.execution.trace import Span, Trace, names
from headrace.runtime.loading.executor import LoadExecutor
from headrace.server.access.identity import CALLER, STRANGER, Identity, Role
from headrace.server.logs import (
    CURRENT_REQUEST,
    Ration,
    configure_logging,
    log_internal_error,
    new_request_id,
)
from headrace.server.tracing.context import CURRENT_SPAN
from headrace.testing.case import network_of, parse
from tests.support.patience import PATIENCE_SECONDS


def events(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_has_one_object_a_line_with_level_logger_and_time() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    logging.getLogger("headrace.server").info("loaded", extra={"network": "m"})
    (event,) = events(stream)
    assert event["event"] == "loaded"
    assert event["network"] == "m"
    assert event["level"] == "info"
    assert event["logger"] == "headrace.server"
    assert str(event["timestamp"]).endswith("Z")


def test_text_has_the_time_the_event_and_its_values() -> None:
    stream = io.StringIO()
    configure_logging("info", "text", stream)
    logging.getLogger("headrace.server").info("loaded", extra={"network": "m"})
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert "T" in line.split()[0]
    assert "loaded" in line
    assert "network=m" in line
    assert "\x1b" not in line


def test_the_standard_librarys_loggers_have_the_same_form() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    logging.getLogger("headrace.runtime.execution.job").info("%d jobs", 3, extra={"device": "CPU"})
    (event,) = events(stream)
    assert (event["event"], event["device"], event["level"]) == ("3 jobs", "CPU", "info")


def test_a_value_of_text_is_quoted_where_it_could_be_taken_for_more() -> None:
    stream = io.StringIO()
    configure_logging("info", "text", stream)
    facts = {"n": 3, "two": "two words", "more": "x who=me", "quote": "it's", "empty": ""}
    logging.getLogger("headrace.test").info("said", extra=facts)
    said = "empty= more='x who=me' n=3 quote=\"it's\" two='two words'\n"
    assert stream.getvalue().endswith(said)


def test_only_a_terminal_is_shown_colors() -> None:
    stream = io.StringIO()
    monitor = io.StringIO()
    monitor.isatty = lambda: True  # type: ignore[method-assign]
    for each in (stream, monitor):
        configure_logging("info", "text", each)
        logging.getLogger("headrace.test").warning("said")
    assert "\x1b" not in stream.getvalue()
    assert "\x1b[33mwarning" in monitor.getvalue()


def test_events_below_the_level_are_left_out() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    logging.getLogger("headrace.server").debug("request")
    logging.getLogger("headrace.runtime").debug("hop")
    assert stream.getvalue() == ""
    configure_logging("debug", "json", stream)
    logging.getLogger("headrace.server").debug("request")
    assert events(stream)[0]["event"] == "request"


@pytest.mark.parametrize(("level", "lines"), [("info", 0), ("debug", 1)])
def test_an_odd_model_is_logged_when_debugging_alone(level: str, lines: int) -> None:
    stream = io.StringIO()
    configure_logging(level, "json", stream)
    model = parse(
        "u (float[2] x) => (float[2] y) { y = headrace.test.F(x) } "
        '<domain: "headrace.test", opset_import: ["": 21]> F (v) => (w) { w = Relu(v) }'
    )
    attribute = model.graph.node[0].attribute.add(name="tag", type=onnx.AttributeProto.STRING)
    attribute.s = b"\xff not UTF-8"
    network_of(model)
    assert [event["logger"] for event in events(stream)] == ["onnx_ir.serde"] * lines


def test_other_libraries_log_warnings_only() -> None:
    stream = io.StringIO()
    configure_logging("debug", "json", stream)
    logging.getLogger("asyncio").info("chatter")
    logging.getLogger("asyncio").warning("slow callback")
    assert [event["event"] for event in events(stream)] == ["slow callback"]


def test_configuring_again_replaces_the_earlier_stream() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure_logging("info", "json", first)
    configure_logging("info", "json", second)
    logging.getLogger("headrace.server").info("once")
    assert first.getvalue() == ""
    assert len(events(second)) == 1


def test_the_request_and_its_caller_are_on_every_line_that_they_cause() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    ci = Identity("token:ci", frozenset({Role.INFER}))

    def request(caller: Identity) -> None:
        CURRENT_REQUEST.set("abc")
        CALLER.set(caller)
        logging.getLogger("headrace.server").info("inside")
        logging.getLogger("headrace.runtime").info("inside too")

    copy_context().run(request, ci)
    copy_context().run(request, STRANGER)
    logging.getLogger("headrace.runtime").info("a part", extra={"request_id": "its own"})
    logging.getLogger("headrace.server").info("outside")
    shown = [(event.get("request_id"), event.get("who")) for event in events(stream)]
    assert shown == [
        *[("abc", "token:ci")] * 2,
        *[("abc", None)] * 2,
        ("its own", None),
        (None, None),
    ]


def test_a_load_s_lines_are_those_of_the_request_that_asked_for_it() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    loads = LoadExecutor(threads=1)

    def request(identifier: str) -> Future[None]:
        CURRENT_REQUEST.set(identifier)
        return loads.submit(lambda: logging.getLogger("headrace.runtime").info("loading"))

    for identifier in ("a", "b"):
        copy_context().run(request, identifier).result(PATIENCE_SECONDS)
    loads.stop()
    assert [event["request_id"] for event in events(stream)] == ["a", "b"]


def test_request_ids_differ() -> None:
    assert len({new_request_id() for _ in range(100)}) == 100


def test_an_internal_error_is_explained_under_the_id_that_the_client_gets() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    try:
        raise RuntimeError("secret")
    except RuntimeError as error:
        error_id = log_internal_error(error, where="Infer")
    (event,) = events(stream)
    assert event["error_id"] == error_id
    assert event["where"] == "Infer"
    assert "secret" in json.dumps(event["exception"])
    assert "secret" not in error_id


def test_an_internal_error_is_logged_with_the_request_that_met_it() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    before = CURRENT_REQUEST.set("r7")
    try:
        log_internal_error(RuntimeError(), where="Infer")
    finally:
        CURRENT_REQUEST.reset(before)
    (event,) = events(stream)
    assert event["request_id"] == "r7"


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_shows_no_local_variables(form: str) -> None:
    stream = io.StringIO()
    configure_logging("info", form, stream)
    key = bytes(3).hex() + "key"
    try:
        raise RuntimeError("told")
    except RuntimeError as error:
        log_internal_error(error, where="Infer")
    assert "told" in stream.getvalue()
    assert key not in stream.getvalue()


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_line_is_bounded_whatever_a_client_s_names_are(form: str) -> None:
    stream = io.StringIO()
    configure_logging("info", form, stream)
    logging.getLogger("headrace.test").warning("layer %s is odd", "n" * 1_000_000)
    log_internal_error(RuntimeError("m" * 1_000_000), where="w" * 1_000_000)
    written = stream.getvalue()
    assert len(written) < 50_000
    assert "is odd" in written
    assert "RuntimeError" in written


def test_a_line_of_a_traced_request_has_the_ids_of_its_span() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    span = Span(Trace(1, lambda _: None), "request", 0, 1.0, "server")
    token = CURRENT_SPAN.set(span)
    try:
        logging.getLogger("headrace.server").info("one")
        log_internal_error(RuntimeError(), where="Infer")
    finally:
        CURRENT_SPAN.reset(token)
    other = Span(Trace(2, lambda _: None), "request", 0, 1.0, "server")
    logging.getLogger("headrace.runtime").info("a device's thread", extra=names(other))
    logging.getLogger("headrace.server").info("none")
    one, error, another, none = events(stream)
    assert (one["trace_id"], one["span_id"]) == (f"{1:032x}", span.span_id)
    assert error["span_id"] == span.span_id
    assert another["trace_id"] == f"{2:032x}"
    assert "trace_id" not in none


HOSTILE = (
    "m\n2026-11-22T00:00:00Z [error    ] forged\r\x1b[2J\x1b]0;owned\x07\x9b31m"
    "\u2028forged\u2029\u202egnirts\x85\x00\x7f"
)


def test_a_line_of_text_stays_one_line_whatever_a_client_s_names_are() -> None:
    stream = io.StringIO()
    configure_logging("info", "text", stream)
    logging.getLogger("headrace.test").warning("network %s", HOSTILE, extra={"network": HOSTILE})
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    assert r"m\n2026-11-22T00:00:00Z" in line


def test_a_line_of_json_stays_one_line_and_means_what_was_there() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    logging.getLogger("headrace.test").warning("network %s", HOSTILE, extra={"network": HOSTILE})
    written = stream.getvalue()
    assert set(written) <= {*string.printable} - {"\r", "\x0b", "\x0c"}
    assert written.count("\n") == 1
    assert json.loads(written)["network"] == HOSTILE


def test_no_line_of_a_traceback_looks_like_an_event() -> None:
    stream = io.StringIO()
    configure_logging("info", "text", stream)
    log_internal_error(RuntimeError(HOSTILE), where="Infer")
    first, *rest = stream.getvalue().split("\n")
    assert "internal error" in first
    assert all(line.startswith("    ") for line in rest if line)
    assert all(line.isprintable() for line in rest)


@pytest.mark.parametrize("form", ["text", "json"])
def test_values_that_are_no_texts_are_bounded_too(form: str) -> None:
    stream = io.StringIO()
    configure_logging("info", form, stream)
    facts = {"names": ["n" * 1000] * 1000, "code": 7, "nothing": None}
    logging.getLogger("headrace.test").warning("odd", extra=facts)
    assert len(stream.getvalue()) < 3000
    assert "7" in stream.getvalue()


def test_lines_are_rationed_by_the_second_in_all_and_for_each_client() -> None:
    now = [10.2]
    ration = Ration(5, 2, clock=lambda: now[0])
    shown = "".join(client for client in "aaabcccbd" if ration.allows(client))
    assert shown == "aabcc"
    now[0] = 11.0
    assert [ration.allows(client) for client in "aaab"] == [True, True, False, True]


def test_the_libraries_of_stores_log_no_errors() -> None:
    """An error's text may have more than we tell. The server tells the error in its own words."""
    stream = io.StringIO()
    configure_logging("info", "text", stream)
    logging.getLogger("gcsfs").error("cannot reach https://host/?token=secret")
    assert stream.getvalue() == ""
