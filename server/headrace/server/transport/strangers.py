"""Ends gRPC connections of clients that take too many, or never show who they are.

gRPC bounds its connections in all and ends handshakes that take too long. It does not know who has
a valid credential, and lets one address take every connection.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headrace.server.logs import log_internal_error
from headrace.server.transport.connections import Connections

_log = logging.getLogger(__name__)

STRANGER_SECONDS = 20.0
_LOOK_SECONDS = 1.0
_STOP_SECONDS = 2.0


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
        return self.peer.rpartition(":")[0]


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
        per_address: the most connections of one address. Those without a credential go first, and
            then the latest.
        stranger_seconds: how long a connection may stay without a credential. None: for ever.
    """
    found: dict[str, str] = {}
    addresses: dict[str, list[Connected]] = defaultdict(list)
    for each in connected:
        if (
            stranger_seconds is not None
            and each.peer not in met
            and now - each.since > stranger_seconds
        ):
            found[each.peer] = f"no valid credential within {stranger_seconds:g} seconds"
        else:
            addresses[each.address].append(each)
    for own in addresses.values():
        if len(own) > per_address:
            own.sort(key=lambda each: (each.peer not in met, each.since))
            for each in own[per_address:]:
                found[each.peer] = f"more than {per_address} connections of one address"
    return found


class Strangers:
    """Looks at the connections of gRPC's port once a second, on the thread ``headrace-strangers``.
    At a Unix socket, a process stands for an address.

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
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def met(self, peer: str) -> None:
        """Notes that this peer has shown a valid credential."""
        self._met.add(peer)

    def start(self, local: int | str) -> None:
        """
        Args:
            local: the port, or the path that the Unix socket was bound to.
        """
        connections = Connections(local)

        def run() -> None:
            while not self._stopped.wait(_LOOK_SECONDS):
                try:
                    self.look(connections)
                except Exception as error:  # noqa: BLE001 - the next look may succeed
                    log_internal_error(error, where="looking at the connections")

        self._thread = threading.Thread(target=run, name="headrace-strangers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def look(self, connections: Connections) -> None:
        """Ends the unwanted connections, and forgets peers that have left."""
        # Taken first: a peer that is in here and no longer connected has left.
        met = set(self._met)
        now = self._clock()
        connected = [Connected(peer, since) for peer, since in connections.look(now)]
        self.connections = len(connected)
        ends = unwanted(
            connected,
            met,
            now,
            per_address=self._per_address,
            stranger_seconds=self._stranger_seconds,
        )
        for peer, why in ends.items():
            # It may have shown a credential a moment ago.
            if peer in self._met and peer not in met:
                continue
            if connections.cut(peer):
                _log.info("ended the connection of %s: %s", peer, why)
        self._met.difference_update(met - {each.peer for each in connected})
