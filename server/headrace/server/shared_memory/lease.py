"""What one request reads from clients' regions and writes to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import numpy as np

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network.values import Array
from headrace.server.shared_memory.region import Region
from headrace.server.shared_memory.regions import Caller, Regions

T = TypeVar("T")

INLINE_BYTES: Final = 1 << 20
"""What one request may copy on the event loop, which takes a fifth of a millisecond. A thread's
turn costs as much, so larger copies are made on one."""


class RegionTooSmall(InvalidArgument):
    """An output does not fit into its place; the metadata ``bytes`` says what it needs."""

    reason = "REGION_TOO_SMALL"


class Lease:
    """What one request uses of the regions. Belongs to one event loop.

    A region that was named once stays open until the lease is closed and the last of its transfers
    has ended, even if it is unregistered meanwhile.

    Raises:
        FailedPrecondition: shared memory is off, or the client is not on this machine.
    """

    __slots__ = ("_caller", "_copied_bytes", "_moved_bytes", "_regions", "_used", "_uses")

    def __init__(self, regions: Regions, caller: Caller) -> None:
        regions.check_use(caller)
        self._regions = regions
        self._caller = caller
        self._used: dict[str, Region] = {}
        self._copied_bytes = 0
        self._moved_bytes = 0
        self._uses = 1

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The request has ended. Call it once."""
        self._drop()

    def use(self, name: str, offset: int, size: int, field: str) -> Region:
        """The region, in which these bytes lie.

        Raises:
            UnknownRegion: there is none of that name.
            InvalidArgument: some bytes lie outside of it.
        """
        region = self._used.get(name)
        if region is None:
            region = self._used[name] = self._regions.use(self._caller, name, field)
        region.check(offset, size, field)
        return region

    async def read(self, name: str, offset: int, size: int, field: str) -> Array:
        """These bytes of a region, as a read-only array of uint8 that nobody else has.

        Args:
            field: of the request, which an error names.

        Raises:
            UnknownRegion: there is none of that name.
            InvalidArgument: some bytes lie outside of it, or its file has become shorter.
            ResourceExhausted: requests in flight have read as much as may be.
        """
        region = self.use(name, offset, size, field)
        self._regions.take_bytes(self._caller, size, field)
        self._copied_bytes += size
        return await self._move(partial(region.read, offset, size, field), size)

    async def write(self, name: str, offset: int, room: int, data: Array, field: str) -> None:
        """Puts an array's elements into a region, in C order.

        Args:
            room: how many bytes the client has left for it.

        Raises:
            UnknownRegion: there is none of that name.
            RegionTooSmall: the array needs more.
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
        await self._move(partial(_write, region, offset, data, field), data.nbytes)

    async def _move(self, call: Callable[[], T], size: int) -> T:
        """Small copies happen here and now, until there have been many of them."""
        self._moved_bytes += size
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
            self._regions.release(self._used.values(), self._caller, self._copied_bytes)


def _write(region: Region, offset: int, data: Array, field: str) -> None:
    region.write(offset, np.ascontiguousarray(data).reshape(-1).view(np.uint8), field)
