"""The gRPC service: each method decodes, delegates, encodes. Belongs to the event loop's thread."""

from __future__ import annotations

from typing import Any

from headrace.server.services.open_inference.inference import OpenInference
from headrace.server.services.open_inference.messages import decode, encode, parse
from headrace.server.services.open_inference.models import Models

SERVICE = "inference.GRPCInferenceService"


class OpenInferenceService:
    def __init__(self, models: Models, inference: OpenInference) -> None:
        self._models = models
        self._inference = inference

    async def server_live(self, _request: Any, _: Any) -> Any:
        return self._models.live()

    async def server_ready(self, _request: Any, _: Any) -> Any:
        return self._models.ready()

    async def model_ready(self, request: Any, _: Any) -> Any:
        return self._models.model_ready(request.name, request.version)

    async def server_metadata(self, _request: Any, _: Any) -> Any:
        return self._models.server_metadata()

    async def model_metadata(self, request: Any, _: Any) -> Any:
        return self._models.model_metadata(request.name, request.version)

    async def model_infer(self, data: bytes, context: Any) -> bytes:
        call = decode(*parse(data))
        result = await self._inference.infer(call, context.time_remaining())
        reply: bytes = encode(result).SerializeToString()
        return reply
