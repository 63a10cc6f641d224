"""The boundary around the service's methods: which request a reply or a line of the log is of."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextvars import copy_context
from pathlib import Path
from typing import Any, NoReturn

import grpc
import pytest

from headrace.runtime.errors import NotFound
from headrace.runtime.metrics.counters import Counters
from headrace.server.access.audit import AuditLog
from headrace.server.access.authenticator import Authenticator
from headrace.server.access.entrance import Entrance
from headrace.server.access.gate import Gate
from headrace.server.access.identity import Role
from headrace.server.access.tokens import parse_entries
from headrace.server.access.watched import WatchedFiles
from headrace.server.logs import configure_logging
from headrace.server.transport.boundary import Boundary
from headrace.server.transport.call import CallOver
from headrace.server.transport.statuses import describe
from headrace.wire.errors import REQUEST_ID_KEY, from_trailing_metadata
from tests.support.calls import Aborted, FakeCall
from tests.support.tokens import entry


async def succeed(_request: Any, _context: Any) -> str:
    return "reply"


async def refuse(_request: Any, _context: Any) -> str:
    raise NotFound("there is none")


def run(
    handler: Callable[[Any, Any], Awaitable[Any]], context: FakeCall, **options: Any
) -> dict[str, Any]:
    """The trailing metadata of one call, in a task of its own, as gRPC runs it."""

    async def call() -> None:
        await Boundary(Counters(), max_calls=1).unary("Method", handler, **options)(context)

    try:
        copy_context().run(asyncio.run, call())
    except Aborted:
        assert context.code is not None
    return context.trailing


def test_a_reply_comes_with_the_id_under_which_the_log_knows_the_call() -> None:
    stream = io.StringIO()
    configure_logging("debug", "json", stream)
    identifier = run(succeed, FakeCall())[REQUEST_ID_KEY]
    events = map(json.loads, stream.getvalue().splitlines())
    (ended,) = (each for each in events if each["event"] == "request ended")
    assert (ended["request_id"], ended["method"], ended["code"]) == (identifier, "Method", "OK")


def test_an_error_comes_with_the_same_id_as_a_reply_would() -> None:
    context = FakeCall((REQUEST_ID_KEY, "mine"))
    trailing = run(refuse, context)
    assert trailing[REQUEST_ID_KEY] == "mine"
    details = from_trailing_metadata(context.code, context.message, trailing.items())
    assert (details.message, details.request_id) == ("there is none", "mine")


def test_a_failed_call_is_in_the_log_under_the_id_that_its_caller_got() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    identifier = run(refuse, FakeCall())[REQUEST_ID_KEY]
    (failed,) = map(json.loads, stream.getvalue().splitlines())
    assert failed["event"] == "request failed"
    assert (failed["request_id"], failed["code"]) == (identifier, "NOT_FOUND")
    assert failed["reason"] == "there is none"
    assert failed["peer"] == "ipv4:127.0.0.1:1"


def test_who_reads_an_error_finds_it_in_the_metrics_and_the_log() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    counters = Counters()

    class Watching(FakeCall):
        async def abort(self, code: Any, message: str, metadata: Any) -> NoReturn:
            assert counters.grpc("Method") == {"NOT_FOUND": 1}
            assert "request failed" in stream.getvalue()
            await super().abort(code, message, metadata)

    async def call() -> None:
        await Boundary(counters, max_calls=1).unary("Method", refuse)(Watching())

    with pytest.raises(Aborted):
        asyncio.run(call())


def test_the_caller_may_name_the_call() -> None:
    assert run(succeed, FakeCall((REQUEST_ID_KEY, "mine")))[REQUEST_ID_KEY] == "mine"


def test_no_two_calls_without_a_name_have_one_id() -> None:
    ids = {run(succeed, FakeCall((REQUEST_ID_KEY, "")))[REQUEST_ID_KEY] for _ in range(8)}
    assert len(ids) == 8
    assert all(ids)


def test_an_id_that_metadata_cannot_hold_does_not_fail_the_call() -> None:
    assert run(succeed, FakeCall((REQUEST_ID_KEY, "two\nlines"))) == {}


def test_a_reply_that_says_itself_which_request_it_answers_costs_no_metadata() -> None:
    class Untouched(FakeCall):
        def set_trailing_metadata(self, metadata: Any) -> None:
            pytest.fail("on the hot path")

        def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
            pytest.fail("on the hot path")

    configure_logging("info", "json", io.StringIO())
    assert run(succeed, Untouched(), names_request=True) == {}


def test_a_bug_is_logged_with_the_id_of_the_request_of_a_stream_that_met_it() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    details = describe(RuntimeError("a bug"), where="InferStream", request="r7")
    (event,) = map(json.loads, stream.getvalue().splitlines())
    assert event["request_id"] == details.request_id == "r7"
    assert event["error_id"] == details.metadata["error_id"]


def test_an_error_that_was_told_keeps_no_message_by_its_traceback_and_a_bug_keeps_its_own() -> None:
    configure_logging("info", "json", io.StringIO())
    cause = ValueError("of the backend")
    for error, is_kept in ((NotFound("there is none"), False), (RuntimeError("a bug"), True)):
        try:
            try:
                raise cause
            except ValueError as raised:
                raise error from raised
        except Exception as failure:  # noqa: BLE001 - as the boundary catches it
            describe(failure, where="Method")
        assert (error.__traceback__ is not None, cause.__traceback__ is not None) == (
            (is_kept, is_kept)
        )


def test_a_call_that_ends_before_it_can_be_refused_counts_as_cancelled_and_logs_no_error() -> None:
    class Ended(FakeCall):
        async def abort(self, *_: Any) -> NoReturn:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run(refuse, Ended())


@pytest.mark.parametrize("draining", [False, True])
def test_a_stranger_is_refused_as_such_however_busy_the_server_is(
    tmp_path: Path, *, draining: bool
) -> None:
    """It takes no place, and the audit log counts it among the refused ones."""
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(entry("a", "a", "manage"))
    gate = Gate(Authenticator(WatchedFiles([tokens], parse_entries, field="tokens")))
    log = AuditLog(tmp_path / "audit")
    boundary = Boundary(Counters(), 1, Entrance(gate, log, {}))
    boundary.draining = draining
    context = FakeCall()

    async def calls() -> None:
        assert boundary.calls.slots.take("ipv4:10.0.0.1:1")
        with pytest.raises(Aborted):
            await boundary.unary("LoadNetwork", succeed)(context)
        boundary.calls.slots.give_back("ipv4:10.0.0.1:1")
        assert boundary.calls.slots.taken == 0

    asyncio.run(calls())
    log.close()
    assert context.code is grpc.StatusCode.UNAUTHENTICATED
    assert "calls" not in context.message
    (line,) = map(json.loads, (tmp_path / "audit").read_text().splitlines())
    assert (line["who"], line["refusal"]) == ("stranger", "no_credential")


def test_a_caller_that_leaves_between_two_replies_is_no_bug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Left(FakeCall):
        async def write(self, message: bytes) -> None:
            raise CallOver

    async def pieces(_data: Any, _context: Any) -> AsyncGenerator[bytes, None]:
        yield b"piece"

    counters = Counters()

    async def call() -> None:
        boundary = Boundary(counters, 1)
        export = boundary.server_stream("ExportNetwork", pieces, boundary.calls, Role.MANAGE)
        with pytest.raises(asyncio.CancelledError):
            await export(Left())

    asyncio.run(call())
    assert counters.grpc("ExportNetwork") == {"CANCELLED": 1}
    assert not caplog.records
