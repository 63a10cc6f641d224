"""Ends gRPC connections of clients that take too many, or never show who they are.

gRPC bounds its connections in all and ends handshakes that take too long. It does not know who has
a valid credential, and lets one address take every connection.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headrace.server.logs import log_internal_error
from headrace.server.transport.connections import FULL, Connections

_log = logging.getLogger(__name__)

STRANGER_SECONDS = 20.0
_LOOK_SECONDS = 1.0
_STOP_SECONDS = 2.0
_QUIET_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Connected:
    """An open connection.

    Attributes:
        peer: the other end, as `Connections` calls it: ``ipv4:10.0.0.1:5000``.
        since: when it was first seen, in seconds of the monotonic clock.
    """

    peer: str
    since: float

    @property
    def address(self) -> str:
        """Who the connection belongs to: an address, or a user at a Unix socket."""
        host = self.peer.rpartition(":")[0]
        return host.rpartition(":")[0] if self.process else host

    @property
    def process(self) -> str:
        """The user's process at a Unix socket. Empty for TCP."""
        return self.peer.rpartition(":")[0] if self.peer.startswith("unix:") else ""


def unwanted(
    connected: Iterable[Connected],
    met: set[str],
    now: float,
    *,
    per_address: int,
    stranger_seconds: float | None,
) -> dict[str, str]:
    """Which connections to end, and why.

    Args:
        met: the peers that have shown a valid credential.
        per_address: the most connections of one address or user. Those without a credential go
            first, and then the latest. A process of a user leaves an eighth to the user's others.
        stranger_seconds: how long a connection may stay without a credential. None: for ever.
    """
    found: dict[str, str] = {}
    processes: dict[str, list[Connected]] = defaultdict(list)
    addresses: dict[str, list[Connected]] = defaultdict(list)
    for each in connected:
        if (
            stranger_seconds is not None
            and each.peer not in met
            and now - each.since > stranger_seconds
        ):
            found[each.peer] = f"no valid credential within {stranger_seconds:g} seconds"
        elif each.process:
            processes[each.process].append(each)
        else:
            addresses[each.address].append(each)

    def bound(own: list[Connected], most: int, whose: str) -> list[Connected]:
        own.sort(key=lambda each: (each.peer not in met, each.since))
        for each in own[most:]:
            found[each.peer] = f"more than {most} connections of one {whose}"
        return own[:most]

    for own in processes.values():
        kept = bound(own, max(per_address * 7 // 8, 1), "process")
        addresses[kept[0].address] += kept
    for own in addresses.values():
        bound(own, per_address, "user" if own[0].process else "address")
    return found


class Strangers:
    """Looks at the connections of gRPC's port once a second, on the thread ``headrace-strangers``.
    At a Unix socket, a user of the system stands for an address.

    `met` belongs to gRPC's event loop, `start` and `stop` to one thread.

    Args:
        per_address: the most connections of one address.
        stranger_seconds: how long a connection may stay without a valid credential. None: for ever,
            because there is no access control.

    Attributes:
        connections: how many were open at the last look. Any thread may read it.
    """

    def __init__(
        self,
        per_address: int,
        stranger_seconds: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_address = per_address
        self._stranger_seconds = stranger_seconds
        self._clock = clock
        self._met: set[str] = set()
        self.connections = 0
        self._quiet_until = -math.inf  # a look that fails then is not logged
        self._open: frozenset[str] = frozenset()  # at the last look
        self._ends: dict[str, str] = {}  # what others want to be ended, and why
        self._stopped = False
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None

    def met(self, peer: str) -> None:
        """Notes that this peer has shown a valid credential."""
        self._met.add(peer)

    def is_open(self, peer: str) -> bool:
        """Whether this peer was connected at the last look. Any thread may ask."""
        return peer in self._open

    def end(self, peer: str, why: str) -> None:
        """Has the connection of this peer ended soon. Any thread may call it."""
        self._ends[peer] = why
        self._woken.set()

    def start(self, local: int | str) -> None:
        """
        Args:
            local: the port, or the path that the Unix socket was bound to.
        """
        connections = Connections(local)

        def run() -> None:
            while True:
                self._woken.wait(_LOOK_SECONDS)
                if self._stopped:
                    return
                self._woken.clear()
                self.try_look(connections)

        self._thread = threading.Thread(target=run, name="headrace-strangers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._woken.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def try_look(self, connections: Connections) -> None:
        """Looks. A failure is logged at most once a minute, because the next look may succeed."""
        try:
            self.look(connections)
        except Exception as error:  # noqa: BLE001 - as above
            now = self._clock()
            if now < self._quiet_until:
                return
            self._quiet_until = now + _QUIET_SECONDS
            if isinstance(error, OSError) and error.errno in FULL:
                _log.warning(
                    "cannot look for unwanted connections: %s; allow more open files (ulimit -n, "
                    "or LimitNOFILE= in systemd), or fewer connections (--max-concurrent-rpcs)",
                    error.strerror,
                )
            else:
                log_internal_error(error, where="looking at the connections")

    def look(self, connections: Connections) -> None:
        """Ends the unwanted connections, and forgets peers that have left."""
        # Taken first: a peer that is in here and no longer connected has left.
        met = set(self._met)
        now = self._clock()
        connected = [Connected(peer, since) for peer, since in connections.look(now)]
        self.connections = len(connected)
        self._open = frozenset(each.peer for each in connected)
        ends = unwanted(
            connected,
            met,
            now,
            per_address=self._per_address,
            stranger_seconds=self._stranger_seconds,
        )
        ordered = {peer: self._ends.pop(peer) for peer in list(self._ends)}
        for peer, why in {**ends, **ordered}.items():
            # It may have shown a credential a moment ago.
            if peer not in ordered and peer in self._met and peer not in met:
                continue
            if connections.cut(peer):
                _log.info("ended the connection of %s: %s", peer, why)
        self._met.difference_update(met - self._open)
