"""The errors that a caller may see.

    HeadraceError
    ├── InvalidArgument         a bad tensor, model, name or value; `field` names it
    │   └── InvalidModel
    ├── NotFound                unknown device, network, metric or key; says "did you mean"
    ├── AlreadyExists
    ├── FailedPrecondition
    │   ├── UnsupportedLayers   lists every layer that the device cannot run
    │   ├── RequestBusy         an infer request started while it runs
    │   └── EndedWorker         a model or request ended the device's process; not to be tried again
    ├── ResourceExhausted
    │   └── QueueFull           says after which delay to try again
    ├── DeadlineExceeded
    │   └── RanTooLong          a run took longer than EXECUTION_TIMEOUT
    ├── Cancelled               by the caller
    │   └── Stopped             by the server as it stops; the caller gets UNAVAILABLE
    ├── Unavailable             the device is down
    │   ├── ShuttingDown        the server drains; another one may take the request
    │   ├── StillLoading        the network is being loaded
    │   │   └── NotLoaded       its first request loads it
    │   └── NotInstalled        the library, the driver or the hardware of a plugin is missing
    ├── Unimplemented           a feature that the plugin lacks
    ├── Unauthenticated         no credential, or one that is not valid
    ├── PermissionDenied        the credential's role is too small
    └── Internal                a bug; its text is for the log, never for the caller

Each class has the name of its gRPC status. The server turns the name into a status.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple


class HeadraceError(Exception):
    """Base of all errors that a caller may see.

    Args:
        message: says what is wrong and what to do about it.
        field: path of the request field at fault, for example ``inputs['x'].shape``.
        metadata: machine-readable facts, for ErrorInfo.
    """

    status: ClassVar[str] = "UNKNOWN"
    reason: ClassVar[str] = "UNKNOWN"

    network: str = ""
    """The full name of the network that refused the request. For the server's own reports: callers
    are not told."""

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.metadata = dict(metadata or {})
        self.retry_delay_seconds: float | None = None


class InvalidArgument(HeadraceError):
    status = reason = "INVALID_ARGUMENT"


class InvalidModel(InvalidArgument):
    reason = "INVALID_MODEL"


class NotFound(HeadraceError):
    status = reason = "NOT_FOUND"

    @classmethod
    def unknown(
        cls, what: str, name: str, known: Iterable[str], *, field: str | None = None
    ) -> NotFound:
        """The error for a `name` that is not among the `known` names. `what` says what it names."""
        fault = f"unknown {what} {name!r}" if name else f"the name of the {what} is empty"
        return cls(f"{fault}{did_you_mean(name, known)}", field=field)


class AlreadyExists(HeadraceError):
    status = reason = "ALREADY_EXISTS"


class FailedPrecondition(HeadraceError):
    status = reason = "FAILED_PRECONDITION"


class UnsupportedLayer(NamedTuple):
    """A layer that a device cannot run, and why."""

    layer: str
    op_type: str
    reason: str
    device: str = ""


_LAYERS_TOLD = 3
_REASONS_TOLD = 8
_PARTICULAR: Final = re.compile(r"\B'[^']*'|\b\d+(?:\W+\d+)*")
"""The names and the sizes in a reason."""


class UnsupportedLayers(FailedPrecondition):
    """The text groups the layers by reason and names the first ones. `layers` has all of them."""

    reason = "UNSUPPORTED_LAYERS"

    def __init__(self, device: str, layers: Iterable[UnsupportedLayer]) -> None:
        self.layers = tuple(layers)
        super().__init__(
            f"{device} does not support {len(self.layers)} layer(s): {_by_reason(self.layers)}",
            field="model",
            metadata={"device": device, "layers": str(len(self.layers))},
        )


def _by_reason(layers: Sequence[UnsupportedLayer]) -> str:
    """Tells reasons that differ only in the layers' own names and sizes once."""
    same: dict[str, list[str]] = {}
    for layer, op_type, reason, _ in layers:
        same.setdefault(reason, []).append(f"{layer} ({op_type})")
    alike: dict[str, list[str]] = {}
    for reason in same:
        alike.setdefault(_PARTICULAR.sub("#", reason), []).append(reason)
    told = []
    for first, *others in list(alike.values())[:_REASONS_TOLD]:
        told.append(f"{_first(same[first])}: {first}")
        if others:
            told.append(f"likewise {_first([name for each in others for name in same[each]])}")
    left = [reason for reasons in list(alike.values())[_REASONS_TOLD:] for reason in reasons]
    if left:
        count = sum(len(same[reason]) for reason in left)
        told.append(f"{count} more for other reasons; a query lists them all")
    return "; ".join(told)


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LAYERS_TOLD} more" if len(names) > _LAYERS_TOLD else ""
    return f"{', '.join(names[:_LAYERS_TOLD])}{more}"


class RequestBusy(FailedPrecondition):
    reason = "REQUEST_BUSY"


class EndedWorker(FailedPrecondition):
    reason = "ENDED_WORKER"


class ResourceExhausted(HeadraceError):
    status = reason = "RESOURCE_EXHAUSTED"


class QueueFull(ResourceExhausted):
    reason = "QUEUE_FULL"

    def __init__(self, message: str, *, retry_delay_seconds: float) -> None:
        super().__init__(message)
        self.retry_delay_seconds = retry_delay_seconds


class DeadlineExceeded(HeadraceError):
    status = reason = "DEADLINE_EXCEEDED"


class RanTooLong(DeadlineExceeded):
    """A run took longer than EXECUTION_TIMEOUT."""

    reason = "RAN_TOO_LONG"


class Cancelled(HeadraceError):
    status = reason = "CANCELLED"


class Stopped(Cancelled):
    status = "UNAVAILABLE"
    reason = "STOPPED"


class Unavailable(HeadraceError):
    status = reason = "UNAVAILABLE"


class ShuttingDown(Unavailable):
    """The server takes no new work, and has not begun this one. Clients that balance send it to
    another server."""

    reason = "SHUTTING_DOWN"

    def __init__(
        self, message: str = "the server is shutting down; use another one", **facts: Any
    ) -> None:
        super().__init__(message, **facts)


class StillLoading(Unavailable):
    """The network is being loaded; another server may have it already."""

    reason = "NETWORK_LOADING"


class NotLoaded(StillLoading):
    """The network is known, and its first request loads it.

    Attributes:
        cold: what loads it, for who can wait.
    """

    reason = "NETWORK_COLD"

    def __init__(self, message: str, cold: object) -> None:
        super().__init__(message)
        self.cold = cold


class NotInstalled(Unavailable):
    reason = "NOT_INSTALLED"


class PermissionDenied(HeadraceError):
    status = reason = "PERMISSION_DENIED"


class Unimplemented(HeadraceError):
    status = reason = "UNIMPLEMENTED"


class Unauthenticated(HeadraceError):
    status = reason = "UNAUTHENTICATED"


class Internal(HeadraceError):
    status = reason = "INTERNAL"


_WITHOUT: Final = {
    errno.EMFILE: "file descriptors",
    errno.ENFILE: "file descriptors",
    errno.ENOMEM: "memory",
    errno.ENOBUFS: "memory",
    errno.ENOSPC: "space for files",
    errno.EDQUOT: "space for files",
    errno.EAGAIN: "processes",
}
_NO_THREAD: Final = ("can't start new thread", os.strerror(errno.EAGAIN))
"""Texts of Python and of C++ about a thread that did not start."""


def exhausted(error: BaseException | None) -> ResourceExhausted | None:
    """The error for the caller if the system has run out of something; otherwise None.

    Args:
        error: what was raised. If it is a bug, its causes count too.
    """
    met: set[int] = set()
    while error is not None and id(error) not in met:
        met.add(id(error))
        if isinstance(error, HeadraceError) and not isinstance(error, Internal):
            return None
        what = None
        if isinstance(error, MemoryError):
            what = "memory"
        elif isinstance(error, OSError):
            what = _WITHOUT.get(error.errno or 0)
        elif isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_THREAD):
            what = "threads"
        if what is not None:
            refusal = ResourceExhausted(f"the server has run out of {what}; try again later")
            refusal.retry_delay_seconds = 1.0
            return refusal
        error = error.__cause__
    return None


_COMPARED: Final = 128
"""How many characters of a name are compared. A client may send a name of megabytes, and comparing
takes dozens of times as many bytes as a name has."""
_NEAR: Final = 100
"""With how many known names a name is compared on each side of its place in their order. A server
may know thousands, and a comparison takes up to a millisecond."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A clause for the end of an error: the closest known name, or all known names if few."""
    names = sorted(known)
    by_folded = {candidate.casefold(): candidate for candidate in names}
    wanted, folded = name[:_COMPARED].casefold(), sorted(by_folded)
    at = bisect(folded, wanted)
    close = difflib.get_close_matches(wanted, folded[max(at - _NEAR, 0) : at + _NEAR], n=1)
    if close:
        return f"; did you mean {by_folded[close[0]]!r}?"
    if 0 < len(names) <= 12:
        return f"; known: {', '.join(names)}"
    return ""


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and all errors that led to it, each once."""
    met: set[int] = set()
    ahead = [error]
    while ahead:
        each = ahead.pop()
        if each is not None and id(each) not in met:
            met.add(id(each))
            ahead += (each.__cause__, each.__context__)
            yield each


def forget_frames(error: BaseException) -> None:
    """Drops the tracebacks of `error` and of the errors that led to it.

    A traceback keeps the local variables of all its frames, tensors included. If one of these
    variables refers to the error, they live until the next garbage collection.
    """
    for cause in chain(error):
        cause.__traceback__ = None


def lacks_network(error: BaseException | None) -> bool:
    """Whether it is a pipeline that cannot run the network of a step, which may come."""
    return isinstance(error, HeadraceError) and "step_network" in error.metadata


def may_pass(error: BaseException) -> bool:
    """Whether a load failed for a reason that may pass, although nobody changes the network."""
    passing = AlreadyExists, Cancelled, ResourceExhausted, Unavailable, OSError
    unread = isinstance(error.__cause__, OSError)
    return unread or isinstance(error, passing) or lacks_network(error)


def public_text(error: BaseException | None) -> str:
    """The text of an error for callers. That of a bug is for the log: it may hold paths."""
    if isinstance(error, HeadraceError) and not isinstance(error, Internal):
        return error.message
    return "an internal error; see the server's log"
