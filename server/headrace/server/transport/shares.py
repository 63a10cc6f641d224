"""A capacity that many callers share. No caller can take all of it."""

from __future__ import annotations

import asyncio

from headrace.runtime.system.allocator import release_memory

_WORTH_RELEASING_BYTES = 64 << 20
_RELEASE_SECONDS = 1.0
_OF_AN_ADDRESS = 7
_STEP_BYTES = 1 << 16


class Shares:
    """Counts what each connection holds of a capacity. Belongs to the event loop's thread.

    A connection that already holds more than a certain part of the free capacity gets no more. So a
    greedy connection always leaves something, and connections that hold little get more first. An
    attacker can open many connections. The connections of one identity together, or of one address
    where callers have none, get at most seven times the free capacity, so that an eighth of the
    capacity stays for others.
    (This is the dynamic threshold of Choudhury and Hahne, "Dynamic queue length thresholds for
    shared-memory packet switches", 1998.)

    Args:
        part: the part of the free capacity that a connection may hold. With 1, a connection gets at
            most half of the capacity. With 1/8, it gets at most a ninth.
    """

    __slots__ = ("_addresses", "_held", "_part", "capacity", "peak", "taken")

    def __init__(self, capacity: int, part: float = 1.0) -> None:
        self.capacity = capacity
        self.taken = 0
        self.peak = 0  # the most that was taken since it was last set
        self._part = part
        self._held: dict[str, int] = {}  # by peer
        self._addresses: dict[str, int] = {}  # separate: gRPC names a lost peer "", which is both

    @property
    def left(self) -> int:
        return self.capacity - self.taken

    def take(self, peer: str, amount: int = 1, part: float | None = None) -> bool:
        """Takes `amount` if that is possible.

        Args:
            peer: the connection, behind the address or identity and a colon:
                ``ipv4:10.0.0.1:5000``, or what `holder_of` makes of it.
            part: the part of the free capacity that the connection may hold for this.
        """
        left = self.capacity - self.taken
        address = peer.rpartition(":")[0]
        mine, ours = self._held.get(peer, 0), self._addresses.get(address, 0)
        most = left * (self._part if part is None else part)
        if amount > left or mine > most or ours > _OF_AN_ADDRESS * left:
            return False
        self.taken += amount
        if self.taken > self.peak:
            self.peak = self.taken
        self._held[peer] = mine + amount
        self._addresses[address] = ours + amount
        return True

    def give_back(self, peer: str, amount: int = 1) -> None:
        self.taken -= amount
        address = peer.rpartition(":")[0]
        for held, holder in ((self._held, peer), (self._addresses, address)):
            left = held[holder] - amount
            if left:
                held[holder] = left
            else:
                del held[holder]


class StreamMemory:
    """The bytes that one stream uses of a shared capacity.

    They are taken in steps, so that tiny amounts need no bookkeeping. They are all given back
    at the end.
    """

    __slots__ = ("_peer", "_shares", "_taken", "_used")

    def __init__(self, shares: Shares, peer: str) -> None:
        self._shares = shares
        self._peer = peer
        self._used = 0
        self._taken = 0

    def use(self, size: int, part: float | None = None) -> bool:
        """Takes `size` more bytes if there is room. Returns whether there was room.

        Args:
            part: as `Shares.take`.
        """
        lacking = self._used + size - self._taken
        if lacking > 0:
            step = max(lacking, _STEP_BYTES)
            if not self._shares.take(self._peer, step, part):
                return False
            self._taken += step
        self._used += size
        return True

    def free(self, size: int) -> None:
        """Frees `size` bytes. After `free_all`, this does nothing."""
        self._used = max(self._used - size, 0)
        spare = self._taken - self._used - _STEP_BYTES
        if spare > 0:
            self._shares.give_back(self._peer, spare)
            self._taken -= spare

    def free_all(self) -> None:
        self._used = 0
        if self._taken:
            self._shares.give_back(self._peer, self._taken)
            self._taken = 0


def release_soon(memory: Shares) -> None:
    """If much of a capacity in bytes was given back, makes the C library release memory, a moment
    later because gRPC still holds some."""
    if memory.peak - memory.taken >= _WORTH_RELEASING_BYTES:
        memory.peak = memory.taken
        loop = asyncio.get_running_loop()
        loop.call_later(_RELEASE_SECONDS, loop.run_in_executor, None, release_memory)
