"""The calls of a client: the methods, and what goes with each call over the client's channel."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import grpc
from google.protobuf.message import DecodeError

from headrace.client.channel.channel import (
    AsyncChannel,
    AsyncStream,
    Call,
    CallFailed,
    Channel,
    Metadata,
    Stream,
)
from headrace.client.channel.repeats import Attempts, Repeats
from headrace.client.errors import client_closed
from headrace.client.plans.plan import IDEMPOTENT
from headrace.client.tracing.calls import Span, begin
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.errors import REQUEST_ID_KEY

C = TypeVar("C")

_log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_SECONDS: Final = 60.0
DEFAULT_MESSAGE_BYTES: Final = 1024 * 1024 * 1024

FORGET_SECONDS: Final = 0.5
"""How long a client that is being closed waits for the server to forget its shared memory."""
CHECK: Final = "/grpc.health.v1.Health/Check"
"""The method that tells a server's health."""
_SERVICE = pb.DESCRIPTOR.services_by_name["InferenceEngine"]
# Their messages are read and written by headrace.wire, without copies.
_RAW = frozenset({"Infer", "InferStream"})
_OK: Final = grpc.StatusCode.OK


@dataclass(frozen=True, slots=True)
class Method:
    """One of the service's methods.

    Attributes:
        path: as gRPC has it.
        repeats: whether its calls may be sent again.
        streams_requests, streams_replies: whether a call has many of them.
        serialize, deserialize: messages ↔ bytes.
    """

    path: str
    repeats: bool
    streams_requests: bool
    streams_replies: bool
    serialize: Callable[[Any], bytes]
    deserialize: Callable[[Any], Any]


def _same(message: Any) -> Any:
    return message


def _reader(kind: Any) -> Callable[[bytes], Any]:
    """Reads replies of a kind.

    Raises:
        CallFailed: from what is returned, if a server has sent something else.
    """

    def read(data: bytes) -> Any:
        try:
            return kind.FromString(data)
        except DecodeError:
            why = f"the server sent a reply that is no {kind.DESCRIPTOR.name}"
            raise CallFailed(grpc.StatusCode.INTERNAL, why) from None

    return read


METHODS: Final = {
    method.name: Method(
        f"/{_SERVICE.full_name}/{method.name}",
        method.name in IDEMPOTENT,
        method.client_streaming,
        method.server_streaming,
        _same if method.name in _RAW else getattr(pb, method.input_type.name).SerializeToString,
        _same if method.name in _RAW else _reader(getattr(pb, method.output_type.name)),
    )
    for method in _SERVICE.methods
}
"""All methods of the service, by their names."""


def unregistrations(names: Iterable[str]) -> list[pb.UnregisterSharedMemoryRequest]:
    """The requests that tell the server to forget these regions."""
    return [pb.UnregisterSharedMemoryRequest(name=name) for name in names]


class Calls(Generic[C]):
    """The calls of one client. Thread-safe if the channel is.

    Args:
        address: the server's, for traces.
        metadata: gives the metadata that each call sends; None for no metadata.
        repeats: whether calls that may be repeated are.

    Attributes:
        channel: carries them.
        is_closed: whether no more calls are made.
    """

    def __init__(
        self,
        channel: C,
        address: str,
        metadata: Callable[[], Metadata] | None,
        *,
        repeats: bool = True,
    ) -> None:
        self.channel = channel
        self.repeats = Repeats()
        self.is_closed = False
        self._address = address
        self._metadata = metadata
        self._repeats = repeats

    def check_open(self) -> None:
        """
        Raises:
            FailedPrecondition: the client is closed.
        """
        if self.is_closed:
            raise client_closed()

    def begin(self, name: str, *, once: bool) -> tuple[Method, Span | None, Metadata, bool]:
        """What a call needs: its method, its span if the program traces, its metadata, and whether
        it may be repeated.

        Raises:
            FailedPrecondition: the client is closed.
        """
        self.check_open()
        method = METHODS[name]
        sent: Metadata = () if self._metadata is None else self._metadata()
        span = begin(method.path, self._address)
        if span is not None:
            sent = (*sent, *span.metadata)
        return method, span, sent, self._repeats and method.repeats and not once


class Bound:
    """A method of one client, for threads.

    Args:
        once: as in `plan.Call`.
    """

    __slots__ = ("_calls", "_name", "_once")

    def __init__(self, calls: Calls[Channel], name: str, *, once: bool) -> None:
        self._calls = calls
        self._name = name
        self._once = once

    def ask(self, request: Any, *, timeout: float | None) -> tuple[Any, Metadata]:
        """Makes a call. Returns the reply, or the list of all replies, and the metadata at the end.

        Args:
            request: a message, or an iterable of them if the method takes many.
            timeout: in seconds; None for no limit.

        Raises:
            CallFailed: the call failed.
        """
        method, span, metadata, repeat = self._calls.begin(self._name, once=self._once)
        code: grpc.StatusCode | None = None
        try:
            if method.streams_requests or method.streams_replies:
                answer = self._converse(method, request, timeout, metadata, repeat=repeat)
            else:
                message, trailing = self._calls.channel.unary(
                    method.path,
                    method.serialize(request),
                    timeout=timeout,
                    metadata=metadata,
                    repeat=repeat,
                )
                answer = method.deserialize(message), trailing
            code = _OK
            return answer
        except CallFailed as failure:
            code = failure.code
            raise
        finally:
            if span is not None:
                span.end(code)

    def _converse(
        self,
        method: Method,
        request: Any,
        timeout: float | None,
        metadata: Metadata,
        *,
        repeat: bool,
    ) -> tuple[Any, Metadata]:
        """Makes a call of many messages, from the beginning if it may be repeated and must be."""
        deadline = None if timeout is None else time.monotonic() + timeout
        attempts = Attempts(self._calls.repeats, repeat=repeat)
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            try:
                stream = self._calls.channel.stream(method.path, timeout=left, metadata=metadata)
                return _said(method, stream, request), stream.trailing
            except CallFailed as failure:
                pause = attempts.pause(failure, deadline) if repeat else None
                if pause is None:
                    raise
            time.sleep(pause)

    def start(self, request: Any, *, timeout: float | None) -> Call:
        """Starts a call with one request and one reply, whose bytes are its result."""
        method, span, metadata, repeat = self._calls.begin(self._name, once=self._once)
        call = self._calls.channel.start(
            method.path,
            method.serialize(request),
            timeout=timeout,
            metadata=metadata,
            repeat=repeat,
        )
        if span is not None:
            call.add_done_callback(lambda ended: span.end(_code_of(ended)))
        return call

    def stream(self) -> Stream:
        """Begins a call of messages that are read and written as bytes.

        Raises:
            CallFailed: the server cannot be reached.
        """
        method, span, metadata, _ = self._calls.begin(self._name, once=self._once)
        try:
            return self._calls.channel.stream(
                method.path,
                metadata=metadata,
                ended=None if span is None else span.end,
            )
        except CallFailed as failure:
            if span is not None:
                span.end(failure.code)
            raise


class AsyncBound:
    """A method of one client, for asyncio. The arguments and methods are those of `Bound`."""

    __slots__ = ("_calls", "_name", "_once")

    def __init__(self, calls: Calls[AsyncChannel], name: str, *, once: bool) -> None:
        self._calls = calls
        self._name = name
        self._once = once

    async def ask(self, request: Any, *, timeout: float | None) -> tuple[Any, Metadata]:
        method, span, metadata, repeat = self._calls.begin(self._name, once=self._once)
        code: grpc.StatusCode | None = grpc.StatusCode.CANCELLED
        try:
            if method.streams_requests or method.streams_replies:
                answer = await self._converse(method, request, timeout, metadata, repeat=repeat)
            else:
                message, trailing = await self._calls.channel.unary(
                    method.path,
                    method.serialize(request),
                    timeout=timeout,
                    metadata=metadata,
                    repeat=repeat,
                )
                answer = method.deserialize(message), trailing
            code = _OK
            return answer
        except CallFailed as failure:
            code = failure.code
            raise
        finally:
            if span is not None:
                span.end(code)

    async def _converse(
        self,
        method: Method,
        request: Any,
        timeout: float | None,
        metadata: Metadata,
        *,
        repeat: bool,
    ) -> tuple[Any, Metadata]:
        deadline = None if timeout is None else time.monotonic() + timeout
        attempts = Attempts(self._calls.repeats, repeat=repeat)
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            try:
                stream = await self._calls.channel.stream(
                    method.path, timeout=left, metadata=metadata
                )
                return await _said_async(method, stream, request), stream.trailing
            except CallFailed as failure:
                pause = attempts.pause(failure, deadline) if repeat else None
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    async def stream(self) -> AsyncStream:
        method, span, metadata, _ = self._calls.begin(self._name, once=self._once)
        try:
            return await self._calls.channel.stream(
                method.path,
                metadata=metadata,
                ended=None if span is None else span.end,
            )
        except CallFailed as failure:
            if span is not None:
                span.end(failure.code)
            raise


def _said(method: Method, stream: Stream, request: Any) -> Any:
    """Sends all requests, and returns all replies, or the one."""
    try:
        for message in request if method.streams_requests else (request,):
            stream.write(method.serialize(message))
            if not stream.drain():
                break
        stream.end()
        replies: list[Any] = []
        while (reply := stream.read()) is not None:
            replies.append(method.deserialize(reply))
    except BaseException:
        stream.cancel()
        raise
    return replies if method.streams_replies else _only(replies)


async def _said_async(method: Method, stream: AsyncStream, request: Any) -> Any:
    try:
        for message in request if method.streams_requests else (request,):
            if not await stream.write(method.serialize(message)):
                break
        stream.end()
        replies: list[Any] = []
        while (reply := await stream.read()) is not None:
            replies.append(method.deserialize(reply))
    except BaseException:
        stream.cancel()
        raise
    return replies if method.streams_replies else _only(replies)


def _only(replies: list[Any]) -> Any:
    if len(replies) != 1:
        why = f"the server sent {len(replies)} replies, and one was expected"
        raise CallFailed(grpc.StatusCode.INTERNAL, why)
    return replies[0]


def _code_of(call: Call) -> grpc.StatusCode | None:
    error = call.exception()
    if error is None:
        return _OK
    return error.code if isinstance(error, CallFailed) else None


def logs_requests() -> bool:
    """Whether the log takes the messages of `log_request`."""
    return _log.isEnabledFor(logging.DEBUG)


def log_request(method: str, trailing: Metadata) -> None:
    """Logs, at level debug, the id of a successful call in the server's log. For an inference, the
    outputs have it as `request_id`. For an error, the details have it."""
    for key, value in trailing:
        if key == REQUEST_ID_KEY:
            _log.debug("%s was request %s", method, value)
