"""One device of the list, as the schedule knows it: how much it runs, and whether it serves."""

from __future__ import annotations

import enum
import math

from headrace.runtime.system.backoff import Backoff


class Standing(enum.Enum):
    """SERVING: takes requests up to its limit. OUT: takes none. ON_TRIAL: after a back-off; takes
    one request, and serves again if that succeeds."""

    SERVING = "serving"
    OUT = "out"
    ON_TRIAL = "on trial"


class Station:
    """Pure: times are arguments, in seconds.

    Attributes:
        limit: requests in flight, at most.
        reason: why it does not serve; empty while it does.
        until: when a trial may begin, while it is OUT; infinite if the device itself has to say.
        spell: counts the times that it was taken out. What a request of an earlier spell ends with
            says nothing of the device as it is now.
        completed: requests, since it was made.
    """

    __slots__ = (
        "_backoff",
        "_is_down",
        "_tried",
        "completed",
        "limit",
        "name",
        "reason",
        "running",
        "spell",
        "standing",
        "until",
    )

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.running = 0
        self.completed = 0
        self.standing = Standing.SERVING
        self.reason = ""
        self.until = 0.0
        self.spell = 0
        self._backoff = Backoff()
        self._is_down = False
        self._tried = False

    @property
    def has_room(self) -> bool:
        if self.running >= self.limit or self.standing is Standing.OUT:
            return False
        return self.standing is Standing.SERVING or not self._tried

    def start(self) -> None:
        """A request goes to the device."""
        self.running += 1
        self._tried = self.standing is Standing.ON_TRIAL

    def end(self, spell: int) -> bool:
        """A request that went there in `spell` has ended.

        Returns:
            Whether its end says something of the device as it is now.
        """
        self.running -= 1
        if spell == self.spell:
            self._tried = False
        return spell == self.spell

    def take_out(self, reason: str, now: float) -> None:
        """It takes no requests until the back-off is over."""
        self.standing, self.reason, self.spell = Standing.OUT, reason, self.spell + 1
        self._tried = False
        self.until = now + self._backoff.died(now, useful=False)

    def went_down(self, reason: str, now: float) -> None:
        """The device says so itself, and will say when it is up again."""
        if self.standing is not Standing.OUT:
            self.take_out(reason, now)
        self._is_down, self.reason, self.until = True, reason, math.inf

    def came_up(self) -> bool:
        """The device says so itself; False if it had not said that it was down."""
        was_down, self._is_down = self._is_down, False
        return was_down

    def try_again(self, now: float) -> bool:
        """Begins a trial if the time has come."""
        if self.standing is not Standing.OUT or self._is_down or now < self.until:
            return False
        self.standing = Standing.ON_TRIAL
        return True

    def put_back(self, now: float) -> None:
        """It serves again."""
        self.standing, self.reason = Standing.SERVING, ""
        self._backoff.started(now)
