"""Passes calls on to replicas that have the network. Messages stay the bytes that they are.

The other replica checks the caller again, because it gets the same metadata. A call is passed on
once at most: a mark in the metadata says that it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias, TypeVar

import grpc

from headrace.cluster.placement.directory import Directory
from headrace.runtime.errors import HeadraceError, Unavailable
from headrace.runtime.loading.entry import plain_name
from headrace.server.services.health import HEALTH
from headrace.server.transport.statuses import id_metadata, request_id_of
from headrace.wire.errors import REQUEST_ID_KEY, from_trailing_metadata

T = TypeVar("T")
Attempt: TypeAlias = Callable[[grpc.aio.Channel, dict[str, Any]], Awaitable[T]]
"""Makes a call on a channel, with gRPC's own arguments for a call."""

PASSED_ON: Final = "headrace-passed-on"
"""The metadata key of a call that a replica has passed on."""

MOST_TRIES: Final = 3
"""The replicas that a call is passed on to, one after another, before it fails."""

_QUIET_SECONDS: Final = 1.0
"""A replica that has a call and says nothing for so long is asked for its health."""

_ANSWER_SECONDS: Final = 2.0
"""How long the answer may take. Then the call is given up, and repeated as after a loss."""

_AVOIDED_SECONDS: Final = 10.0
"""For so long, calls try a replica that did not answer after all others."""

_CLOSE_SECONDS: Final = 60.0
"""How long calls may go on to a replica that has left. It ends them within that time."""

_OPTIONS: Final = [
    ("grpc.max_receive_message_length", -1),  # the first replica has checked the sizes
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
    # A replica that is gone is noticed at once, and one that comes back soon.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
_GRPC_KEYS: Final = frozenset({"user-agent", "content-type", "te", REQUEST_ID_KEY, PASSED_ON})
_NOT_BEGUN: Final = frozenset({"NOT_FOUND", "NETWORK_LOADING", "NETWORK_COLD", "SHUTTING_DOWN"})


class ReplicaRefusal(HeadraceError):
    """The error with which another replica has ended a call."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        said = error.details() or ""
        told = from_trailing_metadata(error.code(), said, error.trailing_metadata())
        self.lost = not told.reason and told.code in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.CANCELLED,  # a connection that ends in the middle of a reply
        )
        message = "the replica with the network was lost; try again" if self.lost else told.message
        super().__init__(message, field=told.field, metadata=told.metadata)
        self.retry_delay_seconds = told.retry_delay_seconds
        name = "UNAVAILABLE" if self.lost else told.code.name
        # Every instance has its own.
        self.__dict__.update(status=name, reason=told.reason or name)


class Forwarder:
    """Implements the server's `Elsewhere`. Belongs to the event loop, apart from `find`, `servers`
    and `serves`, which any thread may call.

    Args:
        directory: knows which replicas have which networks.
    """

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._avoided: dict[str, float] = {}  # addresses of silent replicas, and until when
        self._closing: set[asyncio.Future[None]] = set()  # asyncio would lose them

    def __bool__(self) -> bool:
        return bool(self.directory)

    async def close(self) -> None:
        for closing in self._closing:
            closing.cancel()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    def find(self, names: Iterable[str], context: Any, sequence: str = "") -> str:
        name = self.directory.find(names, sequence)
        return "" if name and was_passed_on(context) else name

    def servers(self, names: Iterable[str]) -> tuple[str, ...]:
        return self.directory.away(names)

    def serves(self, name: str) -> bool:
        return bool(self.directory.addresses(name))

    async def unary(
        self,
        name: str,
        path: str,
        data: bytes,
        context: Any,
        sequence: str = "",
        *,
        repeats: bool = True,
    ) -> bytes:
        """The serialised reply of a method.

        Args:
            name: the full name of the network that the call is about.
            path: the method's.
            repeats: whether another replica may get the call after one was lost in the middle.

        Raises:
            Refused: the error of the last replica that was tried.
            Unavailable: no replica is to be had.
        """

        async def attempt(channel: grpc.aio.Channel, how: dict[str, Any]) -> bytes:
            call = channel.unary_unary(path)(data, **how)
            reply: bytes = await call
            context.set_trailing_metadata(tuple(await call.trailing_metadata()))
            return reply

        return await self._passed(name, context, attempt, sequence, repeats=repeats)

    async def server_stream(
        self, name: str, path: str, data: bytes, context: Any
    ) -> AsyncGenerator[bytes, None]:
        """The serialised replies of a method. Raises as `unary`."""

        async def attempt(channel: grpc.aio.Channel, how: dict[str, Any]) -> tuple[Any, Any]:
            call = channel.unary_stream(path)(data, **how)
            return call, await call.read()

        call, reply = await self._passed(name, context, attempt)
        try:
            while reply is not grpc.aio.EOF:
                yield reply
                reply = await call.read()
        except grpc.aio.AioRpcError as error:
            raise ReplicaRefusal(error) from None
        finally:
            call.cancel()

    async def client_stream(
        self, name: str, path: str, messages: AsyncIterator[bytes], context: Any
    ) -> bytes:
        """The serialised reply of a method, which one replica gets. Raises as `unary`."""

        async def attempt(channel: grpc.aio.Channel, how: dict[str, Any]) -> bytes:
            reply: bytes = await channel.stream_unary(path)(messages, **how)
            return reply

        return await self._passed(name, context, attempt, tries=1)

    async def _passed(
        self,
        name: str,
        context: Any,
        attempt: Attempt[T],
        sequence: str = "",
        *,
        repeats: bool = True,
        tries: int = MOST_TRIES,
    ) -> T:
        failure: HeadraceError | None = None
        for address in self._by_silence(self.directory.addresses(name, sequence))[:tries]:
            how = {"timeout": context.time_remaining(), "metadata": _metadata(context)}
            try:
                return await self._watched(address, attempt(self._channel(address), how))
            except TimeoutError:
                failure = Unavailable("the replica with the network does not answer; try again")
                if repeats:
                    continue
                break
            except grpc.aio.AioRpcError as error:
                failure = refused = ReplicaRefusal(error)
            if not (refused.reason in _NOT_BEGUN or (repeats and refused.lost)):
                break
        raise failure or Unavailable(
            f"no replica has network {plain_name(name)!r} at the moment; try again"
        )

    async def _watched(self, address: str, call: Awaitable[T]) -> T:
        """The result of a call to a replica.

        Raises:
            TimeoutError: the replica is silent. Its process is frozen, or its machine is gone.
        """
        loop = asyncio.get_running_loop()
        asking: list[asyncio.Task[None]] = []
        async with asyncio.timeout(None) as patience:
            timer = loop.call_later(
                _QUIET_SECONDS,
                lambda: asking.append(loop.create_task(self._ask(address, patience))),
            )
            try:
                return await call
            finally:
                timer.cancel()
                for task in asking:
                    task.cancel()

    async def _ask(self, address: str, patience: asyncio.Timeout) -> None:
        """Asks a replica for its health again and again. Without an answer, `patience` is over."""
        check = self._channel(address).unary_unary(f"/{HEALTH}/Check")
        loop = asyncio.get_running_loop()
        while True:
            try:
                await check(b"", timeout=_ANSWER_SECONDS)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    self._avoided[address] = loop.time() + _AVOIDED_SECONDS
                    patience.reschedule(loop.time())
                    return
            await asyncio.sleep(_QUIET_SECONDS)

    def _by_silence(self, addresses: list[str]) -> list[str]:
        """The addresses in their order, but those of silent replicas last."""
        if not self._avoided:
            return addresses
        now = asyncio.get_running_loop().time()
        self._avoided = {member: until for member, until in self._avoided.items() if until > now}
        return sorted(addresses, key=self._avoided.__contains__)

    def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            self._close_lost()
            channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
            self._channels[address] = channel
        return channel

    def _close_lost(self) -> None:
        """Closes the channels to replicas that have gone, when their calls have ended."""
        lost = [channel for channel in self._channels if not self.directory.is_live(channel)]
        for address in lost:
            closing = asyncio.ensure_future(self._channels.pop(address).close(_CLOSE_SECONDS))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


def was_passed_on(context: Any) -> bool:
    """Whether another replica has passed the call on."""
    return any(key == PASSED_ON for key, _ in context.invocation_metadata() or ())


def _metadata(context: Any) -> tuple[tuple[str, str | bytes], ...]:
    """The metadata of the call that is passed on: the caller's own, and the mark."""
    kept = (
        (key, value)
        for key, value in context.invocation_metadata() or ()
        if key not in _GRPC_KEYS and not key.startswith((":", "grpc-")) and _travels(key, value)
    )
    return (*kept, *id_metadata(request_id_of(context)), (PASSED_ON, "1"))


def _travels(key: str, value: str | bytes) -> bool:
    """Whether gRPC sends such metadata. It receives more than it sends."""
    return key.endswith("-bin") or (
        isinstance(value, str) and value.isascii() and value.isprintable()
    )
