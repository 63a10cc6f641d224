"""The ASGI application: all routes, and the steps that every HTTP request goes through.

It gives a request its id, refuses work while the server stops, and counts and logs how the request
ended. It is the only code that turns an exception into a reply.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import NoReturn

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Lifespan, Message, Receive, Scope, Send

from headrace.runtime.errors import ResourceExhausted, ShuttingDown
from headrace.runtime.execution.trace import Span
from headrace.runtime.metrics.counters import Counters
from headrace.server.access.audit import about
from headrace.server.access.entrance import Entrance, Visit
from headrace.server.access.identity import CALLER, Role
from headrace.server.access.refusal import reason_of
from headrace.server.http.connection import HttpConnection
from headrace.server.http.errors import CLIENT_LEFT, REST, error_reply, is_rest, said
from headrace.server.http.guard import GuardedRoute, enter, peer
from headrace.server.logs import CURRENT_REQUEST, new_request_id
from headrace.server.request_log import JOB, RequestLog, RequestRecord, network_of
from headrace.server.shared_memory.users import peer_of
from headrace.server.tracing.tracing import Tracing
from headrace.server.transport.statuses import describe

_ID_HEADER = b"x-request-id"
_MAX_ID_LENGTH = 128
_UNKNOWN_PATH = "other"


class Application:
    """Belongs to the thread of the HTTP server.

    Args:
        probes: routes without placeholders. They are answered even while the server stops, and on
            connections beyond the usual number.
        routes: all other routes.
        counters: count the requests.
        lifespan: the same as Starlette's.
        entrance: what callers go through before their bodies are read. None lets everybody in.
        log: gets the requests that have ended.
        tracing: traces requests to paths that are neither probes nor open. None traces nothing.
    """

    def __init__(
        self,
        probes: Sequence[GuardedRoute],
        counters: Counters,
        routes: Sequence[GuardedRoute] = (),
        lifespan: Lifespan[Router] | None = None,
        entrance: Entrance | None = None,
        log: RequestLog | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._entrance = entrance
        self._log = log or RequestLog()
        self._open = frozenset(route.path for route in (*probes, *routes) if route.is_open)
        paths = [route.path for route in (*probes, *routes)]
        self._router = Router([*probes, *routes], redirect_slashes=False, lifespan=lifespan)
        self._probes = frozenset(probe.path for probe in probes)
        self._tracing = tracing
        self._untraced = self._open | self._probes
        self._ended = {path: counters.http(path) for path in (*paths, _UNKNOWN_PATH)}
        known = [probe.path for probe in probes if not is_rest(probe.path)]
        self._known = ", ".join(known)
        self._working: set[asyncio.Task[None]] = set()
        self.draining = False  # then new work is refused; any thread may set it

    async def drain(self) -> None:
        """Returns when all work in progress has its replies."""
        while self._working:
            await asyncio.wait(self._working)

    async def cancel(self) -> None:
        """Cancels the work that is still in progress. Its clients get 503."""
        for task in self._working:
            task.cancel()
        await self.drain()

    def refused(self, status: HTTPStatus, message: str, host: tuple[str, int]) -> Response:
        """The reply to what could not be read as a request. It is counted and logged."""
        identifier, code = new_request_id(), str(status.value)
        ended = self._ended[_UNKNOWN_PATH]
        ended[code] = ended.get(code, 0) + 1
        if self._log.wants(code, 0.0):
            request = RequestRecord(
                "HTTP", code, 0.0, identifier, CALLER.get(), peer_of(*host), message
            )
            self._log.ended(request)
        headers = {_ID_HEADER.decode(): identifier, "connection": "close"}
        return said(status, message, REST, headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._router(scope, receive, send)
            return
        scope["app"] = self  # makes Starlette raise errors rather than answer them
        reply = _Reply(send, _identifier(scope))
        CURRENT_REQUEST.set(reply.identifier)
        tracing = self._tracing
        started = time.monotonic()
        task = asyncio.current_task()
        assert task is not None
        connection: HttpConnection = scope["state"]["connection"]

        def gone() -> None:
            reply.is_wanted = False
            task.cancel()

        connection.on_lost = gone
        visit: Visit | None = None
        span: Span | None = None
        error: BaseException | None = None
        try:
            if scope["path"] not in self._probes:
                self._refuse_if_full(connection)
                self._working.add(task)
            if self._entrance is not None:
                visit = enter(self._entrance, scope, task, is_open=scope["path"] in self._open)
            if tracing is not None and scope["path"] not in self._untraced:
                span = tracing.begin("HTTP", scope["headers"], started)
            await self._router(scope, receive, reply.send)
        except (Exception, asyncio.CancelledError) as caught:  # noqa: BLE001 - maps all of them
            error = (visit is not None and visit.ended) or caught
            reply.refusal, reply.failed = reason_of(error) or "", True
            if reply.is_wanted and not isinstance(error, ClientDisconnect):
                await self._answer(error, reply, scope, receive)
            else:
                reply.status = CLIENT_LEFT
        finally:
            # Its traceback has this frame, and others that have the reply's tensors.
            error = None
            if connection.on_lost is gone:
                connection.on_lost = None
            self._working.discard(task)
            if self._entrance is not None:
                self._record(self._entrance, visit, scope, reply)
            if tracing is not None and span is not None and not reply.refusal:
                route, status = _template(scope), reply.status or CLIENT_LEFT
                known = "" if route == _UNKNOWN_PATH else route
                tracing.end_http(span, scope, known, status, reply.identifier)
            self._count(scope, reply, started)

    @staticmethod
    def _record(entrance: Entrance, visit: Visit | None, scope: Scope, reply: _Reply) -> None:
        if visit is not None:
            entrance.leave(visit)
        route, method = scope.get("route"), scope["method"]
        role = route.roles.get(method) if isinstance(route, GuardedRoute) else None
        if reply.refusal or role is Role.MANAGE:
            given = scope.get("path_params", {})
            about(given.get("model") or given.get("name") or (scope["path"] if not route else ""))
            entrance.record(
                f"{method} {_template(scope)}",
                role or Role.OPEN,
                peer(scope),
                str(reply.status or CLIENT_LEFT),
                reply.refusal,
                reply.identifier,
            )

    def _refuse_if_full(self, connection: HttpConnection) -> None:
        """
        Raises:
            ShuttingDown: the server is shutting down.
            ResourceExhausted: the connection is beyond the usual number.
        """
        if self.draining:
            raise ShuttingDown()
        if connection.is_spare:
            raise ResourceExhausted(
                "too many HTTP connections are open (--max-concurrent-rpcs), and one address gets "
                "no more of them than are left; try again later"
            )

    async def _answer(
        self, error: BaseException, reply: _Reply, scope: Scope, receive: Receive
    ) -> None:
        path = scope["path"]
        response: Response
        if isinstance(error, HTTPException):
            headers = dict(error.headers or {})
            if "Allow" in headers:  # made from a set, in no fixed order
                headers["Allow"] = ", ".join(sorted(headers["Allow"].split(", ")))
            message = self._told(error.status_code, error.detail, scope["method"], headers)
            response = said(error.status_code, message, path, headers)
        else:
            if isinstance(error, asyncio.CancelledError):
                error = ShuttingDown()
            where = f"{scope['method']} {_template(scope)}"
            details = describe(error, where=where, request=reply.identifier)
            reply.said, response = details.message, error_reply(details, path)
            reply.network = network_of(error)
        if reply.status:
            self._cut(reply)
        await response(scope, receive, reply.send)

    def _told(self, status: int, detail: str, method: str, headers: Mapping[str, str]) -> str:
        if status == HTTPStatus.NOT_FOUND:
            return f"not found; known: {self._known}, and the paths that /v2/docs lists"
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            return f"this path takes {headers['Allow']}, not {method}"
        return detail

    @staticmethod
    def _cut(reply: _Reply) -> NoReturn:
        """Makes uvicorn close the connection, because its client already reads a reply."""
        raise RuntimeError(f"the reply to request {reply.identifier} broke off")

    def _count(self, scope: Scope, reply: _Reply, started: float) -> None:
        template = _template(scope)
        ended = self._ended[template]
        code = str(reply.status or CLIENT_LEFT)
        ended[code] = ended.get(code, 0) + 1
        seconds = time.monotonic() - started
        if self._log.wants(code if reply.failed else "OK", seconds):
            work = scope["path"] not in self._probes
            request = RequestRecord(
                f"{scope['method']} {template}",
                code,
                seconds,
                reply.identifier,
                CALLER.get(),
                peer(scope),
                reply.said,
                JOB.get(),
                network=reply.network,
                answered=not reply.failed,
            )
            self._log.ended(request, may_be_slow=work)
        JOB.set(None)


@dataclass(slots=True, eq=False, repr=False)
class _Reply:
    """Adds the request's id to a reply for uvicorn, and notes the status. 0 means none yet."""

    _send: Send
    identifier: str
    status: int = 0
    said: str = ""
    network: str = ""  # the network that refused the request
    refusal: str = ""  # why the caller was refused
    failed: bool = False  # a status of a handler is an answer, as 503 of what is not ready
    is_wanted: bool = True  # until the client leaves

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"].append((_ID_HEADER, self.identifier.encode()))
        await self._send(message)


def _identifier(scope: Scope) -> str:
    """The client's id for the request if a header can hold it, otherwise a new id."""
    for name, value in scope["headers"]:
        if name == _ID_HEADER:
            given: str = value.decode("latin-1")[:_MAX_ID_LENGTH]
            if given and given.isascii() and given.isprintable():
                return given
    return new_request_id()


def _template(scope: Scope) -> str:
    route = scope.get("route")
    return route.path if isinstance(route, Route) else _UNKNOWN_PATH
