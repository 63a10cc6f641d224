"""The role that each RPC and each HTTP path needs, and what it answers to a kind of credential."""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from ssl import SSLContext
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import grpc
from prometheus_client import CollectorRegistry

from headrace.runtime.metrics.counters import Counters
from headrace.server.http.guard import GuardedRoute
from headrace.server.http.operations import operations_routes
from headrace.server.http.page.routes import page_routes
from headrace.server.http.rest.rest import Rest
from headrace.server.services.methods import Kind, Method, all_methods
from headrace.server.transport.boundary import Boundary

CALL_SECONDS = 60.0
NOT_CONNECTED = "not connected"

# Every network, region and version in a path.
_ANY = re.compile(r"\{\w+\}")


def methods() -> list[Method]:
    """The table of methods, with handlers that do nothing."""
    return all_methods(MagicMock(), Boundary(Counters(), 1))


def routes() -> list[GuardedRoute]:
    """All routes of HTTP, with handlers that do nothing."""
    rest = Rest(MagicMock(), MagicMock(), MagicMock(), MagicMock(), 1 << 20)
    return [
        *operations_routes(CollectorRegistry(), lambda: None),
        *page_routes(MagicMock()),
        *rest.probes,
        *rest.routes,
    ]


class Caller(NamedTuple):
    """One kind of caller.

    Attributes:
        name: what kind it is.
        channel: connects to gRPC.
        tls: the client's side of HTTP's handshake. None sends plain text.
        token: what is sent as `authorization`, if anything is.
    """

    name: str
    channel: Any
    tls: SSLContext | None
    token: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"} if self.token is not None else {}


Answers = dict[str, tuple[str, list[str]]]
"""By call or path: the role that it needs, and what each caller is answered."""


def answers_of_calls(callers: Sequence[Caller]) -> Answers:
    """What each RPC of each service answers."""
    return {
        name: (each.role.name.lower(), [_status(each, caller) for caller in callers])
        for name, each in _calls().items()
    }


def answers_of_paths(callers: Sequence[Caller], address: str) -> Answers:
    """What each method of each path of HTTP answers."""
    return {
        f"{method} `{path}`": (
            role,
            [_http_status(address, method, path, caller) for caller in callers],
        )
        for method, path, role in _paths()
    }


def calls_table() -> str:
    """The roles of all RPCs, for the manual."""
    return _table("call", {name: each.role.name.lower() for name, each in _calls().items()})


def paths_table() -> str:
    """The roles of all paths of HTTP, for the manual."""
    return _table("path", {f"{method} `{path}`": role for method, path, role in _paths()})


def _calls() -> dict[str, Method]:
    return {f"`{each.service.rpartition('.')[0]}` {each.name}": each for each in methods()}


def _paths() -> list[tuple[str, str, str]]:
    """Each method of each path, with its role."""
    return [
        (method, route.path, role.name.lower())
        for route in routes()
        for method, role in sorted(route.roles.items())
        if role is not None and method != "HEAD"
    ]


def _table(what: str, roles: Mapping[str, str]) -> str:
    rows = [(what, "role"), ("---", "---"), *roles.items()]
    return "".join(f"| {name} | {role} |\n" for name, role in rows)


def _status(method: Method, caller: Caller) -> str:
    """The status of a call without content."""
    call = start(caller.channel, method, caller.headers)
    try:
        for _ in call:
            if method.name == "Watch":  # it would go on
                break
    except grpc.RpcError as error:
        status: str = error.code().name
        return NOT_CONNECTED if status == "UNAVAILABLE" else status
    finally:
        call.cancel()
    return "OK"


def start(channel: Any, method: Method, headers: Mapping[str, str]) -> Any:
    """Starts a call with one empty message, or none if the method takes a stream."""
    takes_stream = method.kind in (Kind.STREAM, Kind.CLIENT_STREAM)
    messages: Iterator[bytes] = iter(()) if takes_stream else iter((b"",))
    return channel.stream_stream(f"/{method.service}/{method.name}")(
        messages, metadata=tuple(headers.items()), timeout=CALL_SECONDS
    )


def _http_status(address: str, method: str, path: str, caller: Caller) -> str:
    body = "{}" if method == "POST" else None
    asked = _ANY.sub("unknown", path)
    return ask(address, method, asked, caller.tls, caller.headers, body, lambda r: str(r.status))


def ask(
    address: str,
    method: str,
    path: str,
    tls: SSLContext | None,
    headers: Mapping[str, str],
    body: str | None,
    read: Callable[[http.client.HTTPResponse], str],
) -> str:
    """What `read` finds in the reply."""
    connection = (
        http.client.HTTPConnection(address, timeout=CALL_SECONDS)
        if tls is None
        else http.client.HTTPSConnection(address, timeout=CALL_SECONDS, context=tls)
    )
    try:
        connection.request(method, path, body, headers)
        return read(connection.getresponse())
    except (OSError, http.client.HTTPException):
        return NOT_CONNECTED
    finally:
        connection.close()
