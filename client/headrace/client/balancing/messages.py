"""What the answers of several servers mean, and what is refused because there are several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn

import grpc

from headrace.client import errors
from headrace.client.balancing.fleet import Fleet
from headrace.client.balancing.health import Answer
from headrace.client.balancing.server import Server
from headrace.client.channel.channel import Message
from headrace.client.errors import Error, FailedPrecondition, from_details
from headrace.wire.errors import ErrorDetails

ROUTED: Final = frozenset({"Infer", "GetNetwork", "ExportNetwork"})
"""The methods that any server answers alike, and that may be repeated."""
_SERVING: Final = b"\x08\x01"  # a HealthCheckResponse
_SILENT: Final = (grpc.StatusCode.DEADLINE_EXCEEDED,)
_NO_ANSWER: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def unresolved(target: str, error: OSError) -> Error:
    """The error of a call on a client whose name DNS does not know."""
    message = f"DNS tells no address for {target}: {error.strerror or error}"
    details = ErrorDetails(grpc.StatusCode.UNAVAILABLE, message, reason="NO_SERVERS")
    return errors.from_details(details)


def answer_of(code: grpc.StatusCode | None, reply: Message | None) -> Answer:
    """What a probe's end means. A server without this service is healthy if it answers."""
    if code is grpc.StatusCode.OK:
        return Answer.SERVING if reply == _SERVING else Answer.NOT_SERVING
    if code in _SILENT:
        return Answer.NONE
    return Answer.REFUSED if code in _NO_ANSWER else Answer.SERVING


def check_routed(method: str, fleet: Fleet, *, once: bool) -> None:
    """
    Args:
        once: whether the call must not be repeated.

    Raises:
        FailedPrecondition: the method is about one server.
    """
    if method not in ROUTED or once:
        refuse(method, fleet.servers)


def refuse(method: str, servers: Sequence[Server]) -> NoReturn:
    """
    Raises:
        FailedPrecondition: the method is about one server.
    """
    example = servers[0].address if servers else "host:port"
    several = str(len(servers)) if servers else "all servers of a name"
    message = (
        f"{method} is about one server, and this client has {several}; "
        f"call it on client.server({example!r})"
    )
    code = grpc.StatusCode.FAILED_PRECONDITION
    raise FailedPrecondition(ErrorDetails(code, message, reason="SEVERAL_SERVERS"))


def agreed(results: Sequence[tuple[str, Any]]) -> list[Any]:
    """The results of a call that was made on every server.

    Args:
        results: address and result, or the error.

    Raises:
        Error: it failed on some servers. It is of the first failure's class, and names all.
    """
    failed = [(address, each) for address, each in results if isinstance(each, Error)]
    if not failed:
        return [each for _, each in results]
    done = [address for address, each in results if not isinstance(each, Error)]
    first = failed[0][1].details
    told = "; ".join(f"{address}: {error}" for address, error in failed)
    where = f"done on {', '.join(done)}, but " if done else ""
    message = f"{where}failed on {len(failed)} of {len(results)} servers: {told}"
    raise from_details(
        ErrorDetails(
            first.code,
            message,
            reason=first.reason,
            field=first.field,
            metadata={"failed": ",".join(address for address, _ in failed)},
        )
    )
