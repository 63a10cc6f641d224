"""One server, and what is known of its load."""

from __future__ import annotations

from typing import Any, Final

from headrace.client.balancing.health import Health
from headrace.client.balancing.options import Balancing

_REPORT_SECONDS: Final = 0.01  # between two looks at a server's load
_STALE_SECONDS: Final = 1.0
_LACKING_SECONDS: Final = 1.0
_MAX_LACKING: Final = 256


class Server:
    """One server. The fleet's lock guards it.

    Attributes:
        route: the connection that requests to be balanced take. The client makes it, and makes it
            anew to give up what is in flight.
        in_flight: how many requests and streams of this client the server has.
    """

    __slots__ = (
        "_lacking",
        "_others",
        "_reported_at",
        "address",
        "full_until",
        "health",
        "in_flight",
        "retired",
        "route",
    )

    def __init__(self, address: str, options: Balancing) -> None:
        self.address = address
        self.health = Health(options)
        self.route: Any = None
        self.in_flight = 0
        self.full_until = 0.0
        self.retired = False
        self._others = 0
        self._reported_at = -_STALE_SECONDS
        self._lacking: dict[str, float] = {}

    def gave_up(self, route: Any) -> bool:
        """Whether this route, which the server had, was closed because the server was silent."""
        return route is not self.route

    def load(self, now: float) -> int:
        """How many requests the server has, as far as is known: those of this client, and those
        that others had there a moment ago."""
        others = self._others if now - self._reported_at < _STALE_SECONDS else 0
        return self.in_flight + others

    def wants_report(self, now: float) -> bool:
        return now - self._reported_at >= _REPORT_SECONDS

    def reported(self, in_flight: int, now: float) -> None:
        """Notes how many other requests a reply says that the server has."""
        self._others = max(in_flight - self.in_flight, 0)
        self._reported_at = now

    def lacks(self, network: str, now: float) -> bool:
        """Whether the server said a moment ago that it does not have the network."""
        return self._lacking.get(network, now) > now

    def note_lacking(self, network: str, now: float) -> None:
        if len(self._lacking) >= _MAX_LACKING:
            self._lacking.clear()
        self._lacking[network] = now + _LACKING_SECONDS
