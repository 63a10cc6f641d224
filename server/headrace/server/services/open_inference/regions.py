"""The extensions for shared memory. Regions of the host are supported, regions of a GPU are not."""

from __future__ import annotations

from contextlib import suppress

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.errors import NotFound, Unimplemented
from headrace.server.shared_memory.regions import Regions, UnknownRegion
from headrace.server.shared_memory.users import Caller


class RegionMethods:
    """Thread-safe, because the regions are."""

    def __init__(self, regions: Regions) -> None:
        self._regions = regions

    def system_status(self, caller: Caller, name: str = "") -> oip.SystemSharedMemoryStatusResponse:
        """The caller's regions, or one of them.

        Raises:
            UnknownRegion: there is no region of that name.
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
        """Removes one or all regions of the caller. An unknown name is not an error."""
        with suppress(UnknownRegion):
            await self._regions.unregister(caller, name)
        return oip.SystemSharedMemoryUnregisterResponse()

    def cuda_status(self, name: str = "") -> oip.CudaSharedMemoryStatusResponse:
        """An empty list, because there are no GPU regions.

        Raises:
            NotFound: the request names a region.
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
        """Does nothing, because there are no regions. Clients call this at their start."""
        return oip.CudaSharedMemoryUnregisterResponse()
