"""W3C trace context from callers: what is valid is read, and the rest is ignored in silence."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace.span import TraceState

from headrace.server.tracing.context import MAX_STATE_LENGTH, Parent, parent_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{SPAN}-01"
PARENT = Parent(int(TRACE, 16), int(SPAN, 16), sampled=True)


def test_text_of_grpc_and_bytes_of_http_are_read_alike() -> None:
    assert parent_of([("user-agent", "x"), ("traceparent", VALID)]) == PARENT
    assert parent_of([(b"traceparent", VALID.encode())]) == PARENT
    assert parent_of([]) is None


def test_the_last_bit_of_the_flags_says_whether_the_caller_traces() -> None:
    for flags, sampled in (("00", False), ("01", True), ("02", False), ("03", True)):
        found = parent_of([("traceparent", f"00-{TRACE}-{SPAN}-{flags}")])
        assert found is not None
        assert found.sampled is sampled


def test_a_later_version_may_have_more_fields() -> None:
    assert parent_of([("traceparent", f"01-{TRACE}-{SPAN}-01-what-comes")]) == PARENT


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01 ",
        f"00-{TRACE}-{SPAN}-01\n",
        f"01-{TRACE}-{SPAN}-01-{'x' * 100_000}",
        "00-" + "a" * 100_000,
    ],
)
def test_an_invalid_parent_is_as_none(text: str) -> None:
    assert parent_of([("traceparent", text)]) is None


def test_two_parents_are_as_none() -> None:
    assert parent_of([("traceparent", VALID), ("traceparent", VALID)]) is None


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        ("vendor=value", "vendor=value"),
        (" a=1 , b=2 ,", "a=1,b=2"),
        ("t@v=x", "t@v=x"),
        ("a=1,a=2", ""),
        ("A=1", ""),
        ("a", ""),
        ("a=é", ""),
        ("a=b=c", ""),
        ("a=" + "x" * MAX_STATE_LENGTH, ""),
        (",".join(f"k{n}=1" for n in range(33)), ""),
    ],
)
def test_a_state_is_kept_if_it_is_valid_and_short(state: str, kept: str) -> None:
    found = parent_of([("traceparent", VALID), ("tracestate", state)])
    assert found == PARENT._replace(state=kept)


@given(st.text(max_size=600), st.text(max_size=600))
def test_whatever_callers_send_is_read_without_an_error_or_a_line_in_the_sdk_s_log(
    parent: str, state: str
) -> None:
    said: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = said.append  # type: ignore[assignment, method-assign]
    logger = logging.getLogger("opentelemetry")
    logger.addHandler(handler)
    try:
        for text in (parent, VALID):
            found = parent_of([("traceparent", text), ("tracestate", state)])
            if found is not None and found.state:
                assert TraceState.from_header([found.state]).to_header() == found.state
    finally:
        logger.removeHandler(handler)
    assert not said
