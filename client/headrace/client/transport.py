"""How calls reach the server: the methods, the channel's options, the retry policy.

Shared by the synchronous and the asyncio client, which differ only in the channel they open.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from headrace.client.channel.connecting.names import parse
from headrace.client.errors import Error, client_closed, forked
from headrace.client.forks import tell_of_forks
from headrace.client.plans.plan import IDEMPOTENT
from headrace.client.tracing.calls import traced
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.errors import REQUEST_ID_KEY

_log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_SECONDS: Final = 60.0
DEFAULT_MESSAGE_BYTES: Final = 1024 * 1024 * 1024

FORGET_SECONDS: Final = 0.5
"""How long a client that is being closed waits for the server to forget its shared memory."""
_SERVICE = pb.DESCRIPTOR.services_by_name["InferenceEngine"]
_PREFIX = f"/{_SERVICE.full_name}/"
SERVER_STREAMS: Final = frozenset(
    method.name
    for method in _SERVICE.methods
    if method.server_streaming and not method.client_streaming
)
"""The methods with one request and a stream of replies."""
# Their messages are read and written by headrace.wire, without copies.
_RAW = frozenset({"Infer", "InferStream"})
# gRPC keeps a request of at most this size until it is answered, to send it again.
_RETRY_BUFFER_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Method:
    """One of the service's methods, in the form that gRPC's channels need."""

    name: str
    kind: str  # the channel's function: unary_unary, stream_unary, ...
    serialize: Callable[[Any], bytes] | None
    deserialize: Callable[[bytes], Any] | None

    @property
    def path(self) -> str:
        return _PREFIX + self.name


def methods() -> list[Method]:
    """All methods of the service."""
    return [
        Method(
            method.name,
            f"{_arity(method.client_streaming)}_{_arity(method.server_streaming)}",
            None if method.name in _RAW else getattr(pb, method.input_type.name).SerializeToString,
            None if method.name in _RAW else getattr(pb, method.output_type.name).FromString,
        )
        for method in _SERVICE.methods
    ]


def callables(channel: Any) -> dict[str, Any]:
    """Method name → the channel's callable."""
    return {
        method.name: getattr(channel, method.kind)(
            method.path,
            request_serializer=method.serialize,
            response_deserializer=method.deserialize,
        )
        for method in methods()
    }


def infer_stream(channel: Any, deserialize: Callable[[bytes], Any] | None) -> Any:
    """The channel's callable of InferStream. `deserialize` gets each message on gRPC's thread."""
    return channel.stream_stream(_PREFIX + "InferStream", response_deserializer=deserialize)


class Authorized:
    """A channel's callable that sends metadata with each call.

    An interceptor or gRPC's credentials for calls would take several times as long.
    """

    __slots__ = ("_call", "_metadata")

    def __init__(self, call: Any, metadata: Callable[[], Any]) -> None:
        self._call = call
        self._metadata = metadata

    def __call__(self, *request: Any, timeout: float | None = None, metadata: Any = ()) -> Any:
        return self._call(*request, timeout=timeout, metadata=(*self._metadata(), *metadata))

    def with_call(self, request: Any, *, timeout: float | None = None, metadata: Any = ()) -> Any:
        sent = (*self._metadata(), *metadata)
        return self._call.with_call(request, timeout=timeout, metadata=sent)

    def future(self, request: Any, *, timeout: float | None = None, metadata: Any = ()) -> Any:
        sent = (*self._metadata(), *metadata)
        return self._call.future(request, timeout=timeout, metadata=sent)


def unregistrations(names: Iterable[str]) -> list[pb.UnregisterSharedMemoryRequest]:
    """The requests that tell the server to forget these regions."""
    return [pb.UnregisterSharedMemoryRequest(name=name) for name in names]


class Channels:
    """A client's connections: one for most calls, and one for those that must not be sent twice.
    Each is opened with the first call. Thread-safe; `_lock` guards the table.

    Args:
        connect: opens a channel with these options.
        options: of a channel, `once` or not.
        metadata: gives the metadata that each call sends; None for no metadata.
        address: the server's, for traces.
        streams: `SharedStreams` of `headrace.client.multiplex`; None for a call for each request.

    Attributes:
        inherited: whether they belong to the process that this one was forked from.
    """

    def __init__(
        self,
        connect: Callable[[list[tuple[str, Any]]], Any],
        options: Callable[[bool], list[tuple[str, Any]]],
        metadata: Callable[[], Any] | None = None,
        address: str = "",
        streams: Callable[..., Any] | None = None,
    ) -> None:
        self._address = address
        self._share = streams
        self._streams: Any = None
        self._metadata = metadata
        self._connect = connect
        self._options = options
        self._lock = threading.Lock()
        self._closed = False
        self.inherited = False
        self._opened: dict[bool, tuple[Any, dict[str, Any]]] = {}
        tell_of_forks(self)

    def inherit(self) -> None:
        self._lock = threading.Lock()
        self._closed = self.inherited = True

    @property
    def channel(self) -> Any:
        """The connection for most calls."""
        return (self._opened.get(False) or self._open(once=False))[0]

    def callable(self, method: str, *, once: bool = False) -> Any:
        """gRPC's callable of a method.

        Raises:
            FailedPrecondition: the client is closed, or belongs to the process that this one was
                forked from.
        """
        _, callables = self._opened.get(once) or self._open(once=once)
        if self._closed:
            raise self._refusal()
        return traced(callables[method], _PREFIX + method, self._address)

    def close(self) -> list[Any]:
        """Ends the streams and returns the channels, for the caller to close. Idempotent. Inherited
        ones are left alone."""
        if self.inherited:
            return []
        if self._streams is not None:
            self._streams.close()
        with self._lock:
            self._closed = True
            return [channel for channel, _ in self._opened.values()]

    def _refusal(self) -> Error:
        return forked() if self.inherited else client_closed()

    def _open(self, *, once: bool) -> tuple[Any, dict[str, Any]]:
        with self._lock:
            if self._closed:
                raise self._refusal()
            if once not in self._opened:
                channel = self._connect(self._options(once))
                found = callables(channel)
                if self._streams is None and self._share is not None:
                    self._streams = self._share(
                        partial(infer_stream, channel), self._metadata or tuple
                    )
                if (metadata := self._metadata) is not None:
                    found = {name: Authorized(each, metadata) for name, each in found.items()}
                if self._streams is not None:
                    found["Infer"] = self._streams.infer(found["Infer"], once=once)
                self._opened[once] = channel, found
            return self._opened[once]


def logs_requests() -> bool:
    """Whether the log takes the messages of `log_request`."""
    return _log.isEnabledFor(logging.DEBUG)


def log_request(method: str, trailing: Iterable[tuple[str, str | bytes]] | None) -> None:
    """Logs, at level debug, the id of a successful call in the server's log. For an inference, the
    outputs have it as `request_id`. For an error, the details have it."""
    for key, value in trailing or ():
        if key == REQUEST_ID_KEY:
            _log.debug("%s was request %s", method, value)


def channel_options(
    target: str, max_message_bytes: int, *, once: bool = False
) -> list[tuple[str, Any]]:
    """gRPC channel arguments: message limits, and the retry policy as a service configuration.

    Connections to this machine do not use the environment's proxy, because it could not reach this
    machine.

    If the server could not take an idempotent call (UNAVAILABLE, or CANCELLED although nobody here
    cancelled it), the call is sent up to four times within about two seconds, and never past its
    deadline. With `once`, a call that may have reached the server is not sent again.
    """
    service_config = {
        "methodConfig": [
            {
                "name": [{"service": _SERVICE.full_name, "method": name} for name in IDEMPOTENT],
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 3,
                    "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
                },
            }
        ]
    }
    return [
        ("grpc.enable_http_proxy", int(not parse(target).is_local)),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.enable_retries", 1),
        ("grpc.per_rpc_retry_buffer_size", _RETRY_BUFFER_BYTES),
        *([] if once else [("grpc.service_config", json.dumps(service_config))]),
    ]


def _arity(streaming: bool) -> str:
    return "stream" if streaming else "unary"
