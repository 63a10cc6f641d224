"""gRPC calls over ASGI: what a caller gets, and when a method is cancelled."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import grpc
import pytest

from headrace.runtime.errors import NotFound
from headrace.runtime.metrics.counters import Counters
from headrace.server.access.identity import Role
from headrace.server.logs import configure_logging
from headrace.server.transport.asgi.application import GrpcApplication
from headrace.server.transport.asgi.messages import Messages, frame
from headrace.server.transport.asgi.metadata import Metadata
from headrace.server.transport.boundary import Boundary
from headrace.wire.errors import from_trailing_metadata

SECONDS = 60.0
HEADERS = [(b"content-type", b"application/grpc"), (b"te", b"trailers")]
REQUEST = {"type": "http.request", "body": frame(b"hello"), "more_body": False}
NOTHING = {"type": "http.request", "body": b"", "more_body": False}
GONE = {"type": "http.disconnect"}


class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """One method under every path but /none."""

    def __init__(self, handler: grpc.RpcMethodHandler) -> None:
        self.handler = handler

    def service(self, details: Any) -> grpc.RpcMethodHandler | None:
        return None if details.method == "/none" else self.handler


class Front:
    """The server in front, for one call. Says what the caller gets."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self.coming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for each in events:
            self.coming.put_nowait(each)
        self.ended = False
        self.sent: list[dict[str, Any]] = []
        self.written = asyncio.Event()
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.broken = False

    async def receive(self) -> dict[str, Any]:
        if self.ended and self.coming.empty():
            return NOTHING  # there is nothing more, and that is known at once
        event = await self.coming.get()
        self.ended = not event.get("more_body")
        return event

    async def send(self, event: dict[str, Any]) -> None:
        if self.broken:
            raise OSError
        self.sent.append(event)
        self.written.set()
        if event.get("more_body"):
            await self.may_write.wait()

    @property
    def messages(self) -> list[bytes]:
        bodies = b"".join(each.get("body", b"") for each in self.sent)
        messages, found = Messages(1 << 20), []
        messages.feed(bodies)
        while (message := messages.take()) is not None:
            found.append(message)
        return found

    @property
    def status(self) -> dict[str, Any]:
        """The headers with the status: trailers, or the only headers."""
        assert sum(each["type"] == "http.response.start" for each in self.sent) == 1
        last = self.sent[-1]
        if last["type"] == "http.response.body":  # nothing was sent before
            assert [each["type"] for each in self.sent[:-1]] == ["http.response.start"]
            last = self.sent[0]
        found = dict(last["headers"])
        code = next(
            each for each in grpc.StatusCode if str(each.value[0]).encode() == found[b"grpc-status"]
        )
        return {"code": code, "metadata": list(Metadata(last["headers"]))}


def application(handler: Any, *, unary: bool = True, **limits: int) -> GrpcApplication:
    make = grpc.stream_unary_rpc_method_handler if unary else grpc.stream_stream_rpc_method_handler
    sizes = {"largest_request": 1 << 16, "largest_reply": 1 << 16, **limits}
    return GrpcApplication(Handlers(make(handler)), **sizes)


async def call(
    app: GrpcApplication, front: Front, *headers: tuple[bytes, bytes], **scope: Any
) -> None:
    whole = {"method": "POST", "path": "/a/b", "client": ("10.0.0.1", 5), **scope}
    whole.setdefault("headers", [*HEADERS, *headers])
    await app(whole, front.receive, front.send)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), SECONDS))


async def echo(_: Any, context: Any) -> bytes:
    data: bytes = await context.read()
    return data


def test_a_unary_call_gets_its_reply_and_status() -> None:
    async def test() -> None:
        front = Front(REQUEST)
        await call(application(echo), front)
        assert front.messages == [b"hello"]
        assert front.status["code"] is grpc.StatusCode.OK
        assert [each["type"] for each in front.sent] == [
            *("http.response.start", "http.response.body", "http.response.trailers")
        ]

    run(test)


def test_a_method_learns_who_calls_and_what_it_sent() -> None:
    async def test() -> None:
        found: list[Any] = []

        async def method(_: Any, context: Any) -> bytes:
            found.extend((context.peer(), dict(context.invocation_metadata())))
            found.append((context.auth_context(), context.time_remaining()))
            return b""

        await call(application(method), Front(REQUEST), (b"key", b"value"))
        assert found == ["ipv4:10.0.0.1:5", {"key": "value"}, ({}, None)]

    run(test)


def test_a_stream_reads_until_the_end_and_writes_as_it_goes() -> None:
    async def test() -> None:
        async def method(_: Any, context: Any) -> None:
            while (data := await context.read()) is not grpc.aio.EOF:
                await context.write(data * 2)
            context.set_trailing_metadata((("key", "end"),))

        more = {"type": "http.request", "body": frame(b"a") + frame(b"b")[:3], "more_body": True}
        rest = {"type": "http.request", "body": frame(b"b")[3:], "more_body": False}
        front = Front(more, rest)
        await call(application(method, unary=False), front)
        assert front.messages == [b"aa", b"bb"]
        assert front.status["code"] is grpc.StatusCode.OK
        assert ("key", "end") in front.status["metadata"]

    run(test)


def test_a_stream_without_replies_has_its_status_in_place_of_headers() -> None:
    async def test() -> None:
        async def method(_: Any, context: Any) -> None:
            await context.read()

        front = Front(REQUEST)
        await call(application(method, unary=False), front)
        assert len(front.sent) == 2
        assert front.status["code"] is grpc.StatusCode.OK

    run(test)


def test_an_error_carries_its_details() -> None:
    async def test() -> None:
        async def method(_: Any, context: Any) -> bytes:
            raise NotFound("no network 'zwölf %'", field="network")

        boundary = Boundary(Counters(), 4)
        front = Front(REQUEST)
        await call(application(boundary.unary("Infer", method, role=Role.OPEN)), front)
        status = front.status
        details = from_trailing_metadata(status["code"], "", status["metadata"])
        assert details.code is grpc.StatusCode.NOT_FOUND
        assert (details.message, details.field) == ("no network 'zwölf %'", "network")
        assert front.messages == []

    run(test)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"headers": HEADERS[:1]}, 415),
        ({"headers": [(b"content-type", b"text/html"), HEADERS[1]]}, 415),
        ({"method": "GET"}, 405),
    ],
)
def test_what_is_not_grpc_gets_a_status_of_http(change: dict[str, Any], status: int) -> None:
    async def test() -> None:
        front = Front(REQUEST)
        await call(application(echo), front, **change)
        assert front.sent[0]["status"] == status

    run(test)


def test_an_unknown_method_is_unimplemented() -> None:
    async def test() -> None:
        front = Front(REQUEST)
        await call(application(echo), front, path="/none")
        assert front.status["code"] is grpc.StatusCode.UNIMPLEMENTED

    run(test)


def test_a_broken_timeout_is_refused() -> None:
    async def test() -> None:
        front = Front(REQUEST)
        await call(application(echo), front, (b"grpc-timeout", b"soon"))
        assert front.status["code"] is grpc.StatusCode.INVALID_ARGUMENT

    run(test)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (frame(b"x" * 9), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (b"\1\0\0\0\1x", grpc.StatusCode.UNIMPLEMENTED),
        (b"\7\0\0\0\1x", grpc.StatusCode.INVALID_ARGUMENT),
        (frame(b"xxxx")[:-1], grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_a_message_that_cannot_be_read_ends_the_call(body: bytes, code: grpc.StatusCode) -> None:
    async def test() -> None:
        front = Front({"type": "http.request", "body": body, "more_body": False})
        await call(application(echo, largest_request=8), front)
        assert front.status["code"] is code

    run(test)


def test_a_reply_that_is_too_large_is_an_error() -> None:
    async def test() -> None:
        front = Front(REQUEST)
        await call(application(echo, largest_reply=4), front)
        assert front.status["code"] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert front.messages == []

    run(test)


def test_a_deadline_cancels_the_method_and_says_so() -> None:
    async def test() -> None:
        ended: list[str] = []

        async def method(_: Any, context: Any) -> bytes:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise
            return b""

        front = Front(REQUEST)
        await call(application(method), front, (b"grpc-timeout", b"20m"))
        assert ended == ["cancelled"]
        assert front.status["code"] is grpc.StatusCode.DEADLINE_EXCEEDED

    run(test)


@pytest.mark.parametrize("whole", [True, False])
def test_a_caller_that_goes_cancels_the_method(whole: bool) -> None:
    """Also if its request has come whole, when the server in front tells only those who ask."""

    async def test() -> None:
        waits, ended = asyncio.Event(), asyncio.Event()

        async def method(_: Any, context: Any) -> bytes:
            await context.read()
            waits.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return b""

        front = Front({**REQUEST, "more_body": not whole})
        task = asyncio.create_task(call(application(method), front))
        await waits.wait()
        front.coming.put_nowait(GONE)
        await ended.wait()
        await task
        assert front.sent == []

    run(test)


def test_a_write_waits_for_room() -> None:
    async def test() -> None:
        wrote: list[int] = []

        async def method(_: Any, context: Any) -> None:
            for number in range(3):
                await context.write(b"x")
                wrote.append(number)

        front = Front(REQUEST)
        front.may_write.clear()
        task = asyncio.create_task(call(application(method, unary=False), front))
        await front.written.wait()
        assert wrote == []
        front.may_write.set()
        await task
        assert wrote == [0, 1, 2]

    run(test)


def test_a_write_to_a_caller_that_has_gone_cancels_the_method() -> None:
    async def test() -> None:
        ended: list[BaseException] = []

        async def method(_: Any, context: Any) -> None:
            front.broken = True
            try:
                await context.write(b"x")
            except BaseException as error:
                ended.append(error)
                raise

        front = Front(REQUEST)
        await call(application(method, unary=False), front)
        assert [type(each) for each in ended] == [asyncio.CancelledError]

    run(test)


def test_another_task_that_writes_to_such_a_caller_learns_it_and_ends_the_call() -> None:
    async def test() -> None:
        errors: list[BaseException] = []

        async def method(_: Any, context: Any) -> None:
            async def write() -> None:
                try:
                    await context.write(b"x")
                except OSError as error:
                    errors.append(error)

            front.broken = True
            writer: Awaitable[None] = asyncio.create_task(write())
            try:
                await asyncio.Event().wait()
            finally:
                await writer

        front = Front(REQUEST)
        await call(application(method, unary=False), front)
        assert [type(each) for each in errors] == [ConnectionResetError]

    run(test)


def test_the_stop_of_the_server_ends_open_calls_as_unavailable() -> None:
    async def test() -> None:
        waits = asyncio.Event()

        async def method(_: Any, context: Any) -> bytes:
            waits.set()
            await asyncio.Event().wait()
            return b""

        app, front = application(method), Front(REQUEST)
        task = asyncio.create_task(call(app, front))
        await waits.wait()
        app.calls.cancel_all()
        await task
        assert front.status["code"] is grpc.StatusCode.UNAVAILABLE

    run(test)


def test_a_bug_of_a_method_is_told_in_the_log_only() -> None:
    log = io.StringIO()
    configure_logging(stream=log)

    async def test() -> None:
        async def method(_: Any, context: Any) -> bytes:
            raise RuntimeError("secret")

        front = Front(REQUEST)
        await call(application(method), front)
        assert front.status["code"] is grpc.StatusCode.INTERNAL
        assert b"secret" not in repr(front.sent).encode()
        assert "secret" in log.getvalue()

    run(test)
