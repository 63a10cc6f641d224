"""Which connections begin calls and give them up at once.

This is the rapid reset of HTTP/2 (CVE-2023-44487): such a call costs its client a few bytes.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

AT_ONCE_SECONDS: Final = 0.05
"""A call was given up at once if its handler has run for no longer than this. Most clients that
give up calls have waited for a reply."""

FREE_RESETS: Final = 200
"""How many calls a connection may give up at once before the server distrusts it."""

FREE_RESETS_A_SECOND: Final = 50
"""How many it may give up at once in each second, for as long as it likes."""

FORGIVEN_SECONDS: Final = 10.0
"""A distrusted connection that gives up no call at once for so long is trusted again. So is one
whose calls are answered."""

PATIENCE_SECONDS: Final = 30.0
"""A connection that goes on for so long after the server distrusts it is ended."""

_FIRST_SWEEP: Final = 64


class Verdict(Enum):
    """What a call that was given up at once leads to."""

    NOTHING = auto()
    WAIT = auto()  # its handler waits, so that its connection gets no other call meanwhile
    END = auto()  # its connection is ended


class _Conduct:
    """What one connection has done.

    Attributes:
        debt: how many of its calls were given up at once, less those that were answered, and less
            those that it may give up for free.
        at: when the last one was given up.
        distrusted_since: when the debt went over the bound. None: the connection is trusted.
        ended: whether its end has been ordered.
    """

    __slots__ = ("at", "debt", "distrusted_since", "ended")

    def __init__(self, now: float) -> None:
        self.debt = 0.0
        self.at = now
        self.distrusted_since: float | None = None
        self.ended = False

    def debt_at(self, now: float) -> float:
        """The debt after some time without such a call. That of a connection that is distrusted
        does not get smaller, because the server itself slows it down."""
        past = now - self.at
        if self.distrusted_since is None:
            return max(self.debt - past * FREE_RESETS_A_SECOND, 0.0)
        return self.debt if past < FORGIVEN_SECONDS else 0.0

    def pay(self, amount: float) -> None:
        self.debt = max(self.debt - amount, 0.0)
        if self.debt <= FREE_RESETS:
            self.distrusted_since = None


class Resets:
    """Counts the calls that each connection gives up at once. Belongs to one thread.

    An answered call makes up for one that was given up. So a client that sends each request twice,
    and gives up the slower one, is never distrusted.

    Args:
        patience_seconds: how long a connection may go on while it is distrusted.
    """

    def __init__(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self._known: dict[str, _Conduct] = {}  # those that have given up calls, by peer
        self._sweep_at = _FIRST_SWEEP

    def __len__(self) -> int:
        """How many connections are remembered. Mostly there is none."""
        return len(self._known)

    def distrusts(self, peer: str, now: float) -> bool:
        """Whether this connection's next call will probably be given up at once, too."""
        conduct = self._known.get(peer)
        if conduct is None or conduct.distrusted_since is None:
            return False
        return conduct.debt_at(now) > 0.0

    def answered(self, peer: str) -> None:
        """A call of this connection got its reply."""
        conduct = self._known.get(peer)
        if conduct is not None:
            conduct.pay(1.0)

    def given_up(self, peer: str, now: float) -> Verdict:
        """A call of this connection was given up at once."""
        conduct = self._known.get(peer)
        if conduct is None:
            self._sweep(now)
            conduct = self._known[peer] = _Conduct(now)
        conduct.pay(conduct.debt - conduct.debt_at(now))
        conduct.debt += 1.0
        conduct.at = now
        if conduct.debt <= FREE_RESETS or conduct.ended:
            return Verdict.NOTHING
        if conduct.distrusted_since is None:
            conduct.distrusted_since = now
        if now - conduct.distrusted_since >= self._patience_seconds:
            conduct.ended = True
            return Verdict.END
        return Verdict.WAIT

    def _sweep(self, now: float) -> None:
        """Forgets connections without a debt, when twice as many are known as the last time."""
        if len(self._known) < self._sweep_at:
            return
        self._known = {peer: each for peer, each in self._known.items() if each.debt_at(now) > 0.0}
        self._sweep_at = max(2 * len(self._known), _FIRST_SWEEP)
