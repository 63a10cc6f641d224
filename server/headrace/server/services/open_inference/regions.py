"""The extensions for shared memory: a host's regions, and that there are none of a GPU."""

from __future__ import annotations

from contextlib import suppress

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.errors import NotFound, Unimplemented
from headrace.server.shared_memory.regions import Caller, Regions, UnknownRegion


class RegionMethods:
    """Thread-safe, as the regions are."""

    def __init__(self, regions: Regions) -> None:
        self._regions = regions

    def system_status(self, caller: Caller, name: str = "") -> oip.SystemSharedMemoryStatusResponse:
        """The caller's regions, or one of them.

        Raises:
            UnknownRegion: there is none of that name.
        """
        reply = oip.SystemSharedMemoryStatusResponse()
        for region in self._regions.status(caller, name):
            status = reply.regions[region.name]
            status.name, status.key = region.name, region.key
            status.offset, status.byte_size = region.offset, region.byte_size
        return reply

    def system_register(
        self, caller: Caller, name: str, key: str, offset: int, byte_size: int
    ) -> oip.SystemSharedMemoryRegisterResponse:
        """Raises as `Regions.register`."""
        self._regions.register(caller, name, key, offset, byte_size)
        return oip.SystemSharedMemoryRegisterResponse()

    async def system_unregister(
        self, caller: Caller, name: str = ""
    ) -> oip.SystemSharedMemoryUnregisterResponse:
        """Takes a region away, or all of the caller's. One that is not there is gone already."""
        with suppress(UnknownRegion):
            await self._regions.unregister(caller, name)
        return oip.SystemSharedMemoryUnregisterResponse()

    def cuda_status(self, name: str = "") -> oip.CudaSharedMemoryStatusResponse:
        """No region.

        Raises:
            NotFound: one is named.
        """
        if name:
            raise NotFound(f"unknown region {name[:200]!r} of a GPU; there are none", field="name")
        return oip.CudaSharedMemoryStatusResponse()

    def cuda_register(self) -> oip.CudaSharedMemoryRegisterResponse:
        """
        Raises:
            Unimplemented: always.
        """
        raise Unimplemented(
            "headrace takes no memory of a GPU from clients; register system shared memory, or "
            "send the tensors"
        )

    def cuda_unregister(self) -> oip.CudaSharedMemoryUnregisterResponse:
        """There is nothing to unregister; clients do so at their start."""
        return oip.CudaSharedMemoryUnregisterResponse()
