"""The interface of a channel over a channel of grpcio that the user has made, for example for xDS,
or with interceptors. It keeps the channel's own ways: names, credentials, service configuration."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import grpc
import grpc.aio

from headrace.client.channel.channel import (
    PLAIN,
    AsyncStream,
    Call,
    CallFailed,
    CallOptions,
    Ended,
    Message,
    MessageStream,
    Metadata,
    Reply,
    Request,
    cancelled,
    closed,
    late,
)
from headrace.client.channel.repeats import Repeating, Repeats
from headrace.client.errors import forked
from headrace.client.forks import keep, process, tell_of_forks

_States = grpc.ChannelConnectivity


class GrpcChannel:
    """Implements `Channel`. Calls that `start` begins are repeated only as the channel itself does.

    Args:
        owned: whether `close` closes the user's channel.
    """

    def __init__(self, channel: grpc.Channel, *, owned: bool = False) -> None:
        self._channel = channel
        self._owned = owned
        self._repeats = Repeats()
        self._state = _States.IDLE
        self._process = process()
        tell_of_forks(self)

    def inherit(self) -> None:
        keep(self._channel)

    @property
    def state(self) -> grpc.ChannelConnectivity:
        return self._state

    def unary(self, method: str, request: Request, options: CallOptions = PLAIN) -> Reply:
        _check(self._process)
        deadline = options.deadline()
        ask = self._channel.unary_unary(method)
        data = _joined(request)

        def attempt() -> Reply:
            if self._state is _States.SHUTDOWN:
                raise closed()
            try:
                reply, call = ask.with_call(
                    data, timeout=_left(deadline), metadata=options.metadata
                )
            except grpc.RpcError as error:
                raise _failure(error) from None
            return Reply(reply, _plain(call.trailing_metadata()))

        return Repeating(self._repeats, deadline, repeat=options.repeat).run(attempt)

    def start(self, method: str, request: Request, options: CallOptions = PLAIN) -> Call:
        _check(self._process)
        ask = self._channel.unary_unary(method)
        timeout, metadata, _ = options
        return _Started(ask.future(_joined(request), timeout=timeout, metadata=metadata))

    def stream(
        self, method: str, options: CallOptions = PLAIN, ended: Ended | None = None
    ) -> MessageStream:
        _check(self._process)
        begin = self._channel.stream_stream(method)
        timeout, metadata, _ = options
        return _Stream(lambda out: begin(out, timeout=timeout, metadata=metadata), ended)

    def close(self) -> None:
        self._state = _States.SHUTDOWN
        if self._owned and self._process is process():
            self._channel.close()


class _Started:
    """Implements `Call`."""

    def __init__(self, future: Any) -> None:
        self._future = future

    def result(self, timeout: float | None = None) -> Reply:
        error = self.exception(timeout)
        if error is not None:
            raise error
        return Reply(self._future.result(), _plain(self._future.trailing_metadata()))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        try:
            error = self._future.exception(timeout)
        except grpc.FutureTimeoutError:
            raise TimeoutError from None
        except grpc.FutureCancelledError:
            return cancelled()
        return _failure(error) if isinstance(error, grpc.RpcError) else error

    def done(self) -> bool:
        return bool(self._future.done())

    def cancel(self) -> bool:
        return bool(self._future.cancel())

    def add_done_callback(self, callback: Callable[[Call], object]) -> None:
        self._future.add_done_callback(lambda _: callback(self))


class _Stream:
    """Implements `MessageStream`. gRPC takes the messages from a queue, on a thread of its own."""

    def __init__(self, begin: Callable[[Iterator[bytes]], Any], ended: Ended | None) -> None:
        self._outgoing: SimpleQueue[bytes | None] = SimpleQueue()
        self._call = begin(iter(self._outgoing.get, None))
        self._call.add_callback(lambda: self._outgoing.put(None))
        if ended is not None:
            self._call.add_callback(lambda: ended(self._call.code()))

    @property
    def trailing(self) -> Metadata:
        return _plain(self._call.trailing_metadata())

    def write(self, message: Request) -> None:
        self._outgoing.put(_joined(message))

    def send(self, message: Request) -> bool:
        self.write(message)
        return bool(self._call.is_active())

    def end(self) -> None:
        self._outgoing.put(None)

    def read(self, timeout: float | None = None) -> Message | None:
        late_calls: list[CallFailed] = []

        def end() -> None:
            late_calls.append(late())
            self._call.cancel()

        # gRPC cannot wait for a while.
        alarm = None if timeout is None else threading.Timer(timeout, end)
        try:
            if alarm is not None:
                alarm.start()
            message: Message | None = next(self._call, None)
        except grpc.RpcError as error:
            raise (late_calls or [_failure(error)])[0] from None
        finally:
            if alarm is not None:
                alarm.cancel()
        return message

    def cancel(self) -> None:
        self._call.cancel()


class AsyncGrpcChannel:
    """Implements `AsyncChannel`. The arguments are those of `GrpcChannel`."""

    def __init__(self, channel: grpc.aio.Channel, *, owned: bool = False) -> None:
        self._channel = channel
        self._owned = owned
        self._repeats = Repeats()
        self._is_closed = False
        self._process = process()
        tell_of_forks(self)

    def inherit(self) -> None:
        keep(self._channel)

    @property
    def state(self) -> grpc.ChannelConnectivity:
        return _States.SHUTDOWN if self._is_closed else self._channel.get_state()

    async def unary(self, method: str, request: Request, options: CallOptions = PLAIN) -> Reply:
        _check(self._process)
        deadline = options.deadline()
        ask = self._channel.unary_unary(method)
        data = _joined(request)

        async def attempt() -> Reply:
            if self._is_closed:
                raise closed()
            call = ask(data, timeout=_left(deadline), metadata=options.metadata)
            try:
                return Reply(await call, _plain(await call.trailing_metadata()))
            except grpc.aio.AioRpcError as error:
                raise _failure(error) from None
            except asyncio.CancelledError:
                raise await _dropped(call) from None

        return await Repeating(self._repeats, deadline, repeat=options.repeat).run_on_loop(attempt)

    async def stream(
        self, method: str, options: CallOptions = PLAIN, ended: Ended | None = None
    ) -> AsyncStream:
        _check(self._process)
        begin = self._channel.stream_stream(method)
        call = begin(timeout=options.timeout, metadata=options.metadata)
        return _AsyncStream(call, ended)

    async def close(self) -> None:
        self._is_closed = True
        if self._owned and self._process is process():
            await self._channel.close()


class _AsyncStream:
    """Implements `AsyncStream`."""

    def __init__(self, call: Any, ended: Ended | None) -> None:
        self._call = call
        self._ended = ended
        self._ends: asyncio.Task[None] | None = None
        self._trailing: Metadata = ()

    @property
    def trailing(self) -> Metadata:
        return self._trailing

    async def send(self, message: Request) -> bool:
        with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            await self._call.write(_joined(message))
        return not self._call.done()

    def end(self) -> None:
        self._ends = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            await self._call.done_writing()

    async def read(self) -> Message | None:
        try:
            message: Any = await self._call.read()
            if message is not grpc.aio.EOF:
                return message  # type: ignore[no-any-return]
            self._trailing = _plain(await self._call.trailing_metadata())
        except grpc.aio.AioRpcError as error:
            failure = _failure(error)
        except asyncio.CancelledError:
            failure = await _dropped(self._call)
        else:
            self._tell(grpc.StatusCode.OK)
            return None
        self._tell(failure.code)
        raise failure

    def cancel(self) -> None:
        self._call.cancel()
        self._tell(grpc.StatusCode.CANCELLED)

    def _tell(self, code: grpc.StatusCode) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(code)


async def _dropped(call: Any) -> CallFailed:
    """The failure of a call that the server ended with CANCELLED, which grpc.aio tells in the same
    way as the end of this task.

    Raises:
        CancelledError: it is the end of this task.
    """
    task = asyncio.current_task()
    if task is None or task.cancelling() or not call.done():
        call.cancel()
        raise asyncio.CancelledError
    return CallFailed(await call.code(), await call.details() or "")


def _check(owner: object) -> None:
    """
    Raises:
        FailedPrecondition: gRPC's channel belongs to the process that this one was forked from.
    """
    if owner is not process():
        raise forked()


def _joined(request: Request) -> bytes:
    if isinstance(request, bytes):
        return request
    if isinstance(request, bytearray | memoryview):
        return bytes(request)
    return b"".join(request)


def _left(deadline: float | None) -> float | None:
    """
    Raises:
        CallFailed: time is up.
    """
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise late()
    return left


def _plain(metadata: Any) -> Metadata:
    return tuple((key, value) for key, value in metadata or ())


def _failure(error: Any) -> CallFailed:
    trailing = _plain(error.trailing_metadata())
    return CallFailed(error.code(), error.details() or "", trailing)
