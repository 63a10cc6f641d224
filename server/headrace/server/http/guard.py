"""Which role a route needs, and how an HTTP request's caller becomes known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from headrace.server.access.certificates import names_of_connection
from headrace.server.access.entrance import Entrance, Visit
from headrace.server.access.gate import Cancellable, need
from headrace.server.access.identity import Role
from headrace.server.shared_memory.users import peer_of

Check: TypeAlias = Callable[[Mapping[str, str]], None]


class GuardedRoute(Route):
    """A route that checks the caller's role for each of its methods.

    Args:
        path: the path, with placeholders.
        endpoint: a handler or an ASGI application.
        roles: the role that each method needs. HEAD needs the same as GET.
        check: raises an error if this server cannot answer for what the path names. It gets the
            values of the placeholders.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        roles: Mapping[str, Role],
        check: Check | None = None,
    ) -> None:
        super().__init__(path, endpoint, methods=list(roles))
        self._check = check
        self.roles = {method: roles.get(method, roles.get("GET")) for method in self.methods or ()}

    @property
    def is_open(self) -> bool:
        """Whether anybody may send any of the methods."""
        return all(role is Role.OPEN for role in self.roles.values())

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        role = self.roles.get(scope["method"])
        if role is not None:  # other methods are answered with 405
            need(role)
            if self._check is not None:
                self._check(scope["path_params"])
        await super().handle(scope, receive, send)


def enter(entrance: Entrance, scope: Scope, handler: Cancellable, *, is_open: bool) -> Visit:
    """Lets the caller of a request in. Its route checks the role.

    Args:
        handler: is cancelled when the caller's credential becomes invalid.
        is_open: whether anybody may ask for the path.

    Raises:
        Unauthenticated: there is no valid credential, and the path needs one.
        ResourceExhausted: the caller does too much at a time.
    """
    connection = scope["state"]["connection"]
    role = Role.OPEN if is_open else Role.READ
    names = partial(names_of_connection, connection.transport)
    return entrance.enter(scope["headers"], names, role, peer(scope), handler)


def peer(scope: Scope) -> str:
    """The address of the client, as gRPC writes it."""
    return peer_of(*(scope.get("client") or ("", 0)))
