"""Keeps clients that begin calls and give them up at once from making all others wait.

gRPC's core hands calls to Python one after the other, in the order of their arrival, those that
have been reset meanwhile too. Each one takes the event loop 80 µs or more, and its way through
gRPC's threads takes milliseconds while a client floods them.

The core counts a call as a stream of its connection until its handler has ended, even if the client
has reset it. Calls beyond the connection's streams are refused by the core itself. So the handler
of a call that was given up waits, and its client gets slower.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NoReturn

import grpc

from headrace.server.transport.resets import AT_ONCE_SECONDS, PATIENCE_SECONDS, Resets, Verdict
from headrace.server.transport.strangers import Strangers
from headrace.server.transport.waiting_room import WaitingRoom

_GRACE_SECONDS: Final = 0.005
_LEFT: Final = (asyncio.CancelledError, grpc.aio.InternalError)


class Handler(partial[Awaitable[Any]]):
    """A coroutine function that gRPC recognises at once.

    For each call, gRPC asks twice whether the handler is asynchronous. It looks for an awaitable
    first. Only then it looks for a coroutine function, which takes ten more calls of Python
    functions. It never awaits the handler itself.
    """

    __slots__ = ()

    def __await__(self) -> NoReturn:
        raise TypeError("call the handler, and await what it returns")


class GuardedHandlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The handlers behind a TCP port. Belongs to the event loop's thread.

    Args:
        handlers: finds the handler of a call.
        strangers: ends connections.
        patience_seconds: how long a connection may go on before it is ended.
    """

    def __init__(
        self,
        handlers: grpc.GenericRpcHandler,
        strangers: Strangers,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._handlers = handlers
        self._end = strangers.end
        self._resets = Resets(patience_seconds)
        self._room = WaitingRoom(strangers.is_open)
        self._unknown = self._guarded(grpc.stream_unary_rpc_method_handler(_refuse))
        # By the handler's identity. The handler is kept, so that no other gets its identity.
        self._guards: dict[int, tuple[grpc.RpcMethodHandler, grpc.RpcMethodHandler]] = {}

    def service(self, details: Any) -> grpc.RpcMethodHandler:
        handler = self._handlers.service(details)
        if handler is None:
            return self._unknown
        found = self._guards.get(id(handler))
        if found is None:
            found = self._guards[id(handler)] = (handler, self._guarded(handler))
        return found[1]

    def stop(self) -> None:
        """Lets no call wait from now on, because a server that stops waits for all calls."""
        self._room.close()

    def _guarded(self, handler: grpc.RpcMethodHandler) -> grpc.RpcMethodHandler:
        kind = "stream_stream" if handler.response_streaming else "stream_unary"
        return handler._replace(**{kind: Handler(partial(self._call, getattr(handler, kind)))})

    async def _call(
        self, handle: Callable[[Any, Any], Awaitable[Any]], messages: Any, context: Any
    ) -> Any:
        loop = asyncio.get_running_loop()
        resets = self._resets
        peer = context.peer()  # now, because gRPC names it "" when the call has ended
        started = loop.time()
        if resets and resets.distrusts(peer, started):
            return await self._call_of_distrusted(peer, handle, messages, context)
        try:
            reply = await handle(messages, context)
        except _LEFT:
            now = loop.time()
            if now - started <= AT_ONCE_SECONDS:
                self._judge(peer, now)
            raise
        if resets:
            resets.answered(peer)
        return reply

    async def _call_of_distrusted(
        self, peer: str, handle: Callable[[Any, Any], Awaitable[Any]], messages: Any, context: Any
    ) -> Any:
        """Handles a call that has probably been reset."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            # A call that has been reset is mostly cancelled meanwhile, and has cost little.
            await asyncio.sleep(_GRACE_SECONDS)
            # A task of its own. What the handler takes is given back when its task ends, and the
            # task that gRPC knows may have to wait.
            reply = await asyncio.ensure_future(handle(messages, context))
        except _LEFT:
            now = loop.time()
            if now - started <= AT_ONCE_SECONDS:
                verdict = self._judge(peer, now)
                if verdict is Verdict.WAIT and not await self._room.wait(peer):
                    self._end(peer, "it gives up calls at once, and so do too many others")
            raise
        self._resets.answered(peer)
        return reply

    def _judge(self, peer: str, now: float) -> Verdict:
        verdict = self._resets.given_up(peer, now)
        if verdict is Verdict.END:
            self._end(peer, "it goes on beginning calls and giving them up at once")
        return verdict


async def _refuse(_: Any, context: Any) -> None:
    """What gRPC answers itself. Its own answer cannot be guarded."""
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
