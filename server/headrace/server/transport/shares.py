"""A capacity that many callers share, and that none of them can take whole."""

from __future__ import annotations

_OF_AN_ADDRESS = 7
_STEP_BYTES = 1 << 16


class Shares:
    """Counts what each connection holds of a capacity. Belongs to the event loop's thread.

    A connection that already holds more than a certain part of what is left gets nothing more. So
    a greedy one always leaves something, and who has little gets more before who has much. An
    attacker can open many connections: those of one address together get at most seven times what
    is left, so that an eighth of the capacity stays for other addresses. (This is the dynamic
    threshold of Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
    switches", 1998.)

    Args:
        part: of what is left, which a connection may hold: with 1 it gets half of the capacity at
            most, with 1/8 a ninth.
    """

    __slots__ = ("_addresses", "_held", "_part", "capacity", "peak", "taken")

    def __init__(self, capacity: int, part: float = 1.0) -> None:
        self.capacity = capacity
        self.taken = 0
        self.peak = 0  # of what was taken, until somebody sets it
        self._part = part
        self._held: dict[str, int] = {}  # by peer
        self._addresses: dict[str, int] = {}  # apart: gRPC names a peer that has gone "", as both

    @property
    def left(self) -> int:
        return self.capacity - self.taken

    def take(self, peer: str, amount: int = 1) -> bool:
        """Whether the peer, as gRPC names it (``ipv4:10.0.0.1:5000``), gets so much more."""
        left = self.capacity - self.taken
        address = peer.rpartition(":")[0]
        mine, ours = self._held.get(peer, 0), self._addresses.get(address, 0)
        if amount > left or mine > left * self._part or ours > _OF_AN_ADDRESS * left:
            return False
        self.taken += amount
        self.peak = max(self.peak, self.taken)
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


class Memory:
    """What one stream uses of a capacity of bytes. It is taken in steps, so that tiny amounts cost
    no book-keeping, and all given back at the end."""

    __slots__ = ("_peer", "_shares", "_taken", "_used")

    def __init__(self, shares: Shares, peer: str) -> None:
        self._shares = shares
        self._peer = peer
        self._used = 0
        self._taken = 0

    def use(self, size: int) -> bool:
        """Whether there is room for so many bytes more, which are used from now on."""
        lacking = self._used + size - self._taken
        if lacking > 0:
            step = max(lacking, _STEP_BYTES)
            if not self._shares.take(self._peer, step):
                return False
            self._taken += step
        self._used += size
        return True

    def free(self, size: int) -> None:
        """After `free_all` there is nothing left to free."""
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
