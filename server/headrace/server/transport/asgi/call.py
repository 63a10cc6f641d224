"""One gRPC call over ASGI. It offers what grpc.aio's context offers to a method."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import grpc

from headrace.runtime.errors import InvalidArgument, ResourceExhausted
from headrace.server.transport.asgi import metadata
from headrace.server.transport.asgi.messages import Messages, frame

Event = dict[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

_HELD_BYTES = 64 << 10
_HEADERS = [(b"content-type", b"application/grpc"), (b"grpc-accept-encoding", b"identity")]
_START: Event = {
    "type": "http.response.start",
    "status": 200,
    "headers": _HEADERS,
    "trailers": True,
}
_OK = (b"grpc-status", b"0")
_LARGE_BYTES = 128 << 10
_BYTES_A_SECOND = 1e9  # what a fast network brings
_LONGEST_PAUSE_SECONDS = 0.002
_FIRST_LOOK_SECONDS = 0.05
_LONGEST_LOOK_SECONDS = 2.0


class CallEnded(Exception):
    """Ends a method whose call has its status."""


class AsgiCall:
    """A call. Belongs to its task, on the event loop's thread.

    Args:
        headers: the headers of the request.
        peer: the caller, as gRPC writes it.
        limits: the most bytes of a request and of a reply.
        seconds: how long the caller waits. None: as long as it takes.

    Attributes:
        look_at: when to look for the caller the next time, in seconds of the monotonic clock.
        lost: whether the caller has given up.
    """

    __slots__ = (
        *("_arrived", "_deadline", "_headers", "_largest_reply", "_messages", "_over", "_peer"),
        *(
            "_receive",
            "_receiving",
            "_send",
            "_started",
            "_status",
            "_began",
            "_task",
            "_timer",
        ),
        *("_trailing", "_whole", "look_at", "lost"),
    )

    def __init__(
        self,
        headers: metadata.Headers,
        receive: Receive,
        send: Send,
        peer: str,
        limits: tuple[int, int],
        seconds: float | None,
    ) -> None:
        self._headers = headers
        self._receive = receive
        self._send = send
        self._peer = peer
        self._messages = Messages(limits[0])
        self._largest_reply = limits[1]
        self._task = asyncio.current_task()
        self._trailing: Iterable[tuple[str, str | bytes]] = ()
        self._status: tuple[grpc.StatusCode, str] | None = None
        self._whole = False  # the last byte of the request has come
        self._started = False  # the headers of the reply are sent
        self._over = False
        self.lost = False
        self._receiving: asyncio.Future[Event] | None = None
        self._arrived: asyncio.Future[None] | None = None
        self._began = time.monotonic()
        self.look_at = self._began + _FIRST_LOOK_SECONDS
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        if seconds is not None:
            self._deadline = self._began + seconds
            self._timer = asyncio.get_running_loop().call_later(seconds, self.cancel)

    # -- for methods, as grpc.aio's context --

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> metadata.Metadata:
        return metadata.Metadata(self._headers)

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        """The client's certificate. The server in front removes the header if a client sends it."""
        for name, value in self._headers:
            if name == metadata.CERTIFICATE and (certificate := metadata.certificate_of(value)):
                return {"x509_pem_cert": [certificate]}
        return {}

    def time_remaining(self) -> float | None:
        return None if self._deadline is None else max(self._deadline - time.monotonic(), 0.0)

    def set_trailing_metadata(self, trailing: Iterable[tuple[str, str | bytes]]) -> None:
        self._trailing = trailing

    async def read(self) -> Any:
        """The next message, or grpc.aio.EOF.

        Raises:
            HeadraceError: the message cannot be read, as `Messages.take`.
        """
        while True:
            message = self._messages.take()
            if message is not None:
                return message
            if self._whole:
                if self._messages.held:
                    raise InvalidArgument("the call ended within a message; send it whole")
                return grpc.aio.EOF
            lacking = self._messages.lacking
            if lacking > _LARGE_BYTES:
                # Each piece costs a change of threads. So it gets time to grow.
                await asyncio.sleep(min(lacking / _BYTES_A_SECOND, _LONGEST_PAUSE_SECONDS))
            self._ask()
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived

    async def write(self, message: bytes) -> None:
        """Sends a message, and waits until there is room for another one.

        Raises:
            ResourceExhausted: the message is too large.
            ConnectionResetError: the caller has gone. In the call's own task, this is a cancel.
        """
        self._check_size(message)
        event = {"type": "http.response.body", "body": frame(message), "more_body": True}
        try:
            await self._start()
            # The server in front sets the result even if nobody waits any more.
            await asyncio.shield(asyncio.ensure_future(self._send(event)))
        except OSError:
            self.lost = True
            if asyncio.current_task() is self._task:
                raise asyncio.CancelledError from None
            self.cancel()
            raise ConnectionResetError("the caller has gone") from None

    async def abort(
        self, code: grpc.StatusCode, message: str, trailing: Iterable[tuple[str, str | bytes]]
    ) -> NoReturn:
        """Ends the call with an error."""
        self._status = code, message
        self._trailing = trailing
        raise CallEnded

    # -- for the application --

    def cancel(self) -> None:
        """Cancels the method."""
        if not self._over and self._task is not None:
            self._task.cancel()

    def look(self, now: float) -> None:
        """Finds out whether the caller has given up.

        The server in front says so when somebody receives. If the request has come whole, it says
        at once that there is nothing more. So the looks become rare as the call lasts.
        """
        rarely = min((now - self._began) / 2, _LONGEST_LOOK_SECONDS)
        self.look_at = now + max(rarely, _FIRST_LOOK_SECONDS)
        # A call that is not read from has bytes that wait, and flow control stops its caller.
        if self._messages.held < _HELD_BYTES:
            self._ask()

    async def reply(self, message: bytes | None) -> None:
        """Ends the call with success, and with the last message if there is one.

        Raises:
            ResourceExhausted: the message is too large.
        """
        if message is not None:
            self._check_size(message)
        self.close()
        if message is None and not self._started:
            await self._end_at_once([_OK, *metadata.encoded(self._trailing)])
            return
        await self._start()
        body = b"" if message is None else frame(message)
        await self._send({"type": "http.response.body", "body": body})
        await self._end([_OK, *metadata.encoded(self._trailing)])

    async def fail(self, code: grpc.StatusCode, message: str) -> None:
        """Ends the call with an error. A status that the method has given comes first."""
        code, message = self._status or (code, message)
        self.close()
        status = [
            (b"grpc-status", str(code.value[0]).encode()),
            (b"grpc-message", metadata.escaped(message)),
            *metadata.encoded(self._trailing),
        ]
        if not self._started:
            await self._end_at_once(status)
            return
        await self._send({"type": "http.response.body", "body": b""})
        await self._end(status)

    def close(self) -> None:
        """Ends the call without a status, because the caller has gone or gets one now."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()

    def _check_size(self, message: bytes) -> None:
        if len(message) > self._largest_reply:
            raise ResourceExhausted(
                f"a reply of {len(message)} bytes is larger than the {self._largest_reply} that "
                "the server sends (--max-message-bytes); ask for less at a time"
            )

    async def _start(self) -> None:
        if not self._started:
            self._started = True
            await self._send(_START)

    async def _end_at_once(self, status: list[tuple[bytes, bytes]]) -> None:
        """Sends the status in place of headers, because nothing was sent before."""
        headers = [*_HEADERS, *status]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": b""})

    async def _end(self, status: list[tuple[bytes, bytes]]) -> None:
        await self._send({"type": "http.response.trailers", "headers": status})

    def _ask(self) -> None:
        """Begins to receive, unless that is in progress."""
        if self._receiving is None and not self._over:
            self._receiving = asyncio.ensure_future(self._receive())
            self._receiving.add_done_callback(self._received)

    def _received(self, future: asyncio.Future[Event]) -> None:
        self._receiving = None
        if self._over:
            return
        event = future.result()
        if event["type"] == "http.disconnect":
            self.lost = True
            self.cancel()
            return
        if data := event.get("body"):
            self._messages.feed(data)
        if not event.get("more_body"):
            self._whole = True
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)
