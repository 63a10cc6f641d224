"""What an error means: for the request, and for the server that gave it."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

import grpc

from headrace.client.errors import Error


class Mark(enum.Enum):
    """What an error says of the server."""

    ANSWERS = enum.auto()  # nothing is wrong with it
    UNREACHABLE = enum.auto()
    DRAINS = enum.auto()
    FAULT = enum.auto()  # it could not do what it should
    FULL = enum.auto()  # its queue is
    LACKS = enum.auto()  # it does not have the network


class Verdict(NamedTuple):
    """
    Attributes:
        elsewhere: whether another server may do better.
        free: whether the repeat needs no budget, because the server has not begun the request, and
            says so at most once.
    """

    mark: Mark
    elsewhere: bool
    free: bool = False


_ANSWERED: Final = Verdict(Mark.ANSWERS, elsewhere=False)
_FAULTS: Final = (
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DATA_LOSS,
)


def judge(error: Error) -> Verdict:
    """What follows from an error of a request that may be repeated.

    A request that failed inside a server is not repeated: it may be what makes servers fail.
    """
    code, reason = error.code, error.details.reason
    if code is grpc.StatusCode.UNAVAILABLE:
        if reason in ("SHUTTING_DOWN", "STOPPED"):
            return Verdict(Mark.DRAINS, elsewhere=True, free=reason == "SHUTTING_DOWN")
        if reason == "NETWORK_LOADING":
            return Verdict(Mark.LACKS, elsewhere=True, free=True)
        return Verdict(Mark.FAULT if reason else Mark.UNREACHABLE, elsewhere=True)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and reason == "QUEUE_FULL":
        return Verdict(Mark.FULL, elsewhere=True)
    if code is grpc.StatusCode.NOT_FOUND and error.details.field in ("network", "name", "version"):
        return Verdict(Mark.LACKS, elsewhere=True, free=True)
    return Verdict(Mark.FAULT, elsewhere=False) if code in _FAULTS else _ANSWERED
