"""The gRPC service. Each method decodes, calls the core, and encodes.

Belongs to the event loop's thread.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from headrace.server.services.open_inference.loading import ModelRepository
from headrace.server.services.open_inference.messages import (
    MODEL_INFER,
    decode,
    encode,
    is_heavy,
    parse,
    parse_offloaded,
    plain,
)
from headrace.server.services.open_inference.models import Models
from headrace.server.services.open_inference.regions import RegionMethods
from headrace.server.services.open_inference.settings import trace_settings
from headrace.server.serving.completion_sink import deadline_after
from headrace.server.serving.layouts import CallLayouts
from headrace.server.serving.offload import offload, texts
from headrace.server.serving.presence import called_when_loaded
from headrace.server.serving.serving import Serving

SERVICE = "inference.GRPCInferenceService"


class OpenInferenceService:
    """
    Args:
        layouts: read requests that are like earlier ones.
    """

    def __init__(
        self,
        models: Models,
        serving: Serving,
        repository: ModelRepository,
        regions: RegionMethods,
        layouts: CallLayouts,
    ) -> None:
        self._models = models
        self._serving = serving
        self._repository = repository
        self._regions = regions
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

    async def model_metadata(self, request: Any, context: Any) -> Any:
        return await called_when_loaded(
            partial(self._models.model_metadata, request.name, request.version),
            deadline_after(0.0, context.time_remaining()),
        )

    async def model_config(self, request: Any, context: Any) -> Any:
        return await called_when_loaded(
            partial(self._models.model_config, request.name, request.version),
            deadline_after(0.0, context.time_remaining()),
        )

    async def model_statistics(self, request: Any, _: Any) -> Any:
        return self._models.statistics(request.name, request.version)

    # -- inference --

    async def model_infer(self, data: bytes, context: Any) -> bytes:
        serving, call = self._serving, self._layouts.read(data)
        if call is not None:
            serving.name(call.id)
        else:
            if is_heavy(data):
                message, decoding = await parse_offloaded(data)
                serving.name(message.id)
                call = await decoding
            else:
                message, raw = parse(data)
                serving.name(message.id)
                call = decode(message, raw)
            self._layouts.learn(data, call)
        if serving.elsewhere:
            reply = await serving.passed_on(call, MODEL_INFER, data, context)
            if reply is not None:
                return reply
        result = await serving.run(call, context)
        strings = texts(result.outputs.values())
        return await offload(partial(encode, result), strings) if strings else encode(result)

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
        return self._regions.system_status(await self._serving.caller(context), request.name)

    async def system_memory_register(self, request: Any, context: Any) -> Any:
        caller = await self._serving.caller(context)
        return self._regions.system_register(
            caller, request.name, request.key, request.offset, request.byte_size
        )

    async def system_memory_unregister(self, request: Any, context: Any) -> Any:
        return await self._regions.system_unregister(
            await self._serving.caller(context), request.name
        )

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
        return trace_settings({name: setting.value for name, setting in request.settings.items()})
