"""The engine's side of the calls that come in through one front end.

Each call runs in a task of its own and goes through the boundary, as it does in a server of one
process. So access, quotas, places, counters, the request log and errors are the same, and there is
one of each for all front ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import grpc

from headrace.server.processes import frames, heads
from headrace.server.processes.frames import Broken, Frame
from headrace.server.processes.heads import Begin, Callers
from headrace.server.processes.link import Link
from headrace.server.processes.users import ASKING, Asking
from headrace.server.services.methods import Handlers
from headrace.server.transport.boundary import Call

_log = logging.getLogger(__name__)

_FAILED: Final = "the call failed; the server's log says why"
_UNWRITTEN_MESSAGES: Final = 4
"""The messages of a stream that may be under way to the caller, if they are small. Results that
finish meanwhile gather into the next message."""


class _Aborted(Exception):
    """The call has its status."""


class RelayedCall:
    """A call as services see it: what grpc.aio's context is in a server of one process."""

    def __init__(self, link: Link, number: int, begin: Begin, *, eager: bool) -> None:
        self._link = link
        self._number = number
        self._begin = begin
        self._room = frames.WINDOW_BYTES if eager else 0  # bytes that the front end may still send
        self._consumed = 0  # bytes that were read since the front end was last told
        self._messages: deque[bytes] = deque()
        self._last = False
        self._unwritten: deque[int] = deque()  # the sizes of messages that the caller has not read
        self._unwritten_bytes = 0
        self._readable, self._writable = asyncio.Event(), asyncio.Event()
        self._trailing: heads.Metadata = ()
        self.gone = False  # nobody waits for the call's status any more
        self._done: asyncio.Future[None] | None = None  # while `done` waits
        self._is_done = False

    def peer(self) -> str:
        return self._begin.caller.peer

    def invocation_metadata(self) -> heads.Metadata:
        return self._begin.caller.metadata

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        certificate = self._begin.caller.certificate
        return {"x509_pem_cert": [certificate.encode()]} if certificate else {}

    def time_remaining(self) -> float | None:
        deadline = self._begin.deadline
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    def set_trailing_metadata(self, metadata: heads.Metadata) -> None:
        self._trailing = metadata

    async def read(self) -> Any:
        """The next message, or EOF."""
        while not self._messages:
            if self._last:
                return grpc.aio.EOF
            if self._room <= 0:
                self._give_room(frames.WINDOW_BYTES)
            self._readable.clear()
            await self._readable.wait()
        message = self._messages.popleft()
        self._consumed += len(message) + frames.OVERHEAD
        if self._consumed >= frames.WINDOW_BYTES // 2 and not self._last:
            self._give_room(self._consumed)
            self._consumed = 0
        return message

    async def write(self, message: bytes) -> None:
        """Returns when there is room for the next message. So a large message has been written,
        and its writer counts its bytes for as long as the front end holds them."""
        size = len(message) + frames.OVERHEAD
        self._unwritten.append(size)
        self._unwritten_bytes += size
        self._link.send_message(frames.MESSAGE, self._number, b"", message)
        while (
            len(self._unwritten) >= _UNWRITTEN_MESSAGES
            or self._unwritten_bytes >= frames.WINDOW_BYTES
        ):
            self._writable.clear()
            await self._writable.wait()

    async def abort(self, code: Any, details: str = "", trailing: heads.Metadata = ()) -> NoReturn:
        """Ends the call with an error."""
        self.end(code.value[0], details, trailing)
        raise _Aborted

    def end(
        self, code: int = 0, details: str = "", trailing: heads.Metadata = (), reply: Any = None
    ) -> None:
        """Sends the status, and the reply if there is one. Idempotent."""
        if self.gone:
            return
        self.gone = True
        body = heads.status(code, details, trailing or self._trailing)
        if reply is None:
            self._link.send(frames.END, self._number, body)
        else:
            self._link.send_message(frames.END, self._number, body, reply)

    async def done(self) -> None:
        """Returns when the caller has read everything, after `end`."""
        if not self._is_done:
            self._done = asyncio.get_running_loop().create_future()
            await self._done

    # -- what the front end says --

    def take(self, message: bytes) -> None:
        """
        Raises:
            Broken: the front end has sent more than it may.
        """
        if self._last or self._room <= 0:
            raise Broken("a message came that nobody has asked for")
        self._room -= len(message) + frames.OVERHEAD
        self._messages.append(message)
        self._readable.set()

    def take_last(self) -> None:
        self._last = True
        self._readable.set()

    def take_room(self, messages: int) -> None:
        if not 0 < messages <= len(self._unwritten):
            raise Broken("messages were written that were not sent")
        for _ in range(messages):
            self._unwritten_bytes -= self._unwritten.popleft()
        self._writable.set()

    def take_done(self) -> None:
        if not self.gone or self._is_done:
            raise Broken("a caller has a status that was not sent")
        self._is_done = True
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _give_room(self, size: int) -> None:
        self._room += size
        self._link.send(frames.ROOM, self._number, frames.number(size))


class Calls:
    """The open calls of one front end. Belongs to the event loop's thread.

    Args:
        link: the connection to the front end.
        handlers: the methods, whose order is that of the table that the front end has.
    """

    def __init__(self, link: Link, handlers: Handlers) -> None:
        self._link = link
        self._asking = Asking(link)
        self._handlers = handlers
        self._paths = list(handlers.kinds)
        self._callers = Callers()
        self._open: dict[int, tuple[RelayedCall, asyncio.Task[None]]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def take(self, frame: Frame) -> None:
        """Handles a frame of a call. A frame of a call that has ended comes late, and is ignored.

        Raises:
            Broken: the front end must not send this.
        """
        if frame.kind == frames.BEGIN:
            self._begin(frame)
            return
        if frame.kind == frames.ASK:
            self._asking.take(frame)
            return
        message = self._link.message(
            frame
        )  # in any case, because shared memory has to be given back
        found = self._open.get(frame.call)
        if found is None:
            return
        call, task = found
        if frame.kind == frames.MESSAGE:
            if message is None:
                raise Broken("a message without bytes")
            call.take(message)
        elif frame.kind == frames.END:
            call.take_last()
        elif frame.kind == frames.ROOM:
            call.take_room(frames.parse_number(frame.body))
        elif frame.kind == frames.DONE:
            call.take_done()
        elif frame.kind == frames.CANCEL:
            call.gone = True
            task.cancel()
        else:
            raise Broken(f"a frame of kind {frame.kind}")

    def cancel_all(self) -> None:
        """Cancels all calls, because the front end has gone."""
        for call, task in list(self._open.values()):
            call.gone = True
            task.cancel()

    def _begin(self, frame: Frame) -> None:
        if frame.call in self._open:
            raise Broken("a call began twice")
        begin = heads.parse_begin(frame.body, len(self._paths), self._callers)
        path = self._paths[begin.method]
        call = RelayedCall(self._link, frame.call, begin, eager=bool(frame.flags & frames.EAGER))
        message = self._link.message(frame, begin.offset)
        if message is not None:
            call.take(message)
        if frame.flags & frames.LAST:
            call.take_last()
        task = asyncio.get_running_loop().create_task(self._run(path, call))
        self._open[frame.call] = call, task
        number = frame.call
        task.add_done_callback(lambda _: self._open.pop(number, None))

    async def _run(self, path: str, call: RelayedCall) -> None:
        """Runs a call until its caller has read everything. Its place and the bytes of its reply
        count until then, as gRPC's own tasks do it in a server of one process."""
        ASKING.set(self._asking)
        metadata: Any = call.invocation_metadata()
        method: Any = self._handlers.service(Call(path, metadata))
        try:
            if method.response_streaming:
                await method.stream_stream(None, call)
                call.end()
            else:
                reply = await method.stream_unary(None, call)
                serialize = method.response_serializer
                call.end(reply=reply if serialize is None else serialize(reply))
        except _Aborted:
            pass
        except asyncio.CancelledError:
            call.end(grpc.StatusCode.CANCELLED.value[0])
            raise
        except Exception:  # noqa: BLE001 - the caller needs a status in any case
            _log.exception("a call failed behind the boundary")
            call.end(grpc.StatusCode.UNKNOWN.value[0], _FAILED)
        await call.done()
