"""The gRPC service. Each method decodes, calls the core, and encodes.

Belongs to the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from headrace.server.services.aside import aside, texts
from headrace.server.services.open_inference.call import InferCall, InferResult
from headrace.server.services.open_inference.inference import OpenInference
from headrace.server.services.open_inference.loading import ModelRepository
from headrace.server.services.open_inference.messages import (
    encode,
    encode_on_stream,
    plain,
    read,
)
from headrace.server.services.open_inference.models import Models
from headrace.server.services.open_inference.regions import RegionMethods
from headrace.server.services.open_inference.settings import trace_settings
from headrace.server.services.open_inference.short import CallLayouts
from headrace.server.services.streams.turns import Turn
from headrace.server.shared_memory.users import Caller

SERVICE = "inference.GRPCInferenceService"


class OpenInferenceService:
    """
    Args:
        caller: returns the caller, whose regions of shared memory a call may name.
        layouts: read requests that are like earlier ones.
    """

    def __init__(
        self,
        models: Models,
        inference: OpenInference,
        repository: ModelRepository,
        regions: RegionMethods,
        caller: Callable[[Any], Awaitable[Caller]],
        layouts: CallLayouts,
    ) -> None:
        self._models = models
        self._inference = inference
        self._repository = repository
        self._regions = regions
        self._caller = caller
        self._layouts = layouts

    # -- the server and its models --

    async def server_live(self, _request: Any, _: Any) -> Any:
        return self._models.live()

    async def server_ready(self, _request: Any, _: Any) -> Any:
        return self._models.ready()

    async def server_metadata(self, _request: Any, _: Any) -> Any:
        return self._models.server_metadata()

    async def model_ready(self, request: Any, _: Any) -> Any:
        return self._models.model_ready(request.name, request.version)

    async def model_metadata(self, request: Any, _: Any) -> Any:
        return self._models.model_metadata(request.name, request.version)

    async def model_config(self, request: Any, _: Any) -> Any:
        return self._models.model_config(request.name, request.version)

    async def model_statistics(self, request: Any, _: Any) -> Any:
        return self._models.statistics(request.name, request.version)

    # -- inference --

    async def model_infer(self, data: bytes, context: Any) -> bytes:
        call = self._layouts.read(data)
        if call is None:
            _, decoding = await read(data)
            call = await decoding
            self._layouts.learn(data, call)
            in_regions = call.uses_regions
        else:  # its inputs are in the message
            in_regions = bool(call.outputs) and call.uses_regions
        if in_regions:
            result = await self._in_regions(call, context)
        else:
            result = await self._inference.infer(call, context.time_remaining())
        strings = texts(value for _, value in result.outputs)
        return await aside(partial(encode, result), strings) if strings else encode(result)

    async def infer_on_stream(
        self,
        call: InferCall,
        context: Any,
        parameters: Mapping[str, Any],
        turn: Turn | None = None,
    ) -> bytes:
        """The serialised ModelStreamInferResponse, with these parameters added."""
        if call.uses_regions:
            result = await self._in_regions(call, context, turn)
        else:
            result = await self._inference.infer(call, context.time_remaining(), turn)
        result.parameters.update(parameters)
        strings = texts(value for _, value in result.outputs)
        return await aside(partial(encode_on_stream, result), strings)

    async def _in_regions(
        self, call: InferCall, context: Any, turn: Turn | None = None
    ) -> InferResult:
        caller, remaining = await self._caller(context), context.time_remaining()
        return await self._inference.infer_in_regions(call, caller, remaining, turn)

    # -- the repository --

    async def repository_index(self, request: Any, _: Any) -> Any:
        return await self._repository.index(request.repository_name, ready=request.ready)

    async def repository_model_load(self, request: Any, _: Any) -> Any:
        return await self._repository.load(
            request.model_name, plain(request.parameters), request.repository_name
        )

    async def repository_model_unload(self, request: Any, _: Any) -> Any:
        return await self._repository.unload(
            request.model_name, plain(request.parameters), request.repository_name
        )

    # -- shared memory --

    async def system_memory_status(self, request: Any, context: Any) -> Any:
        return self._regions.system_status(await self._caller(context), request.name)

    async def system_memory_register(self, request: Any, context: Any) -> Any:
        caller = await self._caller(context)
        return self._regions.system_register(
            caller, request.name, request.key, request.offset, request.byte_size
        )

    async def system_memory_unregister(self, request: Any, context: Any) -> Any:
        return await self._regions.system_unregister(await self._caller(context), request.name)

    async def cuda_memory_status(self, request: Any, _: Any) -> Any:
        return self._regions.cuda_status(request.name)

    async def cuda_memory_register(self, _request: Any, _: Any) -> Any:
        return self._regions.cuda_register()

    async def cuda_memory_unregister(self, _request: Any, _: Any) -> Any:
        return self._regions.cuda_unregister()

    # -- settings --

    async def log_settings(self, request: Any, _: Any) -> Any:
        return self._models.log_settings(plain(request.settings, "settings"))

    async def trace_setting(self, request: Any, _: Any) -> Any:
        return trace_settings({name: each.value for name, each in request.settings.items()})
