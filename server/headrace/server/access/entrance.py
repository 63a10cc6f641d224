"""What each call goes through before its message is read, for gRPC and HTTP alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from headrace.runtime.errors import HeadraceError
from headrace.server.access.audit import AuditLog, entry
from headrace.server.access.gate import Cancellable, Gate, Names, OpenCall
from headrace.server.access.identity import CALLER, Identity, Role
from headrace.server.access.quotas import Meter, Quotas


class Visit(NamedTuple):
    """One call that is in.

    Attributes:
        counted: whether it counts as in flight for its caller.
    """

    call: OpenCall | None
    caller: Identity
    peer: str
    counted: bool

    @property
    def ended(self) -> HeadraceError | None:
        """The error that ends the call, because its credential is no longer valid."""
        return self.call.ended if self.call is not None else None


class Entrance:
    """The entrance of one event loop. Belongs to the loop's thread.

    Args:
        gate: checks credentials and roles, if there is access control.
        audit: records managing calls and refused ones, if somebody wants that.
        quotas: bound what one caller may do, if somebody wants that.
        refusals: how many calls were refused for which reason.
    """

    def __init__(
        self,
        gate: Gate | None,
        audit: AuditLog | None,
        refusals: dict[str, int],
        quotas: Quotas | None = None,
    ) -> None:
        self._gate = gate
        self._audit = audit
        self._refusals = refusals
        self._quotas = quotas

    @property
    def checks(self) -> bool:
        """Whether callers need credentials."""
        return self._gate is not None

    def enter(
        self,
        metadata: Iterable[tuple[object, object]],
        names: Names,
        role: Role,
        peer: str,
        handler: Cancellable,
        *,
        stays: bool = True,
    ) -> Visit:
        """Lets a caller in, and sets `CALLER`.

        Args:
            metadata: the headers of the call, text or bytes.
            names: returns the names in the certificate of the caller's connection.
            role: the role that the call needs.
            handler: is cancelled when the caller's credential becomes invalid.
            stays: whether the call counts as in flight for its caller. A stream does not, because
                its messages do.

        Raises:
            Unauthenticated: there is no valid credential, and the call needs one.
            PermissionDenied: the credential's role is too small.
            ResourceExhausted: the caller does too much at a time.
        """
        gate, quotas = self._gate, self._quotas
        call = None
        if gate is not None:
            call = gate.enter(authorization(metadata), names, role, handler)
        caller = CALLER.get()
        counts = quotas is not None and role is not Role.OPEN
        if quotas is not None and counts:
            try:
                quotas.enter(caller, peer, stays=stays)
            except BaseException:
                if gate is not None and call is not None:
                    gate.leave(call)
                raise
        return Visit(call, caller, peer, counts and stays)

    def meter(self, peer: str) -> Meter | None:
        """Counts the messages of the stream that this task handles, if there are quotas."""
        return None if self._quotas is None else Meter(self._quotas, CALLER.get(), peer)

    def leave(self, visit: Visit) -> None:
        """Counts the end of a call that was let in."""
        if self._gate is not None and visit.call is not None:
            self._gate.leave(visit.call)
        if self._quotas is not None and visit.counted:
            self._quotas.leave(visit.caller, visit.peer)

    def record(
        self,
        method: str,
        role: Role,
        peer: str,
        outcome: str,
        why: str,
        request_id: str,
    ) -> None:
        """Counts a refused call, and writes the audit line of a refused or managing one.

        Args:
            why: why the call was refused. "" if it was not.
        """
        if why:
            self._refusals[why] = self._refusals.get(why, 0) + 1
        if self._audit is not None and (why or role is Role.MANAGE):
            who = CALLER.get().name
            self._audit.write(entry(who, method, peer, outcome, why, request_id))


def authorization(metadata: Iterable[tuple[object, object]]) -> str | None:
    """The header with the credential, or None if there is none.

    Several are joined with commas, as HTTP says. No such credential is valid.
    """
    credential: str | None = None
    for name, value in metadata:
        if name in ("authorization", b"authorization"):
            text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
            credential = text if credential is None else f"{credential}, {text}"
    return credential
