"""One shared stream of the synchronous client, and its threads."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeAlias

import grpc

from headrace.client.multiplex.choice import Choice
from headrace.client.multiplex.gathering import MAX_MESSAGE_REQUESTS, Gathering
from headrace.client.multiplex.outcome import Closed, Expired, Failure, Lost, Outcome
from headrace.client.multiplex.threads.exits import PATIENCE_SECONDS, close_at_exit, wait_for
from headrace.wire.codec import CodecError
from headrace.wire.stream import parse_infer_stream_reply

Metadata: TypeAlias = tuple[tuple[str, str], ...]
_let_others_run: Callable[[], None] = getattr(os, "sched_yield", partial(time.sleep, 0))


class Shared:
    """What the streams of a client share, and their threads hold: not the client itself.

    Attributes:
        all: the streams whose threads have not ended.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.lock = threading.Lock()
        self.choice = Choice()
        self.stream: Stream | None = None
        self.all: set[Stream] = set()
        self.closed = False


class Stream:
    """One stream and its threads. gRPC's thread takes messages from `_messages`; another one, the
    reader, reads results and settles requests. A third one, if requests without a waiting thread
    have timeouts, ends those whose time is up.

    The reader ends last, except for the third one: it waits for gRPC's thread, and gives up the
    call. After `close`, nothing is left that could take or hold a lock of gRPC.
    """

    def __init__(self, shared: Shared, start: Callable[..., Any], metadata: Metadata) -> None:
        self.metadata = metadata
        self.gathering: Gathering[Any] = Gathering()
        self._shared = shared
        self._lock = shared.lock
        self._bell = threading.Lock()  # held, unless the writer is to look for a message
        self._bell.acquire()
        self._listens = False  # whether the writer waits for the bell
        self._earlier = threading.Condition(self._lock)
        self._looks_at: float | None = None  # when the thread of deadlines looks again
        self._ended = False
        self._retired = False
        self._cancelled = False
        self._call: Any = None
        self._reader = threading.Thread(
            target=self._run, args=(start,), name="headrace-results", daemon=True
        )
        self._writer: Future[threading.Thread] = Future()
        self._expirer: threading.Thread | None = None

    def begin(self) -> None:
        """Starts the reader, which starts the call. The caller holds the lock."""
        self._reader.start()
        close_at_exit(self)

    def add(self, item: Any) -> bool:
        """Takes a request if there is room. The caller holds the lock."""
        if self._ended or self._retired:
            return False
        if item.blocks and threading.get_ident() == self._reader.ident:
            return False  # a callback: the reader would wait for itself
        if not self.gathering.takes(item.data):
            return False
        self.gathering.add(item)
        self._ring()
        if item.deadline is not None:
            self._watch(item.deadline)
        return True

    def give_up(self, item: Any, *, late: bool = False) -> bool:
        """Waits for a request no longer. Returns False if it has been settled.

        Args:
            late: its time is up. The server is then asked whether it still answers.
        """
        with self._lock:
            if not self.gathering.give_up(item):
                return False
            current = self._shared.stream is self
            if late and current and self._shared.choice.doubted(self._shared.clock()):
                self.gathering.ask()
            self._ring()
        return True

    def retire(self) -> None:
        """Ends the stream when all its requests have ended. The caller holds the lock."""
        self._retired = True
        self._ring()

    def cancel(self) -> None:
        self._cancelled = True
        if (call := self._call) is not None:
            call.cancel()

    def close(self) -> None:
        """Cancels the requests in flight, and waits for the stream's threads. Idempotent."""
        self.end(Closed())
        self.cancel()
        wait_for(self._reader)
        wait_for(self._expirer)

    def end(self, outcome: Outcome) -> None:
        """Settles all requests with this outcome. Idempotent."""
        shared = self._shared
        with self._lock:
            self._ended = True
            if shared.stream is self:
                shared.stream = None
                shared.choice.ended(shared.clock())
            left = self.gathering.end()
            self._ring()
            self._earlier.notify()
        for item in left:
            item.settle(outcome)

    def _ring(self) -> None:
        """Has gRPC's thread look for a message. The caller holds the lock."""
        if self._listens:
            self._listens = False
            self._bell.release()

    def _messages(self) -> Iterator[bytes]:
        self._writer.set_result(threading.current_thread())
        while True:
            with self._lock:
                ready = self.gathering.is_ready
                if not ready and (self._ended or (self._retired and self.gathering.is_idle)):
                    return
                self._listens = not ready
            if not ready:
                self._bell.acquire()
                continue
            self._gather()
            with self._lock:
                message = self.gathering.next_message(self._shared.clock())
            if message is not None:
                yield message

    def _gather(self) -> None:
        """Lets other threads run as long as each turn brings requests for the next message.

        A message of results wakes many threads at once. Without this, the first one's next request
        would travel alone. A thread that has no company waits for nobody.
        """
        if self.gathering.company <= 1:
            return
        seen = -1
        while seen < (waiting := self.gathering.waiting) < MAX_MESSAGE_REQUESTS:
            seen = waiting
            _let_others_run()

    def _run(self, start: Callable[..., Any]) -> None:
        status: Failure | None = None
        try:
            self._call = start(self._messages(), metadata=self.metadata)
        except ValueError:  # the channel has been closed meanwhile
            self._writer.cancel()
        else:
            if self._cancelled:  # before there was a call
                self._call.cancel()
            status = self._read(self._call)
        finally:
            self.end(Lost(status))
            if not self._writer.cancelled():
                wait_for(self._writer.result(PATIENCE_SECONDS))
            self._call = None  # gRPC destroys it now
            with self._lock:
                self._shared.all.discard(self)

    def _read(self, call: Any) -> Failure | None:
        """Takes results until the stream ends. Returns its status; None if it ended well."""
        try:
            for data in call:
                self._received(data)
        except grpc.RpcError as error:
            error.with_traceback(None)  # it is the call, which would hold itself
            trailing = tuple(call.trailing_metadata() or ())
            return Failure(call.code(), call.details() or "", trailing)
        except CodecError:
            call.cancel()
        return None

    def _received(self, data: bytes) -> None:
        reply = parse_infer_stream_reply(data)
        with self._lock:
            settled = self.gathering.receive(reply, self._shared.clock())
            if reply.limits is not None and self._shared.stream is self:
                self._shared.choice.answered()
            if self._retired or self.gathering.waiting:
                self._ring()
        for item, result in settled:
            item.settle(result)

    def _watch(self, deadline: float) -> None:
        """Makes sure that somebody looks at this time. The caller holds the lock."""
        if self._looks_at is None:
            self._looks_at = deadline
            name = "headrace-deadlines"
            self._expirer = threading.Thread(target=self._expire, name=name, daemon=True)
            self._expirer.start()
        elif deadline < self._looks_at:
            self._looks_at = deadline
            self._earlier.notify()

    def _expire(self) -> None:
        """Ends futures whose time is up."""
        while True:
            with self._lock:
                if self._ended:
                    return
                now = self._shared.clock()
                watched = [each for each in self.gathering.in_flight if each.deadline is not None]
                late = [each for each in watched if each.deadline <= now]
                if not late:
                    self._looks_at = min((each.deadline for each in watched), default=math.inf)
                    left = self._looks_at - now
                    self._earlier.wait(min(left, threading.TIMEOUT_MAX))
            for item in late:
                if self.give_up(item, late=True):
                    item.settle(Expired())
