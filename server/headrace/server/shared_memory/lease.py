"""Reads and writes clients' regions for one request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import numpy as np

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.execution.job import Job
from headrace.runtime.network.values import Array
from headrace.server.shared_memory.handed import HandedRegion
from headrace.server.shared_memory.region import Region
from headrace.server.shared_memory.regions import Regions
from headrace.server.shared_memory.users import Caller

T = TypeVar("T")

INLINE_BYTES: Final = 1 << 20
"""The most bytes that one request may copy on the event loop, which takes 0.2 ms. Switching to a
thread costs as much, so larger copies run on a thread."""
_MAPPED_SHARE: Final = 4
"""A copy from or to memory that the server maps takes a quarter of the time, without a call of the
system."""


class RegionTooSmall(InvalidArgument):
    """An output does not fit into its place. The metadata ``bytes`` says how much it needs."""

    reason = "REGION_TOO_SMALL"


class Lease:
    """The regions that one request uses. Belongs to one event loop.

    A region that the request has named stays open until the lease is closed and its last transfer
    has ended, even if the region is unregistered meanwhile.

    Attributes:
        job: has ended. Its values are dropped with the lease if they lie in the regions.
    """

    __slots__ = ("_caller", "_copied_bytes", "_moved_bytes", "_regions", "_used", "_uses", "job")

    def __init__(self, regions: Regions, caller: Caller) -> None:
        self._regions = regions
        self._caller = caller
        self._used: dict[str, Region] = {}
        self._copied_bytes: dict[str, int] = {}
        self._moved_bytes = 0
        self._uses = 1
        self.job: Job | None = None

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the lease with the request. Call this once, and once more for each `hold`."""
        self._drop()

    def hold(self) -> None:
        """Keeps the regions open for a run in them, which may outlast the call."""
        self._uses += 1

    def use(self, name: str, offset: int, size: int, field: str) -> Region:
        """The region of that name, after a check that these bytes lie inside it.

        Raises:
            FailedPrecondition: shared memory is off.
            UnknownRegion: there is no region of that name.
            InvalidArgument: some bytes lie outside the region.
        """
        region = self._used.get(name)
        if region is None:
            self._regions.check_allowed()
            region = self._used[name] = self._regions.use(self._caller, name, field)
        region.check(offset, size, field)
        return region

    async def read(self, name: str, offset: int, size: int, field: str) -> Array:
        """Copies these bytes of a region into a new read-only array of uint8.

        Args:
            field: the field of the request that an error names.

        Raises:
            UnknownRegion: there is no region of that name.
            InvalidArgument: some bytes lie outside the region, or its file has become shorter.
            ResourceExhausted: requests in flight have read as many bytes as allowed.
        """
        region = self.use(name, offset, size, field)
        if size:
            # All clients of the Unix socket are one peer, so memory counts for its own client.
            handed = isinstance(region, HandedRegion)
            holder = region.holder if handed else self._caller.holder
            self._regions.take_bytes(holder, size, field)
            self._copied_bytes[holder] = self._copied_bytes.get(holder, 0) + size
        return await self._move(region, partial(region.read, offset, size, field), size)

    async def write(self, name: str, offset: int, room: int, data: Array, field: str) -> None:
        """Writes an array's elements into a region, in C order.

        Args:
            room: how many bytes the client has reserved for the array.

        Raises:
            UnknownRegion: there is no region of that name.
            RegionTooSmall: the array needs more bytes.
            InvalidArgument: the bytes lie outside of the region, or its file has become shorter.
            ResourceExhausted: /dev/shm is full.
        """
        region = self.use(name, offset, room, field)
        if data.nbytes > room:
            raise RegionTooSmall(
                f"the output takes {data.nbytes} bytes, and {room} are left for it in shared "
                f"memory region {name!r}",
                field=field,
                metadata={"bytes": str(data.nbytes)},
            )
        await self._move(region, partial(_write, region, offset, data, field), data.nbytes)

    async def _move(self, region: Region, call: Callable[[], T], size: int) -> T:
        """Runs a copy. Small copies run on the event loop until their sum reaches a limit."""
        self._moved_bytes += size // _MAPPED_SHARE if region.is_mapped else size
        if self._moved_bytes <= INLINE_BYTES:
            return call()
        self._uses += 1
        loop = asyncio.get_running_loop()

        def ended(_: object) -> None:
            with suppress(RuntimeError):  # the loop has closed, and the server ends
                loop.call_soon_threadsafe(self._drop)

        return await self._regions.run(call, ended)

    def _drop(self) -> None:
        self._uses -= 1
        if not self._uses:
            if self.job is not None and self.job.room is not None:
                self.job.drop_values()
            self._regions.release(self._used.values(), self._copied_bytes)


def _write(region: Region, offset: int, data: Array, field: str) -> None:
    region.write(offset, np.ascontiguousarray(data).reshape(-1).view(np.uint8), field)
