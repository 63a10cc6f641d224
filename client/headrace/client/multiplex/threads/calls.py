"""Calls of Infer over the shared stream of the synchronous client, in the form of gRPC's calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from functools import partial
from typing import Any

import grpc

from headrace.client.multiplex.gathering import Item
from headrace.client.multiplex.outcome import Expired, Failure, Outcome, resolve, trace_of
from headrace.client.multiplex.threads.stream import Metadata, Stream
from headrace.client.multiplex.threads.streams import Streams
from headrace.client.request import OutcomeFuture
from headrace.wire.message import Parsed


class SharedStreams(Streams):
    """The streams that the requests of one client share."""

    def infer(self, unary: Any, *, once: bool) -> Infer:
        """A callable of Infer that uses a stream where that is possible, and `unary` elsewhere."""
        return Infer(self, unary, once=once)


class StreamError(grpc.RpcError):  # type: ignore[misc]
    """The failure of one request, with the methods of a failed call."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self._failure = failure

    def code(self) -> grpc.StatusCode:
        return self._failure.code

    def details(self) -> str:
        return self._failure.message

    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._failure.trailing


class _Waited(Item):
    """A request whose thread waits for it."""

    blocks = True
    __slots__ = ("_settled", "outcome", "stream")

    def __init__(
        self,
        data: bytes,
        timeout_seconds: float | None,
        trace: Mapping[str, str] | None,
        *,
        once: bool,
    ) -> None:
        super().__init__(data, timeout_seconds, trace, once=once)
        self._settled = threading.Lock()
        self._settled.acquire()
        self.outcome: Outcome = Expired()

    def settle(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._settled.release()

    def wait_for_ever(self) -> None:
        self._settled.acquire()

    def wait(self) -> bool:
        """Returns whether it was settled in time."""
        seconds = self.timeout_seconds
        return self._settled.acquire(
            timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX)
        )


class Infer:
    """gRPC's callable of Infer, over the shared stream where that is possible."""

    __slots__ = ("_once", "_streams", "_unary")

    def __init__(self, streams: Streams, unary: Any, *, once: bool) -> None:
        self._streams = streams
        self._unary = unary
        self._once = once

    def __call__(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata = ()
    ) -> Any:
        reply, left = self._ask(request, timeout, metadata)
        return self._unary(request, timeout=left, metadata=metadata) if reply is None else reply

    def with_call(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata = ()
    ) -> tuple[Any, Any]:
        reply, left = self._ask(request, timeout, metadata)
        if reply is None:
            found: tuple[Any, Any] = self._unary.with_call(request, timeout=left, metadata=metadata)
            return found
        return reply, StreamError(Failure(grpc.StatusCode.OK, ""))

    def future(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata = ()
    ) -> Any:
        again = partial(self._unary.future, request, metadata=metadata)
        item = StreamFuture(request, timeout, trace_of(metadata), once=self._once)
        item.begin(again, self._streams.clock)
        stream = self._streams.submit(item)
        return again(timeout=timeout) if stream is None else item

    def _ask(
        self, request: bytes, timeout: float | None, metadata: Metadata
    ) -> tuple[Parsed | None, float | None]:
        """The reply over the stream. Without one, the request needs a call of its own, for which
        the time is left that is returned.

        Raises:
            RpcError: the request has failed.
        """
        clock = self._streams.clock
        started = clock()
        item = _Waited(request, timeout, trace_of(metadata), once=self._once)
        stream = self._streams.submit(item)
        if stream is None:
            return None, timeout
        try:
            if not item.wait() and not stream.give_up(item, late=True):
                item.wait_for_ever()  # it is being settled
        except BaseException:  # an interrupt
            stream.give_up(item)
            raise
        left = None if timeout is None else max(started + timeout - clock(), 0.0)
        found = resolve(item, item.outcome, left)
        if isinstance(found, Failure):
            raise StreamError(found)
        return found, left


class StreamFuture(Item, OutcomeFuture):
    """A request over the shared stream. Thread-safe: what settles it is taken from the stream's
    table once."""

    __slots__ = ("_again", "_call", "_clock", "_failure", "_outcome", "_unwanted", "stream")

    def begin(self, again: Callable[..., Any], clock: Callable[[], float]) -> None:
        """Starts the clock.

        Args:
            again: sends the request in a call of its own.
        """
        self._again = again
        self._clock = clock
        self._outcome: futures.Future[Any] = futures.Future()
        self._call: Any = None
        self._unwanted = False
        self.stream: Stream | None = None
        if self.timeout_seconds is not None:
            self.deadline = clock() + self.timeout_seconds

    def settle(self, outcome: Outcome) -> None:
        deadline = self.deadline
        left = None if deadline is None else max(deadline - self._clock(), 0.0)
        found = resolve(self, outcome, left)
        if isinstance(found, Failure):
            self._outcome.set_exception(StreamError(found))
        elif found is not None:
            self._outcome.set_result(found)
        else:
            try:
                call = self._again(timeout=left)
            except Exception as error:  # noqa: BLE001 - as the request's result
                self._outcome.set_exception(error)
                return
            self._call = call
            if self._unwanted:
                call.cancel()
            call.add_done_callback(self._answered)

    def _answered(self, call: Any) -> None:
        try:
            self._outcome.set_result(call.result())
        except grpc.FutureCancelledError:
            self._outcome.cancel()
            self._outcome.set_running_or_notify_cancel()
        except Exception as error:  # noqa: BLE001 - as the request's result
            self._outcome.set_exception(error)

    def cancel(self) -> bool:
        stream = self.stream
        if stream is not None and stream.give_up(self):
            self._outcome.cancel()
            return True
        self._unwanted = True
        return self._call is not None and bool(self._call.cancel())

    def code(self) -> grpc.StatusCode | None:
        """The status of the request, which has ended."""
        if self._outcome.cancelled():
            return grpc.StatusCode.CANCELLED
        error: Any = self._outcome.exception()
        if error is None:
            return grpc.StatusCode.OK
        return error.code() if isinstance(error, grpc.RpcError) else None
