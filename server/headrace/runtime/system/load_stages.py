"""How long each stage of a load takes.

`copy` copies a model from the store of a repository, `read` reads the model's bytes, `check` looks
at what is in them and at what the device supports, `transform` makes the network that the device
gets, `compile` makes it executable, and `publish` warms it up, writes it down and lets requests in.
A stage within another one is not counted for the outer one, so all of them together are the load.

The load's context carries its stages, so no step between passes them on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeAlias

Ended: TypeAlias = Callable[[str, float, float, "BaseException | None"], object]
"""Hears of a stage's name, start and end, on the monotonic clock, and of the error that ended
it."""

STAGES: Final = ("copy", "read", "check", "transform", "compile", "publish")


class LoadStages:
    """The stages of one load. The load's own thread writes to it.

    Attributes:
        seconds: what each stage took that has ended, in their order.
    """

    def __init__(self, ended: Ended | None = None) -> None:
        self._ended = ended
        self._seconds = dict.fromkeys(STAGES, 0.0)
        self._inner = 0.0  # what ended within the stage that runs

    @property
    def seconds(self) -> Mapping[str, float]:
        return {name: took for name, took in self._seconds.items() if took}

    def add(self, seconds: Mapping[str, float]) -> None:
        """Adds stages that another process has timed. The stage that waited does not count them."""
        for name in STAGES:
            self._seconds[name] += seconds.get(name, 0.0)
        self._inner += sum(seconds.values())

    @contextmanager
    def within(self) -> Iterator[None]:
        """Stages on this thread belong to this load."""
        before = _OF_LOAD.set(self)
        try:
            yield
        finally:
            _OF_LOAD.reset(before)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        start, outer, error = time.monotonic(), self._inner, None
        self._inner = 0.0
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            end = time.monotonic()
            self._seconds[name] += max(0.0, end - start - self._inner)
            self._inner = outer + end - start
            if self._ended is not None:
                self._ended(name, start, end, error)
            error = None  # otherwise its traceback and this frame would keep each other


_OF_LOAD: ContextVar[LoadStages | None] = ContextVar("load_stages", default=None)


def current_stages() -> LoadStages | None:
    """The stages of the load that this thread does, if it does one."""
    return _OF_LOAD.get()


@contextmanager
def load_stage(name: str) -> Iterator[None]:
    """Times a stage of the load that this thread does, if it does one."""
    stages = _OF_LOAD.get()
    if stages is None:
        yield
    else:
        with stages.timed(name):
            yield


def told(seconds: Mapping[str, float]) -> str:
    """The stages of a load, for a note and for the log."""
    return ", ".join(f"{name} {took:.3f} s" for name, took in seconds.items())
