"""Plans: what a client does, independent of how it does it.

A plan is a generator of steps (see `headrace.client.steps`). It yields calls and pauses, gets each
call's reply (a list if the server streams) or error, and returns the result. Plans do no input or
output, so the synchronous and the asyncio client run the same ones.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final, TypeAlias, TypeVar

from headrace.client.errors import invalid

M = TypeVar("M", bound=Callable[..., Any])
T = TypeVar("T")

IDEMPOTENT: Final = (
    "ListNetworks",
    "GetNetwork",
    "QueryNetwork",
    "Infer",
    "GetMetric",
    "GetConfig",
    "SetConfig",
    "ExportNetwork",
    "ListDevices",
    "GetStatus",
    "ListRepository",
    "SetTraffic",
    "SetShadow",
)
"""The methods whose calls may be sent again."""


@dataclass(slots=True)  # not frozen, which would take several times as long to make
class CallMethod:
    """Call a method; its reply, or replies, are sent back into the plan.

    Attributes:
        request: a message, or an iterable of them where the client streams.
        timeout_seconds: None for the client's own, infinite for none.
        once: whether the call must not be sent again, because the first one may have taken effect.
    """

    method: str
    request: Any
    timeout_seconds: float | None = None
    once: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """Do nothing for a while."""

    seconds: float


@dataclass(frozen=True, slots=True)
class CallBlocking:
    """Call a function that may wait some milliseconds, where that holds up nobody else. Its result
    is sent back into the plan, and its error is thrown into it.

    Raises:
        OSError, Error: nothing else.
    """

    function: Callable[[], Any]


Step: TypeAlias = CallMethod | Pause | CallBlocking
Plan: TypeAlias = Generator[Step, Any, T]


class Budget:
    """The time limit that several calls share.

    Raises:
        InvalidArgument: it is not a number of seconds.
    """

    __slots__ = ("_end",)

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + checked_seconds(seconds)

    @property
    def left_seconds(self) -> float:
        """The seconds that are left: zero when the time is spent, infinite without a limit."""
        left = self._end - time.monotonic()
        return left if left > 0.0 else 0.0

    @classmethod
    def of_load(cls, timeout: float | None) -> Budget:
        """Loading has no time limit but the user's."""
        return cls(math.inf if timeout is None else timeout)


def present(method: M, plan: Callable[..., Any], *, bound: bool) -> M:
    """The method of a client with the name, signature and docstring of its plan.

    Args:
        bound: whether the plan's first parameter is the network, that is the method's `self`.
    """
    signature = inspect.signature(plan)
    parameters = list(signature.parameters.values())[1 if bound else 0 :]
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__name__ = plan.__name__
    method.__qualname__ = plan.__name__
    method.__doc__ = plan.__doc__
    method.__signature__ = inspect.Signature([this, *parameters])  # type: ignore[attr-defined]
    return method


_ENDLESS_SECONDS: Final = 1e9


def checked_seconds(timeout: object) -> float:
    """The timeout, if it is valid. One of more than thirty years is infinite, because gRPC takes
    times that its clock cannot hold for times that are over.

    Raises:
        InvalidArgument: it is not a number, or it is negative.
    """
    number: Any = timeout
    if type(timeout) is float and 0.0 <= timeout <= _ENDLESS_SECONDS:  # mostly
        return timeout
    if isinstance(timeout, Real) and number >= 0:  # False for NaN
        return float(number) if number <= _ENDLESS_SECONDS else math.inf
    message = f"timeout is {timeout!r}; pass a number of seconds from 0, math.inf for no limit"
    raise invalid("timeout", message)


def patience(timeout: float | None) -> float | None:
    """How long to wait for a request, as Python's clocks take it: None for ever."""
    return None if timeout is None or timeout > _ENDLESS_SECONDS else timeout


def seconds(timeout: float | None, default: float) -> float | None:
    """A call's time limit as channels take it: None for none.

    Raises:
        InvalidArgument: it is not a number.
    """
    if type(timeout) is float and 0.0 <= timeout <= _ENDLESS_SECONDS:  # mostly
        return timeout
    chosen = default if timeout is None else checked_seconds(timeout)
    return None if chosen == math.inf else chosen
