"""What carries calls between clients and the methods of the services."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import grpc

from headrace.runtime.errors import InvalidArgument
from headrace.server.addresses import shown_address
from headrace.server.settings.settings import Settings
from headrace.server.transport.connections import cut_connections
from headrace.server.transport.guard import GuardedHandlers, Handler
from headrace.server.transport.limits import channel_options
from headrace.server.transport.strangers import Strangers
from headrace.server.transport.tls import ServerTls


def one_reply(
    handler: Callable[[Any, Any], Awaitable[Any]], serializer: Callable[[Any], bytes] | None = None
) -> grpc.RpcMethodHandler:
    """A method with one reply, as gRPC knows it. The handler reads the call's messages itself.

    Args:
        handler: a coroutine function. It gets the call's messages, which it ignores, and the
            call's context.
        serializer: makes bytes of the reply. None if it is bytes.
    """
    return grpc.stream_unary_rpc_method_handler(Handler(handler), response_serializer=serializer)


class FrontEnd(Protocol):
    """Accepts connections and hands their calls to the methods.

    Belongs to the thread of the event loop on which it is made. The methods run on that loop.
    """

    @property
    def connections(self) -> int:
        """How many connections are open. Any thread may read it."""

    def bind(self) -> int:
        """Takes the port.

        Returns:
            The port. It is another than the settings' if that is 0.

        Raises:
            InvalidArgument: another program has it.
        """

    async def start(self) -> None:
        """Accepts connections, after `bind`."""

    async def stop(self, seconds: float) -> None:
        """Closes the port and the connections. Calls that last longer than that are cancelled.

        It may also be called without `start` or `bind`.
        """


class GrpcioFrontEnd:
    """A `FrontEnd` of grpcio's server, in this process.

    Args:
        tls: the certificate. None for plain text.
        handlers: finds the handler of a call.
        strangers: ends connections that nobody wants.
    """

    def __init__(
        self,
        settings: Settings,
        tls: ServerTls | None,
        handlers: grpc.GenericRpcHandler,
        strangers: Strangers,
    ) -> None:
        self._address = shown_address(settings.host, settings.port)
        self._tls = tls
        self._strangers = strangers
        self._port: int | None = None
        self._server = grpc.aio.server(options=channel_options(settings))
        self._handlers = GuardedHandlers(handlers, strangers)
        self._server.add_generic_rpc_handlers((self._handlers,))

    @property
    def connections(self) -> int:
        return self._strangers.connections

    def bind(self) -> int:
        address = self._address
        try:
            if self._tls:
                self._port = self._server.add_secure_port(address, self._tls.credentials())
            else:
                self._port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise InvalidArgument(
                f"cannot listen on {address}: another server is there by now", field="port"
            ) from error
        return self._port

    async def start(self) -> None:
        assert self._port is not None
        await self._server.start()
        self._strangers.start(self._port)

    async def stop(self, seconds: float) -> None:
        self._handlers.stop()
        if self._port is not None:
            cut_connections(self._port)
        await self._server.stop(seconds)
        await asyncio.to_thread(self._strangers.stop)
