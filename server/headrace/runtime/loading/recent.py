"""Networks that were read lately, for the next query or load of the same model.

A client asks about a model before it loads it, or loads it again, perhaps with other options. Most
of such a load is to read the model and to make of it what the device takes. So small networks stay
for a while, with what devices made of them. A client meets only what it has read itself: otherwise
the time of a load would tell it what others have loaded.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headrace.runtime.execution.timer import Timer
from headrace.runtime.network.network import Network
from headrace.runtime.system.garbage import count_loaded

_MOST_BYTES: Final = 64 * 2**20
LARGEST_KEPT: Final = _MOST_BYTES // 4
"""The most memory of a network that is kept."""

_SECONDS: Final = 60.0

_OF_A_LAYER: Final = 16 * 2**10
"""The memory of a layer's objects, in the network and in what two devices make of it."""

_MOST_USES: Final = 8
"""After so many loads and queries what was made of a network is dropped: each may have asked for
something else, with another configuration."""

_OF_A_BYTE: Final = 16
"""The memory of each byte of a model that is no tensor's: lists become objects."""


@dataclass(eq=False, slots=True)
class _Kept:
    network: Network
    bytes: int
    used: float
    uses: int = 0


class RecentNetworks:
    """Thread-safe: `_lock` guards the networks and the alarm. `Timer`'s lock is taken under it.

    Whoever has most gives way first, the network that was not used for longest.

    Args:
        free: called, outside the lock, when networks were dropped. It frees their memory later.
        clock: seconds of the monotonic clock.
    """

    def __init__(
        self,
        timer: Timer,
        free: Callable[[], object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timer = timer
        self._free = free
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], _Kept] = {}  # the least recent first
        self._of: Counter[str] = Counter()  # the bytes of each client
        self._alarmed = False
        self._closed = False

    def read(self, client: str, digest: str, size: int, read: Callable[[], Network]) -> Network:
        """The client's network of this digest: the one that is kept, or what `read` returns.

        Args:
            size: the bytes of the model.

        Raises:
            As `read`.
        """
        key = client, digest
        with self._lock:
            kept = self._kept.pop(key, None)
            if kept is not None:
                kept.used, kept.uses = self._clock(), kept.uses + 1
                self._kept[key] = kept
                dropped = kept.uses % _MOST_USES == 0
                if dropped:
                    kept.network.forget()
                    kept.network.keep()
        if kept is not None:
            if dropped:
                self._free()
            return kept.network
        network = read()
        needed = _memory(network, size)
        if needed <= LARGEST_KEPT:
            self._keep(key, _Kept(network, needed, self._clock()))
        return network

    def close(self) -> None:
        """Drops all networks, and keeps no more."""
        with self._lock:
            self._closed = True
            for key in [*self._kept]:
                self._drop(key)

    def _keep(self, key: tuple[str, str], kept: _Kept) -> None:
        with self._lock:
            if self._closed or key in self._kept:
                return
            kept.network.keep()
            count_loaded(kept.network.size)
            self._kept[key] = kept
            self._of[key[0]] += kept.bytes
            dropped = False
            while self._of.total() > _MOST_BYTES:
                largest = max(self._of, key=self._of.__getitem__)
                self._drop(next(each for each in self._kept if each[0] == largest))
                dropped = True
            self._look_later()
        if dropped:
            self._free()

    def _drop(self, key: tuple[str, str]) -> None:
        kept = self._kept.pop(key)
        self._of[key[0]] -= kept.bytes
        if self._of[key[0]] <= 0:
            del self._of[key[0]]
        count_loaded(-kept.network.size)
        kept.network.forget()

    def _look_later(self) -> None:
        if self._kept and not self._alarmed:
            self._alarmed = True
            self._timer.schedule(self._clock() + _SECONDS, self._look)

    def _look(self) -> None:
        with self._lock:
            self._alarmed = False
            before = self._clock() - _SECONDS
            old = [key for key, kept in self._kept.items() if kept.used <= before]
            for key in old:
                self._drop(key)
            self._look_later()
        if old:
            self._free()


def _memory(network: Network, size: int) -> int:
    weights = network.weight_bytes
    return weights + max(0, size - weights) * _OF_A_BYTE + network.size * _OF_A_LAYER
