"""What errors and probes mean, and what a client knows of one server's health. Decisions only: the
time is an argument.

UP ──(silence, and no answer to a probe)──► DOWN, and what is in flight there is given up
UP ──(it drains, or cannot be reached)────► DOWN
DOWN ──(a probe says SERVING)─────────────► UP
UP ──(failures in a row)──────────────────► ejected for a while, then UP
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple

import grpc

from headrace.client.balancing.options import Balancing
from headrace.client.channel.channel import Message
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
        if reason in ("NETWORK_LOADING", "NETWORK_COLD"):
            return Verdict(Mark.LACKS, elsewhere=True, free=True)
        return Verdict(Mark.FAULT if reason else Mark.UNREACHABLE, elsewhere=True)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and reason == "QUEUE_FULL":
        return Verdict(Mark.FULL, elsewhere=True)
    if code is grpc.StatusCode.NOT_FOUND and error.details.field in ("network", "name", "version"):
        return Verdict(Mark.LACKS, elsewhere=True, free=True)
    return Verdict(Mark.FAULT, elsewhere=False) if code in _FAULTS else _ANSWERED


_FIRST_PROBE_SECONDS: Final = 0.2  # after a server has gone down; doubles with each probe
_MAX_PROBE_SECONDS: Final = 5.0
_MAX_EJECTIONS: Final = 5  # the longest ejection takes so many times the first one
_SERVING: Final = b"\x08\x01"  # a HealthCheckResponse
_SILENT: Final = (grpc.StatusCode.DEADLINE_EXCEEDED,)
_NO_ANSWER: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class ProbeResult(enum.Enum):
    """The answer to a probe."""

    SERVING = enum.auto()
    NOT_SERVING = enum.auto()
    NONE = enum.auto()  # in time
    REFUSED = enum.auto()  # there is no connection


def answer_of(code: grpc.StatusCode | None, reply: Message | None) -> ProbeResult:
    """What a probe's end means. A server without this service is healthy if it answers."""
    if code is grpc.StatusCode.OK:
        return ProbeResult.SERVING if reply == _SERVING else ProbeResult.NOT_SERVING
    if code in _SILENT:
        return ProbeResult.NONE
    return ProbeResult.REFUSED if code in _NO_ANSWER else ProbeResult.SERVING


@dataclass(slots=True, eq=False, repr=False)
class Health:
    """One server's health. Not thread-safe.

    Attributes:
        up: whether it is not known to be down.
        silent: whether it is down because it is silent. It may be slow, and not gone.
    """

    _options: Balancing
    up: bool = True
    silent: bool = False
    _heard_at: float = 0.0
    _probing: bool = False
    _next_probe: float = 0.0
    _down_probes: int = 0
    _failures: int = 0
    _ejections: int = 0
    _ejected_until: float = 0.0

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

    def probed(self, now: float, answer: ProbeResult) -> bool:
        """Notes the answer to a probe. Whether what is in flight there is to be given up."""
        self._probing = False
        if answer is ProbeResult.SERVING:
            self.up = True
            self._heard_at = now
            return False
        if not self.up:
            self.silent = answer is ProbeResult.NONE
            pause = min(_FIRST_PROBE_SECONDS * 2 ** (self._down_probes + 1), _MAX_PROBE_SECONDS)
            self._down_probes += pause < _MAX_PROBE_SECONDS
            self._next_probe = now + pause
            return False
        if answer is ProbeResult.NONE and now - self._heard_at < self.quiet_seconds:
            return False  # a reply came meanwhile: it is busy, not frozen
        self.went_down(now, silent=answer is ProbeResult.NONE)
        return self.silent
