"""One HTTP connection of uvicorn, with bounds against slow and greedy clients.

uvicorn parses requests, keeps connections alive and runs the application. It does not bound the
bytes of a head, or the time that a client takes to send a request or to read a reply. This module
does. Deadlines are attributes that the server checks ten times a second, so that a request needs no
timer.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.responses import Response
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from headrace.server.shared_memory.users import UserLookup
from headrace.server.transport.shares import Shares

_PIPELINED = 16
_SPARE_PLACES = 64


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """The bounds of a connection.

    Attributes:
        head_bytes: the most bytes of a request's line and headers, and of trailers.
        seconds: the time to send a head. To send a body or read a reply, the client has this time
            in addition to the time that `bytes_per_second` gives.
        bytes_per_second: the lowest rate at which a client may send a body or read a reply.
        idle_seconds: the longest time between two requests.
    """

    head_bytes: int = 16 << 10
    seconds: float = 5.0
    bytes_per_second: int = 64 << 10
    idle_seconds: int = 60


class ConnectionLimit:
    """Limits how many connections may be open. Belongs to the loop's thread.

    Some connections beyond `capacity` stay open. The server answers probes and metrics on them, and
    refuses all other requests. So a busy server does not look like a broken one.
    """

    def __init__(self, capacity: int) -> None:
        self.usual = Shares(capacity)
        self.spare = Shares(_SPARE_PLACES)


class HttpConnection(HttpToolsProtocol):
    """One connection. Requests find it in ``scope["state"]["connection"]``.

    Args:
        config, server_state, app_state, _loop: the same as in uvicorn.
        bounds: the bounds of this connection.
        slots: the slots that all connections of the server share.
        refused: makes the reply to what cannot be read as a request. Its arguments are the status,
            what is wrong, and the client's host and port.

    Attributes:
        on_lost: called when the client has left. The running request sets it.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        bounds: ConnectionBounds,
        slots: ConnectionLimit,
        refused: Callable[[HTTPStatus, str, tuple[str, int]], Response],
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._bounds = bounds
        self._slots = slots
        self._answer = refused
        self._held: Shares | None = None
        self._peer = ""
        self._unanswered: list[RequestResponseCycle] = []
        self.on_lost: Callable[[], object] | None = None
        self._refusal = HTTPStatus.BAD_REQUEST
        self._refused = False
        # Reading: deadlines, and the data that has arrived.
        self._idle_since = math.inf
        self._in_message = self._in_head = False
        self._read_due = math.inf
        self._body_since = 0.0
        self._body_bytes = 0
        self._progress = False
        self._quiet_bytes = 0
        # Writing: since when the client has data left to take, how much then, and how much later.
        self._unsent_since = 0.0
        self._unsent_first = 0
        self._unsent_last = 0

    # -- the connection's life --

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        host, port = self.client or ("", 0)
        self._peer = f"{host}:{port}"
        self._user = UserLookup((host, port), self.server or ("", 0))
        self._read_due = time.monotonic() + self._bounds.seconds
        slots = self._slots
        if self._take(slots.usual):
            return
        self._close_an_idle_one()
        if not (self._take(slots.usual) or self._take(slots.spare)):
            transport.close()

    async def user(self) -> int | None:
        """The id of the client's user on this machine; None if the client is elsewhere."""
        return await self._user.find()

    @property
    def is_spare(self) -> bool:
        """Whether the connection is beyond the usual number."""
        return self._held is self._slots.spare

    @property
    def is_behind(self) -> bool:
        """Whether the client reads its reply more slowly than the server writes."""
        return bool(self.flow.write_paused)

    def connection_lost(self, exc: Exception | None) -> None:
        self._give_back()
        if self.on_lost is not None:
            self.on_lost()
        for cycle in self._unanswered:  # uvicorn only tells the last request
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def _take(self, slots: Shares) -> bool:
        if slots.take(self._peer):
            self._held = slots
        return self._held is not None

    def _give_back(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.give_back(self._peer)

    def _close_an_idle_one(self) -> None:
        """Closes the longest idle connection, preferably one of this client's address."""
        address = self._peer.rpartition(":")[0]
        idle = [
            (
                connection._peer.rpartition(":")[0] != address,
                connection._idle_since,
                id(connection),
                connection,
            )
            for connection in self.connections
            if isinstance(connection, HttpConnection) and connection._idle_since < math.inf
        ]
        if idle:
            longest = min(idle)[-1]
            longest._idle_since = math.inf
            longest._give_back()
            longest.transport.close()

    def check(self, now: float) -> None:
        """Ends the connection if its client is too slow. The server calls this regularly."""
        bounds = self._bounds
        unsent = self.transport.get_write_buffer_size()
        late = False
        if now > self._read_due and not self.transport.is_closing():
            self._refuse_late()
        if not unsent:
            self._unsent_last = 0
        elif not 0 < unsent <= self._unsent_last:
            self._unsent_since, self._unsent_first = now, unsent
            self._unsent_last = unsent
        else:
            self._unsent_last = unsent
            taken = self._unsent_first - unsent
            allowed = bounds.seconds + taken / bounds.bytes_per_second
            late = late or now - self._unsent_since > allowed
        if late:
            self.transport.abort()

    def _refuse_late(self) -> None:
        """Replies to a request that has come in part, and closes the connection."""
        self._read_due = math.inf
        self._refusal = HTTPStatus.REQUEST_TIMEOUT
        if self._in_head or (self._in_message and not self.cycle.response_complete):
            self.send_400_response("")
        if not self.transport.is_closing():
            self.transport.abort()

    # -- reading --

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._idle_since < math.inf:
            self._idle_since = math.inf
            self._read_due = time.monotonic() + self._bounds.seconds
        self._progress = False
        super().data_received(data)
        # The parser keeps data until it is a whole head or a piece of a body.
        self._quiet_bytes = 0 if self._progress else self._quiet_bytes + len(data)
        if self._quiet_bytes > self._bounds.head_bytes and not self._refused:
            self._refusal = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_message = self._in_head = True
        self.scope["state"]["connection"] = self

    def on_headers_complete(self) -> None:
        headers = sum(len(name) + len(value) for name, value in self.headers)
        if len(self.url) + headers > self._bounds.head_bytes:
            self._refusal = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise ValueError("the head is too large")
        super().on_headers_complete()
        self._in_head = False
        # Trailers come from now on. They are not headers: nothing that lies behind a body may be
        # the request's credential, or say how the body is read.
        self.headers = []
        if len(self.pipeline) > _PIPELINED:
            raise ValueError("too many pipelined requests")
        self.flow.resume_reading()  # otherwise nobody would notice that the client leaves
        self._unanswered = [cycle for cycle in self._unanswered if not cycle.response_complete]
        self._unanswered.append(self.cycle)
        self._progress = True
        self._body_since, self._body_bytes = time.monotonic(), 0
        self._read_due = self._body_since + self._bounds.seconds

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._progress = True
        self._body_bytes += len(body)
        if not self.cycle.response_complete:
            bounds = self._bounds
            allowed = bounds.seconds + self._body_bytes / bounds.bytes_per_second
            self._read_due = self._body_since + allowed

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._progress = True
        self._in_message = False
        self._read_due = math.inf
        if self.cycle.response_complete:
            self._idle_since = time.monotonic()

    def on_response_complete(self) -> None:
        now = time.monotonic()
        if self._in_message:  # the rest of an unwanted body, or of the next head
            self._read_due = now + self._bounds.seconds
        elif not self.pipeline:
            self._idle_since = now
        # In a context of its own: uvicorn's timer keeps its context, and so the request's tensors.
        Context().run(super().on_response_complete)
        if self.transport.is_closing():  # the client has left before, and the timer would stay
            self._unset_keepalive_if_required()

    # -- refusing --

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's text
        """Replies to a request that cannot be parsed. If the head is too large, the status is 431.

        uvicorn calls this. It does not wait for a reply in progress: the connection is closed
        afterwards.
        """
        self._refused = True
        under_way = [cycle for cycle in self._unanswered if not cycle.response_complete]
        if any(cycle.response_started or not cycle.more_body for cycle in under_way):
            self.flow.pause_reading()
            for cycle in under_way:
                cycle.keep_alive = False
            return
        status = self._refusal
        text = {
            HTTPStatus.BAD_REQUEST: "this is not an HTTP/1 request",
            HTTPStatus.REQUEST_TIMEOUT: "the rest of the request has not come in "
            f"{self._bounds.seconds:g} s, and {self._bounds.bytes_per_second} bytes more a second",
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "the request's line and headers take more "
            f"than {self._bounds.head_bytes} bytes",
        }[status]
        reply = self._answer(status, text, self.client or ("", 0))
        lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode()]
        lines += [name + b": " + value for name, value in reply.raw_headers]
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + bytes(reply.body))
        self.transport.close()
