"""The methods of headrace's own protocol that register shared memory."""

from __future__ import annotations

from typing import Any

from headrace.server.serving.serving import Serving
from headrace.server.shared_memory.regions import Regions
from headrace.v1 import inference_engine_pb2 as pb


class SharedMemoryService:
    """Belongs to the event loop's thread."""

    def __init__(self, regions: Regions, serving: Serving) -> None:
        self._regions = regions
        self._caller = serving.caller

    async def register(
        self, request: pb.RegisterSharedMemoryRequest, context: Any
    ) -> pb.RegisterSharedMemoryReply:
        caller = await self._caller(context)
        self._regions.register(caller, request.name, request.key, request.offset, request.bytes)
        return pb.RegisterSharedMemoryReply()

    async def unregister(
        self, request: pb.UnregisterSharedMemoryRequest, context: Any
    ) -> pb.UnregisterSharedMemoryReply:
        await self._regions.unregister(await self._caller(context), request.name)
        return pb.UnregisterSharedMemoryReply()

    async def list(self, _: Any, context: Any) -> pb.ListSharedMemoryReply:
        reply = pb.ListSharedMemoryReply()
        for region in self._regions.status(await self._caller(context)):
            reply.regions.add(
                name=region.name, key=region.key, offset=region.offset, bytes=region.byte_size
            )
        return reply
