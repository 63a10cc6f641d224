"""The calls of a client: the methods, and what goes with each call over the client's channel."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

import grpc
from google.protobuf.message import DecodeError

from headrace.client.channel.channel import (
    AsyncChannel,
    AsyncStream,
    Call,
    CallFailed,
    CallOptions,
    Channel,
    Ended,
    MessageStream,
    Metadata,
)
from headrace.client.channel.repeats import Repeating, Repeats
from headrace.client.errors import client_closed
from headrace.client.plans.plan import IDEMPOTENT
from headrace.client.steps import run, run_on_loop
from headrace.client.tracing.calls import CallSpan, begin
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
_new: Final = tuple.__new__  # makes a NamedTuple without a call of Python code


@dataclass(frozen=True, slots=True)
class RpcMethod:
    """One of the service's methods.

    Attributes:
        path: as gRPC has it.
        repeats: whether its calls may be sent again.
        streams_requests, streams_replies: whether a call has many of them.
        is_unary: whether it has one of each.
        serialize, deserialize: messages ↔ bytes.
    """

    path: str
    repeats: bool
    streams_requests: bool
    streams_replies: bool
    is_unary: bool
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
    method.name: RpcMethod(
        f"/{_SERVICE.full_name}/{method.name}",
        method.name in IDEMPOTENT,
        method.client_streaming,
        method.server_streaming,
        not (method.client_streaming or method.server_streaming),
        _same if method.name in _RAW else getattr(pb, method.input_type.name).SerializeToString,
        _same if method.name in _RAW else _reader(getattr(pb, method.output_type.name)),
    )
    for method in _SERVICE.methods
}
"""All methods of the service, by their names."""


def unregistrations(names: Iterable[str]) -> list[pb.UnregisterSharedMemoryRequest]:
    """The requests that tell the server to forget these regions."""
    return [pb.UnregisterSharedMemoryRequest(name=name) for name in names]


class Begun:
    """A call that begins. As a context manager it ends the call's span.

    Attributes:
        method: what is called.
        options: how.
    """

    __slots__ = ("_span", "method", "options")

    def __init__(self, method: RpcMethod, options: CallOptions, span: CallSpan | None) -> None:
        self.method = method
        self.options = options
        self._span = span

    def __enter__(self) -> Begun:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._span is not None:
            self._span.end(_code_of(error))

    @property
    def ended(self) -> Ended | None:
        """Ends the span of a call that outlives the context. None if there is no span."""
        return None if self._span is None else self._span.end


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
        self.is_closed = False
        self._address = address
        self._metadata = metadata
        self._repeats = repeats
        self._budget = Repeats()

    def check_open(self) -> None:
        """
        Raises:
            FailedPrecondition: the client is closed.
        """
        if self.is_closed:
            raise client_closed()

    def begin(self, name: str, timeout: float | None, *, once: bool = False) -> Begun:
        """
        Args:
            timeout: in seconds; None for no limit.
            once: as in `plan.Call`.

        Raises:
            FailedPrecondition: the client is closed.
        """
        if self.is_closed:
            raise client_closed()
        method = METHODS[name]
        sent: Metadata = () if self._metadata is None else self._metadata()
        span = begin(method.path, self._address)
        if span is not None:
            sent = (*sent, *span.metadata)
        repeat = self._repeats and method.repeats and not once
        return Begun(method, _new(CallOptions, (timeout, sent, repeat)), span)

    def _repeating(self, options: CallOptions) -> tuple[Repeating, Callable[[], CallOptions]]:
        """The attempts of a call of many messages, and the options of the next one."""
        deadline = options.deadline()

        def left() -> CallOptions:
            if deadline is None:
                return options
            return options._replace(timeout=deadline - time.monotonic())

        return Repeating(self._budget, deadline, repeat=True), left


class ThreadCalls(Calls[Channel]):
    """The calls of a synchronous client."""

    def ask(
        self, name: str, request: Any, timeout: float | None, *, once: bool = False
    ) -> tuple[Any, Metadata]:
        """Makes a call. Returns the reply, or the list of all replies, and the metadata at the end.

        Args:
            request: a message, or an iterable of them if the method takes many.
            timeout: in seconds; None for no limit.
            once: as in `plan.Call`.

        Raises:
            CallFailed: the call failed.
        """
        with self.begin(name, timeout, once=once) as call:
            method, options = call.method, call.options
            if method.is_unary:
                data = method.serialize(request)
                message, trailing = self.channel.unary(method.path, data, options)
                return method.deserialize(message), trailing
            repeating, left = self._repeating(options)

            def attempt() -> tuple[Any, Metadata]:
                stream = self.channel.stream(method.path, left())
                return run(_said(method, stream, request), lambda step: step()), stream.trailing

            return repeating.run(attempt) if options.repeat else attempt()

    def start(self, name: str, request: Any, timeout: float | None, *, once: bool = False) -> Call:
        """Starts a call with one request and one reply, whose bytes are its result."""
        begun = self.begin(name, timeout, once=once)
        method = begun.method
        call = self.channel.start(method.path, method.serialize(request), begun.options)
        ended = begun.ended
        if ended is not None:
            call.add_done_callback(lambda over: ended(_code_of(over.exception())))
        return call

    def stream(self) -> MessageStream:
        """Begins an InferStream, whose messages are read and written as bytes.

        Raises:
            CallFailed: the server cannot be reached.
        """
        call = self.begin("InferStream", None)
        try:
            return self.channel.stream(call.method.path, call.options, call.ended)
        except CallFailed as failure:
            call.__exit__(None, failure, None)
            raise


class TaskCalls(Calls[AsyncChannel]):
    """The calls of an asyncio client; see `ThreadCalls`."""

    async def ask(
        self, name: str, request: Any, timeout: float | None, *, once: bool = False
    ) -> tuple[Any, Metadata]:
        with self.begin(name, timeout, once=once) as call:
            method, options = call.method, call.options
            if method.is_unary:
                data = method.serialize(request)
                message, trailing = await self.channel.unary(method.path, data, options)
                return method.deserialize(message), trailing
            repeating, left = self._repeating(options)

            async def attempt() -> tuple[Any, Metadata]:
                stream = await self.channel.stream(method.path, left())
                said = _said(method, stream, request)
                return await run_on_loop(said, lambda step: step()), stream.trailing

            return await (repeating.run_on_loop(attempt) if options.repeat else attempt())

    async def stream(self) -> AsyncStream:
        call = self.begin("InferStream", None)
        try:
            return await self.channel.stream(call.method.path, call.options, call.ended)
        except CallFailed as failure:
            call.__exit__(None, failure, None)
            raise


def _said(
    method: RpcMethod, stream: MessageStream | AsyncStream, request: Any
) -> Generator[Callable[[], Any], Any, Any]:
    """Sends all requests, and returns all replies, or the one. The steps are to be called."""
    try:
        for message in request if method.streams_requests else (request,):
            if not (yield partial(stream.send, method.serialize(message))):
                break
        stream.end()
        replies: list[Any] = []
        while (reply := (yield stream.read)) is not None:
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


def _code_of(error: BaseException | None) -> grpc.StatusCode | None:
    """The status of a call that ended so; None if it ended without one."""
    if error is None:
        return _OK
    if isinstance(error, asyncio.CancelledError):
        return grpc.StatusCode.CANCELLED
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
