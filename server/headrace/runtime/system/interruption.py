"""Ends work on a network soon after nobody wants its result any more.

A network from outside may have a hundred thousand layers, so each step of a load takes seconds.
The loops over layers that all steps share ask here, before each layer, whether to go on. They
learn what the work is for from the context, so no step between passes it on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar

T = TypeVar("T")


class Token(Protocol):
    """Has an error as soon as the result is not wanted any more."""

    @property
    def error(self) -> Exception | None: ...


class _Unwanted(BaseException):
    """Unwinds the work up to `interruptible`. It is not an Exception, because libraries and passes
    catch those, and would go on."""

    def __init__(self, token: Token) -> None:
        super().__init__("the result is not wanted any more")
        self.token = token


_TOKEN: ContextVar[Token | None] = ContextVar("interruption_token", default=None)


def current() -> Token | None:
    """The token of the work that this thread does, if it has one."""
    return _TOKEN.get()


@contextmanager
def interruptible(token: Token) -> Iterator[None]:
    """Within it, `check` and `wanted` end the work once `token` has an error, which is raised."""
    before = _TOKEN.set(token)
    try:
        yield
    except _Unwanted as unwanted:
        error = unwanted.token.error
        if error is None:
            raise
        raise error from None
    finally:
        _TOKEN.reset(before)


def check() -> None:
    """Ends the work, if nobody wants its result any more."""
    token = _TOKEN.get()
    if token is not None and token.error is not None:
        raise _Unwanted(token)


def wanted(items: Iterable[T]) -> Iterator[T]:
    """The items, as long as somebody wants the result. Call it for loops over layers."""
    token = _TOKEN.get()
    if token is None:
        yield from items
        return
    for item in items:
        if token.error is not None:
            raise _Unwanted(token)
        yield item
