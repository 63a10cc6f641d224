"""How a client divides its calls among several servers."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Real
from typing import Final, Literal

from headrace.client.errors import invalid

POLICIES: Final = ("least_loaded", "round_robin")


@dataclass(frozen=True, slots=True)
class Balancing:
    """The options of a client with several servers.

    Attributes:
        policy: ``least_loaded`` stays with the server of the last request, or takes a random other
            one if that has less load. The load is what this client has in flight there, and what
            the server's replies say of others' requests.
            ``round_robin`` takes one server after another.
        attempts: how often a request is sent at most, the first time included.
        retry_ratio: how many repeated requests one request pays for. At 0.2, repeats add at most a
            fifth to the load. Ten repeats a second are always allowed.
        hedge_after_seconds: if a server has not answered a request after so long, send it to a
            second server, too, and take the first answer. Hedges use up the budget of repeats.
            None for no hedges.
        eject_after: after so many failures in a row for which a server is to blame, leave it out
            for a while. At most half of the servers are left out.
        eject_seconds: for how long; longer each time that it happens again.
        frozen_seconds: a server that has requests of this client, and says nothing for so long, is
            left, and its requests are repeated at other servers. While it says nothing, it is asked
            for its health.
        resolve_seconds: how often a name in DNS is looked up again.

    Raises:
        InvalidArgument: a value is out of its range.
    """

    policy: Literal["least_loaded", "round_robin"] = "least_loaded"
    attempts: int = 8
    retry_ratio: float = 0.2
    hedge_after_seconds: float | None = None
    eject_after: int = 5
    eject_seconds: float = 10.0
    frozen_seconds: float = 1.5
    resolve_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            self._refuse("policy", " or ".join(POLICIES))
        for name in ("attempts", "eject_after"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                self._refuse(name, "a whole number from 1")
        for field in fields(self):
            value = getattr(self, field.name)
            if not field.name.endswith(("_seconds", "_ratio")) or value is None:
                continue
            lowest = 0.2 if field.name == "frozen_seconds" else 0.0
            if not isinstance(value, Real) or not lowest <= float(value) < math.inf:
                self._refuse(field.name, f"a number from {lowest:g}")

    def _refuse(self, name: str, wanted: str) -> None:
        message = f"balance.{name} is {getattr(self, name)!r}; pass {wanted}"
        raise invalid(f"balance.{name}", message)
