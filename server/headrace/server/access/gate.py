"""Lets callers in, and ends open calls whose credential is no longer valid."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from headrace.runtime.errors import HeadraceError, Internal, Unauthenticated
from headrace.server.access.authenticator import Authenticator, Grant
from headrace.server.access.identity import CALLER, STRANGER, Role
from headrace.server.access.refusal import require
from headrace.server.logs import log_internal_error

_LOOK_SECONDS = 0.5
_AT_ONCE_SECONDS = 0.002

Names = Callable[[], Iterable[str]]


class Cancellable(Protocol):
    """What handles a call."""

    def cancel(self) -> object:
        """Cancels it."""


@dataclass(slots=True, eq=False, repr=False)
class OpenCall:
    """One call of a caller with a credential. Belongs to the thread of its event loop.

    Attributes:
        ended: the error that ends the call. None while its credential is valid.
    """

    grant: Grant
    authorization: str | None
    names: Names
    role: Role
    _handler: Cancellable | None
    _gate: Gate
    ended: HeadraceError | None = None
    _end: Callable[[HeadraceError], object] | None = None
    _busy: bool = False

    def recheck(self) -> None:
        """
        Raises:
            HeadraceError: the call's credential has become invalid.
        """
        if self.ended is None:
            self.ended = self._gate.failure(self)
        if self.ended is not None:
            raise self.ended

    def end(self, error: HeadraceError) -> None:
        self.ended = error
        if self._end is not None:
            self._end(error)
        elif not self._busy and self._handler is not None:
            self._handler.cancel()

    def close(self) -> None:
        """Lets go of the handler, which refers to this call: garbage is looked for seldom."""
        self._handler = self._end = None


_OPEN: ContextVar[OpenCall | None] = ContextVar("open_call", default=None)


def when_ended(end: Callable[[HeadraceError], object]) -> None:
    """Says how to end the call of this task if its credential becomes invalid.

    Without this, the call's task is cancelled.
    """
    call = _OPEN.get()
    if call is not None:
        call._end = end


def recheck() -> None:
    """Checks the credential of this task's call now. The gate itself looks twice a second.

    Raises:
        HeadraceError: the credential has become invalid. The call has to end.
    """
    call = _OPEN.get()
    if call is not None:
        call.recheck()


def need(role: Role) -> None:
    """Checks the role of the caller, if only the request itself says which one it needs. From now
    on, the call ends when the caller loses this role.

    Raises:
        Unauthenticated: the caller has sent no valid credential.
        PermissionDenied: the caller's role is too small.
    """
    require(role)
    call = _OPEN.get()
    if call is not None:
        call.role = role


@contextmanager
def uncancelled() -> Iterator[None]:
    """Inside, the call's task is not cancelled, but the end is raised afterwards.

    grpc.aio never ends a call that is cancelled while it writes.

    Raises:
        HeadraceError: the credential has become invalid meanwhile.
    """
    call = _OPEN.get()
    if call is None:
        yield
        return
    call._busy = True
    try:
        yield
    finally:
        call._busy = False
    if call.ended is not None:
        raise call.ended


class Gate:
    """The gate of one event loop. Belongs to the loop's thread.

    While calls are open, it checks their credentials again twice a second.
    """

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._open: set[OpenCall] = set()
        self._timer: asyncio.TimerHandle | None = None

    def enter(
        self, authorization: str | None, names: Names, role: Role, handler: Cancellable
    ) -> OpenCall | None:
        """Lets the caller in, and sets `CALLER`.

        Args:
            handler: is cancelled when the credential becomes invalid.

        Returns:
            The call, for `leave`. None if a stranger makes an open call.

        Raises:
            Unauthenticated: there is no valid credential, and the call needs one.
            PermissionDenied: the credential's role is too small.
        """
        try:
            grant = self._authenticator.grant(authorization, names)
        except Unauthenticated:
            CALLER.set(STRANGER)
            if role is not Role.OPEN:
                raise
            return None
        CALLER.set(grant.identity)
        require(role, grant.identity)
        call = OpenCall(grant, authorization, names, role, handler, self)
        _OPEN.set(call)
        self._open.add(call)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)
        return call

    def leave(self, call: OpenCall) -> None:
        """Forgets a call that is over."""
        self._open.discard(call)
        call.close()

    def _look(self, left: list[OpenCall] | None = None) -> None:
        """Checks the calls, for some milliseconds at a time because JWTs take long to verify."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _AT_ONCE_SECONDS
        calls = list(self._open) if left is None else left
        while calls:
            call = calls.pop()
            if call in self._open:
                self._check(call)
            if calls and loop.time() > until:
                self._timer = loop.call_later(0, self._look, calls)
                return
        self._timer = loop.call_later(_LOOK_SECONDS, self._look) if self._open else None

    def failure(self, call: OpenCall) -> HeadraceError | None:
        """Checks a call. Forgets it if its credential no longer opens it, or cannot be checked.

        Raises nothing: the timer has to go on for the other calls.
        """
        failure: HeadraceError
        try:
            if self._authenticator.is_current(call.grant):
                return None
            grant = self._authenticator.grant(call.authorization, call.names)
            require(call.role, grant.identity)
            call.grant = grant
            return None
        except HeadraceError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - a bug must not leave a revoked caller in
            failure = Internal("the credential of an open call could not be checked")
            failure.__cause__ = error
        self._open.discard(call)
        return failure

    def _check(self, call: OpenCall) -> None:
        """Ends the call if its credential is no longer valid. Raises nothing."""
        failure = self.failure(call)
        if failure is None:
            return
        try:
            call.end(failure)
        except Exception as error:  # noqa: BLE001 - the call's own bug
            log_internal_error(error, where="ending a call without a valid credential")
