"""What a client knows of one server's health. Decisions only: the time is an argument.

UP ──(silence, and no answer to a probe)──► DOWN, and what is in flight there is given up
UP ──(it drains, or cannot be reached)────► DOWN
DOWN ──(a probe says SERVING)─────────────► UP
UP ──(failures in a row)──────────────────► ejected for a while, then UP
"""

from __future__ import annotations

import enum
from typing import Final

from headrace.client.balancing.options import Balancing

_FIRST_PROBE_SECONDS: Final = 0.2  # after a server has gone down; doubles with each probe
_MAX_PROBE_SECONDS: Final = 5.0
_MAX_EJECTIONS: Final = 5  # the longest ejection takes so many times the first one


class Answer(enum.Enum):
    """The answer to a probe."""

    SERVING = enum.auto()
    NOT_SERVING = enum.auto()
    NONE = enum.auto()  # in time
    REFUSED = enum.auto()  # there is no connection


class Health:
    """One server's health. Not thread-safe.

    Attributes:
        up: whether it is not known to be down.
        silent: whether it is down because it is silent. It may be slow, and not gone.
    """

    __slots__ = (
        "_down_probes",
        "_ejected_until",
        "_ejections",
        "_failures",
        "_heard_at",
        "_next_probe",
        "_options",
        "_probing",
        "silent",
        "up",
    )

    def __init__(self, options: Balancing) -> None:
        self._options = options
        self.up = True
        self.silent = False
        self._heard_at = 0.0
        self._probing = False
        self._next_probe = 0.0
        self._down_probes = 0
        self._failures = 0
        self._ejections = 0
        self._ejected_until = 0.0

    @property
    def quiet_seconds(self) -> float:
        """After so long a silence the server is asked."""
        return self._options.frozen_seconds / 3

    @property
    def probe_seconds(self) -> float:
        """How long an answer may take. A third of a tick of `Fleet.due` is left for the rest."""
        return self._options.frozen_seconds * 2 / 3

    def is_ejected(self, now: float) -> bool:
        return now < self._ejected_until

    def heard(self, now: float) -> None:
        """Notes an answer of the server, or the first request after a time without any."""
        self._heard_at = now

    def succeeded(self, now: float) -> None:
        """Notes a request that succeeded."""
        self._heard_at = now
        if self._failures:
            self._failures = 0

    def failed(self, now: float, *, may_eject: bool) -> bool:
        """Notes a failure that the server is to blame for. Whether it is left out now."""
        self._heard_at = now
        self._failures += 1
        if self._failures < self._options.eject_after or not may_eject or self.is_ejected(now):
            return False
        self._failures = 0
        again = now - self._ejected_until < 2 * self._options.eject_seconds * self._ejections
        self._ejections = min(self._ejections + 1, _MAX_EJECTIONS) if again else 1
        self._ejected_until = now + self._options.eject_seconds * self._ejections
        return True

    def went_down(self, now: float, *, silent: bool = False) -> None:
        """Notes that the server drains, cannot be reached, or is silent."""
        self.silent = silent
        if self.up:
            self.up = False
            self._down_probes = 0
            self._next_probe = now + _FIRST_PROBE_SECONDS

    def wants_probe(self, now: float, in_flight: int) -> bool:
        """Whether the server is to be asked now, which then counts as done."""
        if self._probing:
            return False
        if self.up:
            wanted = in_flight > 0 and now - self._heard_at >= self.quiet_seconds
        else:
            wanted = now >= self._next_probe
        self._probing = wanted
        return wanted

    def unasked(self) -> None:
        """Notes that a wanted probe was not sent."""
        self._probing = False

    def probed(self, now: float, answer: Answer) -> bool:
        """Notes the answer to a probe. Whether what is in flight there is to be given up."""
        self._probing = False
        if answer is Answer.SERVING:
            self.up = True
            self._heard_at = now
            return False
        if not self.up:
            self.silent = answer is Answer.NONE
            pause = min(_FIRST_PROBE_SECONDS * 2 ** (self._down_probes + 1), _MAX_PROBE_SECONDS)
            self._down_probes += pause < _MAX_PROBE_SECONDS
            self._next_probe = now + pause
            return False
        if answer is Answer.NONE and now - self._heard_at < self.quiet_seconds:
            return False  # a reply came meanwhile: it is busy, not frozen
        self.went_down(now, silent=answer is Answer.NONE)
        return self.silent
