"""The front end of grpcio's server: the plain alternative to the one of our own.

It has gRPC's own limits and nothing beyond: no bound for connections of one address, none against
floods of frames.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, NoReturn
from urllib.parse import unquote

import grpc

from headrace.runtime.errors import InvalidArgument
from headrace.server.addresses import shown_address
from headrace.server.settings.settings import Settings
from headrace.server.shared_memory.users import UserLookup
from headrace.server.transport.call import (
    BoundMethod,
    CallOver,
    Metadata,
    Methods,
    Take,
    deliver_one_by_one,
)
from headrace.server.transport.limits import max_connections, max_streams
from headrace.server.transport.tls import ServerTls

_log = logging.getLogger(__name__)

_METADATA_BYTES: Final = 16 << 10
_PING_MILLISECONDS: Final = 60_000
_WAITING: Final = 1 << 16
_FRAME_BYTES: Final = 1 << 20


class GrpcioCall:
    """Implements `Call` on a context of grpc.aio."""

    __slots__ = ("_context", "_port", "_task", "method")

    def __init__(self, method: str, context: Any, port: int | None) -> None:
        self.method = method
        self._context = context
        self._port = port
        task = asyncio.current_task()
        assert task is not None
        self._task = task

    def peer(self) -> str:
        peer: str = self._context.peer()
        return peer

    def invocation_metadata(self) -> Metadata:
        return self._context.invocation_metadata() or ()

    def certificate(self) -> bytes | None:
        certificates = self._context.auth_context().get("x509_pem_cert", ())
        return next(iter(certificates), None)

    def time_remaining(self) -> float | None:
        left: float | None = self._context.time_remaining()
        return left

    async def user(self) -> int | None:
        """gRPC tells the client's end of the connection alone. The ends of one that begins on this
        machine have the same address."""
        kind, _, where = unquote(self._context.peer()).partition(":")
        host, _, port = where.rpartition(":")
        if self._port is None or not kind.startswith("ip"):
            return None
        host = host.strip("[]").removeprefix("::ffff:")
        return await UserLookup((host, int(port)), (host, self._port)).find()

    def show_credential(self) -> None:
        """gRPC's connections cannot be ended one by one."""

    async def read(self) -> bytes | None:
        data = await self._context.read()
        return None if data is grpc.aio.EOF else data

    async def deliver(self, take: Take) -> None:
        await deliver_one_by_one(self, take)

    async def write(self, message: bytes) -> None:
        try:
            await self._context.write(message)
        except grpc.aio.InternalError:  # gRPC would cancel this task in a moment
            raise CallOver from None

    def try_write(self, _message: bytes) -> bool:
        """grpc.aio always waits."""
        return False

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        self._context.set_trailing_metadata(tuple(metadata))

    async def abort(self, code: grpc.StatusCode, message: str, metadata: Metadata) -> NoReturn:
        try:
            await self._context.abort(code, message, tuple(metadata))
        except grpc.aio.InternalError:
            # The call has just ended by itself. gRPC would cancel this task in a moment.
            raise asyncio.CancelledError from None
        raise AssertionError("abort returned")

    def cancel(self) -> None:
        self._task.cancel()

    def when_over(self, callback: Callable[[], object]) -> None:
        # A callback of gRPC's context would make a cycle of references in every call.
        self._task.add_done_callback(lambda _: callback())


class GrpcioHandlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The methods for a server of grpcio.

    Generated functions would register each method with gRPC's core, which would then wait for the
    next call of each method separately.

    Attributes:
        port: where calls come in. None if that is not known, or no port.
    """

    def __init__(self, methods: Methods) -> None:
        self.port: int | None = None
        self._methods = methods
        self._known: dict[str, grpc.RpcMethodHandler] = {}

    def service(self, details: Any) -> grpc.RpcMethodHandler | None:
        path = details.method
        known = self._known.get(path)
        if known is None:
            bound = self._methods.find(path)
            if bound is None:
                return None
            known = self._known[path] = self._handler(path, bound)
        return known

    def _handler(self, path: str, bound: BoundMethod) -> grpc.RpcMethodHandler:
        async def handle(_: Any, context: Any) -> bytes | None:
            reply = await bound.handle(GrpcioCall(path, context, self.port))
            return b"".join(reply) if isinstance(reply, list) else reply

        if bound.gives_one:
            return grpc.stream_unary_rpc_method_handler(handle)
        return grpc.stream_stream_rpc_method_handler(handle)


class GrpcioFrontEnd:
    """A `FrontEnd` of grpcio's server, on a TCP port or at the path of a Unix socket.

    Args:
        tls: the certificate. None for plain text.
        methods: what calls find.
    """

    def __init__(self, settings: Settings, tls: ServerTls | None, methods: Methods) -> None:
        self._address = shown_address(settings.host, settings.port)
        self._tls = tls
        self._server = grpc.aio.server(options=channel_options(settings))
        self._handlers = GrpcioHandlers(methods)
        self._server.add_generic_rpc_handlers((self._handlers,))

    @property
    def connections(self) -> int:
        """gRPC does not tell them."""
        return 0

    def bind(self) -> int:
        try:
            if self._tls is not None:
                port = self._server.add_secure_port(self._address, self._tls.credentials())
            else:
                port = self._server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise InvalidArgument(
                f"cannot listen on {self._address}: another server is there by now", field="port"
            ) from error
        self._handlers.port = int(port)
        return int(port)

    def listen(self, path: str) -> None:
        try:
            self._server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:
            raise InvalidArgument("cannot make a socket for gRPC", field="unix_socket") from error

    async def start(self) -> None:
        await self._server.start()

    async def lost(self) -> None:
        """A client ends gRPC's server by a call whose path is not UTF-8."""
        ended = asyncio.ensure_future(self._server.wait_for_termination())
        await asyncio.wait({ended})  # to cancel `ended` would cancel gRPC's own stop
        if (error := ended.exception()) is None:
            await asyncio.get_running_loop().create_future()  # it was stopped
        _log.critical("gRPC's server has failed and takes no more calls", exc_info=error)

    async def stop(self, seconds: float) -> None:
        await self._server.stop(seconds)


def channel_options(settings: Settings) -> list[tuple[str, Any]]:
    """The options of gRPC's core.

    New calls wait in the core until Python takes them. When too many wait, the core ends random
    calls of any client as CANCELLED, so its bound is set very high, and each connection has a bound
    of its own.
    """
    return [
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", settings.max_message_bytes),
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", max_streams(settings)),
        ("grpc.server.max_pending_requests", _WAITING),
        ("grpc.server.max_pending_requests_hard_limit", _WAITING),
        ("grpc.server_max_unrequested_time_in_server", 2**31 - 1),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", _FRAME_BYTES),
        ("grpc.http2.max_frame_size", _FRAME_BYTES),
        ("grpc.max_allowed_incoming_connections", max_connections(settings)),
        ("grpc.max_metadata_size", _METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
        ("grpc.keepalive_time_ms", _PING_MILLISECONDS),
        ("grpc.keepalive_timeout_ms", _PING_MILLISECONDS // 3),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
    ]
