"""The methods that name a network: their calls go where the network is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from functools import wraps
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from headrace.cluster.placement.forwarding import MOST_TRIES, Forwarder, was_passed_on
from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.errors import HeadraceError, Unavailable
from headrace.runtime.loading.entry import full_name
from headrace.server.access.identity import CALLER, Role
from headrace.server.access.networks import Networks
from headrace.server.services.methods import Kind, Method
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import CodecError
from headrace.wire.message import parse_request

NameOf = Callable[[Any], str]


def _field(name: str) -> NameOf:
    return lambda message: str(getattr(message, name))


def _target(message: Any) -> str:
    return str(message.target.network)


def _in_options(data: bytes) -> str:
    """The network's name in the first message of an import."""
    try:
        return str(parse_request(pb.ImportNetworkRequest, data).options.name)
    except CodecError:
        return ""


_NAMES: Final[Mapping[str, NameOf]] = MappingProxyType(
    {
        **dict.fromkeys(("GetNetwork", "UnloadNetwork", "ExportNetwork"), _field("name")),
        **dict.fromkeys(("GetMetric", "GetConfig", "SetConfig"), _target),
        **dict.fromkeys(("SetShadow", "SetTraffic"), _field("network")),
        **dict.fromkeys(
            ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"), _field("name")
        ),
        "RepositoryModelUnload": _field("model_name"),
        "Check": _field("service"),
    }
)
"""Methods that are about a network that exists. Requests for inference are passed on by those who
decode them (`Serving.find_elsewhere`)."""

_LOADS: Final[Mapping[str, NameOf]] = MappingProxyType(
    {
        "LoadNetwork": lambda message: str(message.name or message.model.repository),
        "ImportNetwork": _in_options,
        "RepositoryModelLoad": _field("model_name"),
    }
)
"""Methods that load a network, under a name that may be taken elsewhere."""

_LOST: Final = "no replica has it at the moment"
_LISTS: Final[Mapping[str, tuple[Any, str, Any]]] = MappingProxyType(
    {
        "ListNetworks": (
            *(pb.ListNetworksReply, "networks"),
            pb.NetworkInfo(state=pb.LOADING, reason=_LOST),
        ),
        "RepositoryIndex": (
            *(oip.RepositoryIndexResponse, "models"),
            oip.RepositoryIndexResponse.ModelIndex(state="LOADING", reason=_LOST),
        ),
    }
)
"""Methods that list networks: the type of the reply, its field, and the entry of a network whose
replicas cannot be asked."""


class SerialisedReply(NamedTuple):
    """A reply of another replica, in place of a message."""

    data: bytes

    def ByteSize(self) -> int:  # noqa: N802 - protobuf's name
        return len(self.data)

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        return self.data


class ForwardingMethods:
    """Puts forwarding before the handlers of methods. Belongs to the event loop.

    Attributes:
        networks: says which networks a caller means. It has to be set before the first call.
    """

    networks: Networks

    def __init__(self, forwarding: Forwarder) -> None:
        self._forwarding = forwarding
        self._directory = forwarding.directory

    def __call__(self, methods: list[Method]) -> list[Method]:
        """The methods, of which those that name a network are passed on if need be."""
        return [method._replace(handler=self._handler(method)) for method in methods]

    def _handler(self, method: Method) -> Callable[..., Any]:
        if method.name in _LISTS:
            return self._list(method)
        if method.name not in _NAMES and method.name not in _LOADS:
            return method.handler
        match method.kind:
            case Kind.UNARY:
                return self._unary(method)
            case Kind.SERVER_STREAM:
                return self._server_stream(method)
            case _:
                return self._client_stream(method)

    def _find(self, method: Method, message: Any, context: Any) -> str:
        """The full name of the network, if the call has to be passed on."""
        # Nobody else learns from a failed call which networks there are.
        if not self._directory or not CALLER.get().may(Role.READ):
            return ""
        load = _LOADS.get(method.name)
        if load is None:
            names = self.networks.names(_NAMES[method.name](message))
        else:
            names = (full_name(load(message), self.networks.owner),)
        return self._forwarding.find(names, context)

    def _unary(self, method: Method) -> Callable[..., Any]:
        path, repeats = _path(method), method.role is not Role.MANAGE

        @wraps(method.handler)
        async def handle(message: Any, context: Any) -> Any:
            name = self._find(method, message, context)
            if not name:
                return self._told(await method.handler(message, context))
            data = message.SerializeToString()
            return SerialisedReply(
                await self._forwarding.unary(name, path, data, context, repeats=repeats)
            )

        return handle

    def _server_stream(self, method: Method) -> Callable[..., Any]:
        path = _path(method)

        @wraps(method.handler)
        async def handle(message: Any, context: Any) -> AsyncGenerator[bytes, None]:
            name = self._find(method, message, context)
            replies = (
                self._forwarding.server_stream(name, path, message.SerializeToString(), context)
                if name
                else method.handler(message, context)
            )
            try:
                async for reply in replies:
                    yield reply
            finally:
                await replies.aclose()

        return handle

    def _client_stream(self, method: Method) -> Callable[..., Any]:
        path = _path(method)

        @wraps(method.handler)
        async def handle(context: Any) -> Any:
            first = await context.read()
            name = "" if first is None else self._find(method, first, context)
            if not name:
                return self._told(await method.handler(_Replayed(first, context)))

            async def messages() -> AsyncIterator[bytes]:
                message = first
                while message is not None:
                    yield message
                    message = await context.read()

            return SerialisedReply(
                await self._forwarding.client_stream(name, path, messages(), context)
            )

        return handle

    def _list(self, method: Method) -> Callable[..., Any]:
        kind, field, lost = _LISTS[method.name]
        path = _path(method)

        @wraps(method.handler)
        async def handle(message: Any, context: Any) -> Any:
            reply = await method.handler(message, context)
            if not self._directory or was_passed_on(context):
                return reply
            rows = getattr(reply, field)
            missing = {each for each in self._directory.elsewhere() if self.networks.sees(each)}
            silent: set[str] = set()  # addresses that need not be asked again
            while missing:
                name = missing.pop()
                addresses = self._directory.addresses(name)
                try:
                    if silent.issuperset(addresses):
                        raise Unavailable(_LOST)
                    data = await self._forwarding.unary(
                        name, path, message.SerializeToString(), context
                    )
                except HeadraceError as error:
                    if error.status != Unavailable.status:
                        raise
                    if len(addresses) <= MOST_TRIES:  # all of them were asked
                        silent.update(addresses)
                    if not getattr(message, "ready", False):
                        rows.add().MergeFrom(lost)
                        rows[-1].name = self.networks.shown(name)
                    continue
                wanted = {name, *missing}
                for row in getattr(kind.FromString(data), field):
                    full = self._directory.find(self.networks.names(row.name))
                    if full in wanted:
                        missing.discard(full)
                        rows.append(row)
            for row in rows:
                self._told(row)
            return reply

        return handle

    def _told(self, reply: Any) -> Any:
        """The reply, in which networks name the replicas that are to have them."""
        info = reply.info if isinstance(reply, pb.GetNetworkReply) else reply
        if self._directory and isinstance(info, pb.NetworkInfo):
            for full in self.networks.names(info.name):
                if holders := self._directory.holders(full):
                    del info.replicas[:]
                    info.replicas.extend(holders)
                    break
        return reply


class _Replayed:
    """A call's context, whose first message was read already."""

    def __init__(self, first: Any, context: Any) -> None:
        self._first: list[Any] = [first]
        self._context = context

    async def read(self) -> Any:
        return self._first.pop() if self._first else await self._context.read()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _path(method: Method) -> str:
    return f"/{method.service}/{method.name}"
