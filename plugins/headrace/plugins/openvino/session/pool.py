"""The infer requests of one compiled network, and the effects of a failed run on later runs.

An operation stores the shapes that it gets before it finds that they do not fit. If it gets the
same shapes again, it does not check them again. Then its output keeps the shape that an earlier run
gave it, or the run fails as the earlier run did. Each stream has its own memory of shapes, and
OpenVINO does not tell which stream ran a request. So after a failed run of a network without fixed
shapes, no result of the compiled network is trusted, and the network is compiled again. From then
on the network's `shapes` check each request before it runs, so that a client whose requests do not
fit costs the other clients no more compiles. They do not find everything, for example not what
fails inside of a loop. So `CompileBudget` bounds the time that compiles take.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from headrace.plugins.openvino.session.requests import Compiled, Request
from headrace.runtime.errors import ResourceExhausted

_SHARE: Final = 0.25
_SAVED_SECONDS: Final = 10.0


class CompileBudget:
    """The time that may go into compiles of one network after failed runs: at first 10 seconds,
    then a quarter of the time that passes, of which 10 seconds can be saved. The compile that
    overdraws it is the last one for a while. Not thread-safe.

    Args:
        clock: tells the seconds since some moment.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = _SAVED_SECONDS
        self._counted_at = clock()

    def check(self) -> None:
        """
        Raises:
            ResourceExhausted: the time is used up. The error says when there is some again.
        """
        now = self._clock()
        earned = (now - self._counted_at) * _SHARE
        self._left, self._counted_at = min(self._left + earned, _SAVED_SECONDS), now
        if self._left < 0:
            error = ResourceExhausted(
                "the network has to be compiled again after a failed request, and that has "
                "happened too often; try again later"
            )
            error.retry_delay_seconds = -self._left / _SHARE
            raise error

    def spend(self, seconds: float) -> None:
        """Counts a compile that took so long."""
        self._left -= seconds


class Pool:
    """Holds one request for each stream. It needs no lock: the deque's own operations are atomic,
    and `spoilt` is never cleared.

    Attributes:
        spoilt: a run has failed, and later runs may be wrong.
        unjudged: no check before a run finds whether a request fits, and the network has an
            operation that does not check it either.
    """

    def __init__(self, compiled: Compiled, count: int) -> None:
        self.compiled = compiled
        self.spoilt = False
        self.unjudged = compiled.shapes is None and compiled.careless
        self._requests = tuple(Request(compiled, number) for number in range(count))
        self._idle = deque(self._requests)

    def take(self) -> Request:
        """Takes an idle request. There is one for each stream."""
        return self._idle.pop()

    def give_back(self, request: Request) -> None:
        self._idle.append(request)

    def serves(self, *, judged: bool) -> bool:
        """Whether its results can be trusted.

        Args:
            judged: requests must be checked before they run.
        """
        unjudged = self.unjudged or (judged and self.compiled.shapes is None)
        return not self.spoilt and not unjudged

    def failed(self) -> None:
        """Records that a run failed."""
        self.spoilt = self.compiled.remembers

    def vouches_for(self, request: Request) -> bool:
        """Whether no failed run can have affected the run that `request` has just ended. That is so
        if no run has failed so far, even unnoticed, or if failed runs have no effect."""
        if not self.compiled.remembers:
            return True
        others = (each for each in self._requests if each is not request)
        return not (self.spoilt or any(each.has_failed() for each in others))
