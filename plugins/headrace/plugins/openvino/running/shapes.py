"""Decides, for each tuple of shapes that requests have, whether OpenVINO or CPU runs them.

A shape that CPU has answered twice is compiled. The first requests after that run on both, one
after the other: CPU's answer is given, OpenVINO's is compared with it, and both are timed. When it
is clear which one is faster, that one runs the shape. So a network whose shapes never repeat stays
on CPU.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar

from headrace.runtime.network.shapes.ledger import most_remembered
from headrace.runtime.virtual.timing import compare

COMPILING: Final = "compiling"
DIFFERED: Final = "differed"
EMPTY: Final = "empty"
SLOWER: Final = "slower"
UNCLAIMED: Final = "unclaimed"
VALUES: Final = "values"
DOWN: Final = "down"
"""Why CPU runs a request: its shape has no compilation yet, was answered otherwise, has an empty
axis, is slower, cannot be compiled, or holds values that OpenVINO may get wrong; or OpenVINO's
process has ended."""

TRIALS: Final = 5
"""At least so many requests of a shape run on both. The time of the first one does not count:
OpenVINO takes many times as long for it."""
MOST_TRIALS: Final = 32
_MOST_TRIAL_SECONDS: Final = 5.0
"""After so many trials, or after so long, they end though neither way is clearly faster."""
MISFITS: Final = 8
"""So many requests in a row that hold values which OpenVINO may get wrong leave a shape to CPU."""
_REMEMBERED: Final = 4096
"""The most tuples of shapes of a network that are remembered."""
_SHARE: Final = 0.25
_SAVED_SECONDS: Final = 10.0

_K = TypeVar("_K", bound=Hashable)
_C = TypeVar("_C")


class ShapeChoice(NamedTuple, Generic[_C]):
    """What to do with a request.

    Attributes:
        compilation: what runs it; None if CPU does.
        reason: why CPU does.
        trial: run it on both, and report what came out.
    """

    compilation: _C | None = None
    reason: str = ""
    trial: bool = False


class ShapeRow(NamedTuple, Generic[_K, _C]):
    """What has become of a shape.

    Attributes:
        answers: how often CPU has answered before it was compiled.
        why: why CPU runs it for good; empty if it does not.
        trials: how many requests have run on both.
        decided: whether no more do.
    """

    key: _K
    answers: int
    compilation: _C | None
    why: str
    trials: int
    decided: bool


@dataclass(slots=True)
class _Shape(Generic[_C]):
    answers: int = 0
    compilation: _C | None = None
    why: str = ""  # CPU runs it for good
    misfits: int = 0
    trials: list[tuple[float, float]] = field(default_factory=list)
    decided: bool = False  # there are no more trials


def is_faster(trials: Sequence[tuple[float, float]]) -> bool | None:
    """Whether OpenVINO runs a shape no slower than CPU. None if more trials are needed to tell.

    Args:
        trials: the seconds that each took on OpenVINO, and on CPU.
    """
    if len(trials) < TRIALS:
        return None
    speed = compare(*zip(*trials[1:], strict=True))
    clear = speed.low > 1 or speed.high < 1
    spent = len(trials) >= MOST_TRIALS or sum(map(sum, trials)) >= _MOST_TRIAL_SECONDS
    return speed.ratio >= 1 if clear or spent else None


class CompileBudget:
    """The time that may go into compiling shapes of one network: at first 10 seconds, then a
    quarter of the time that passes, of which 10 seconds can be saved. The compile that overdraws it
    is the last one for a while. Not thread-safe.

    Args:
        clock: tells the seconds since some moment.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = _SAVED_SECONDS
        self._counted_at = clock()

    def has_some(self) -> bool:
        """Whether a compile may begin."""
        now = self._clock()
        earned = (now - self._counted_at) * _SHARE
        self._left, self._counted_at = min(self._left + earned, _SAVED_SECONDS), now
        return self._left >= 0

    def spend(self, seconds: float) -> None:
        """Counts a compile that took so long."""
        self._left -= seconds


class ShapeTable(Generic[_K, _C]):
    """The shapes of one network. Thread-safe: `_lock` guards all fields. It compiles nothing: one
    caller at a time is told to. It drops nothing either: the caller does what it is told to.

    Args:
        most: how many compilations are kept. The one that was used least recently goes first.
        budget: the time for compiles; None for no limit. Then every compilation stays that
            answers as CPU does.
        inputs: how many the network has.
    """

    def __init__(self, most: int, budget: CompileBudget | None, inputs: int = 1) -> None:
        self._most = most
        self._remembered = max(most_remembered(_REMEMBERED, inputs), most + 1)
        self._budget = budget
        self._lock = threading.Lock()
        self._shapes: OrderedDict[_K, _Shape[_C]] = OrderedDict()
        self._compiling = False

    def ask(self, key: _K) -> ShapeChoice[_C]:
        """
        Args:
            key: the request's shapes.
        """
        with self._lock:
            shape = self._shape(key)
            if shape.compilation is not None:
                return ShapeChoice(shape.compilation, trial=not shape.decided)
            return ShapeChoice(reason=shape.why or COMPILING)

    def answered(self, key: _K) -> bool:
        """CPU has answered a request of a shape that has no compilation yet. Returns whether the
        caller has to compile the shape now, and to report the outcome."""
        with self._lock:
            shape = self._shape(key)
            shape.answers += 1
            return shape.answers > 1 and self._begin(shape)

    def begin(self, key: _K) -> bool:
        """As `answered`, at once."""
        with self._lock:
            return self._begin(self._shape(key))

    def _begin(self, shape: _Shape[_C]) -> bool:
        if self._compiling or shape.compilation is not None or shape.why:
            return False
        self._compiling = self._budget is None or self._budget.has_some()
        return self._compiling

    def compiled(self, key: _K, compilation: _C, seconds: float) -> list[_C]:
        """The shape has been compiled, which took so long. Its trials begin.

        Returns:
            The compilations that have made room for it.
        """
        with self._lock:
            self._ended(seconds)
            shape = self._shape(key)
            shape.compilation, shape.trials, shape.misfits = compilation, [], 0
            shape.decided = False
            kept = [each for each in self._shapes.values() if each.compilation is not None]
            left = kept[: -self._most]
            dropped = [each.compilation for each in left if each.compilation is not None]
            for each in left:
                each.compilation, each.answers = None, 1
            return dropped

    def refused(self, key: _K, seconds: float) -> None:
        """The shape cannot be compiled."""
        with self._lock:
            self._ended(seconds)
            self._shape(key).why = UNCLAIMED

    def postponed(self, key: _K, seconds: float) -> None:
        """The shape could not be compiled now."""
        with self._lock:
            self._ended(seconds)
            self._shape(key).answers = 0

    def lost(self, key: _K, compilation: _C, why: str = "") -> bool:
        """The compilation cannot run any more.

        Args:
            why: why CPU runs the shape for good; if it is empty, the shape is as if it were new.

        Returns:
            Whether it was the shape's.
        """
        with self._lock:
            shape = self._shapes.get(key)
            if shape is None:
                return False
            was = shape.compilation is compilation
            if was or (why and shape.compilation is None):  # which another thread has told before
                shape.compilation, shape.answers, shape.why = None, 0, why
            return was

    def misfit(self, key: _K, compilation: _C) -> bool:
        """A trial could not be made, because the request holds values that OpenVINO may get wrong.

        Returns:
            Whether CPU runs the shape from now on: so many requests in a row held such values.
        """
        with self._lock:
            shape = self._shapes.get(key)
            if shape is None or shape.compilation is not compilation:
                return False
            shape.misfits += 1
            if shape.misfits < MISFITS or self._budget is None:
                return False
            shape.why, shape.compilation = VALUES, None
            return True

    def tried(self, key: _K, compilation: _C, seconds: tuple[float, float], *, equal: bool) -> str:
        """A request has run on both.

        Args:
            seconds: on OpenVINO, and on CPU.
            equal: OpenVINO has answered as CPU did.

        Returns:
            Why CPU runs the shape from now on, if that was decided now; otherwise an empty text.
        """
        with self._lock:
            shape = self._shapes.get(key)
            if shape is None or shape.compilation is not compilation:
                return ""
            shape.trials.append(seconds)
            shape.misfits = 0
            if not equal:
                shape.why = DIFFERED
            elif self._budget is None:
                shape.decided = len(shape.trials) >= TRIALS
            elif not shape.decided and (faster := is_faster(shape.trials)) is not None:
                shape.decided, shape.why = True, "" if faster else SLOWER
            if shape.why:
                shape.compilation = None
            return shape.why

    def typical(self, key: _K) -> tuple[float, float]:
        """The seconds that a trial of the shape took on OpenVINO, and on CPU: the medians."""
        with self._lock:
            shape = self._shapes.get(key)
            trials = [*shape.trials] if shape else []
        ours, theirs = zip(*(trials[1:] or trials or [(0.0, 0.0)]), strict=True)
        return statistics.median(ours), statistics.median(theirs)

    def is_settled(self) -> bool:
        """Whether it is decided what runs the shape that was used last."""
        with self._lock:
            shape = next(reversed(self._shapes.values()), None)
            if shape is None or shape.why:
                return True
            return shape.compilation is not None and (shape.decided or self._budget is None)

    def compilations(self) -> list[tuple[_K, _C]]:
        """The shapes that are compiled, the one that was used least recently first."""
        with self._lock:
            found = list(self._shapes.items())
        return [(key, each.compilation) for key, each in found if each.compilation is not None]

    def left_to_cpu(self) -> Iterator[tuple[_K, str]]:
        """The shapes that CPU runs for good, each with the reason."""
        with self._lock:
            found = list(self._shapes.items())
        return ((key, each.why) for key, each in found if each.why)

    def latest(self, most: int) -> list[ShapeRow[_K, _C]]:
        """The shapes that requests have had last, the last one first."""
        with self._lock:
            return [
                ShapeRow(
                    key,
                    each.answers,
                    each.compilation,
                    each.why,
                    len(each.trials),
                    each.decided,
                )
                for key, each in islice(reversed(self._shapes.items()), most)
            ]

    def clear(self) -> list[_C]:
        """Forgets all shapes. Returns their compilations."""
        with self._lock:
            found = [each.compilation for each in self._shapes.values()]
            self._shapes.clear()
        return [each for each in found if each is not None]

    def _shape(self, key: _K) -> _Shape[_C]:
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = _Shape()
            if len(self._shapes) > self._remembered:
                oldest = (k for k, each in self._shapes.items() if each.compilation is None)
                del self._shapes[next(oldest)]
        self._shapes.move_to_end(key)
        return shape

    def _ended(self, seconds: float) -> None:
        self._compiling = False
        if self._budget is not None:
            self._budget.spend(seconds)
