"""The bounds of shared memory: how many regions, how large together, and how much is in flight.

Not thread-safe: `Regions` holds its lock.
"""

from __future__ import annotations

from typing import Final

from headrace.runtime.errors import ResourceExhausted
from headrace.server.shared_memory.region import Region
from headrace.server.transport.shares import Shares

MAX_REGIONS: Final = 512


class Bounds:
    """Counts regions and bytes for their holders, of which none may have all.

    Args:
        max_bytes: the most bytes of all regions together. The bytes that requests in flight have
            read have the same limit. One connection gets at most half of either.
    """

    def __init__(self, max_bytes: int) -> None:
        self._slots = Shares(MAX_REGIONS)
        self._registered = Shares(max_bytes)
        self._copied = Shares(max_bytes)

    def take(self, region: Region) -> None:
        """Counts a region.

        Raises:
            ResourceExhausted: there are as many regions or bytes as allowed.
        """
        if not self._slots.take(region.holder):
            raise ResourceExhausted(
                f"{self._slots.taken} of at most {MAX_REGIONS} shared memory regions are "
                "registered. A connection that has more regions than are left gets no more; "
                "unregister some"
            )
        if not self._registered.take(region.holder, region.byte_size):
            self._slots.give_back(region.holder)
            raise ResourceExhausted(
                f"the region has {region.byte_size} bytes, and {self._registered.taken} of at most "
                f"{self._registered.capacity} bytes of shared memory are registered "
                "(--max-shared-memory-bytes). A connection that has more bytes than are left gets "
                "no more; unregister regions",
                field="byte_size",
            )

    def give_back(self, region: Region) -> None:
        self._slots.give_back(region.holder)
        self._registered.give_back(region.holder, region.byte_size)

    def take_bytes(self, holder: str, size: int, field: str) -> None:
        """Counts bytes that a request reads.

        Raises:
            ResourceExhausted: requests in flight have read as many bytes as allowed.
        """
        if not self._copied.take(holder, size):
            raise ResourceExhausted(
                f"requests in flight may read {self._copied.capacity} bytes of shared memory "
                f"together (--max-shared-memory-bytes), and the {size} bytes of this one do not "
                "fit now; wait for replies",
                field=field,
            )

    def give_back_bytes(self, holder: str, size: int) -> None:
        self._copied.give_back(holder, size)
