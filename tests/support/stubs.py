"""The methods of a service as grpcio calls and serves them, with protobuf's own messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from headrace.oip import open_inference_pb2 as oip
from headrace.v1 import inference_engine_pb2 as pb

_ENGINE = pb.DESCRIPTOR.services_by_name["InferenceEngine"]
_OPEN_INFERENCE = oip.DESCRIPTOR.services_by_name["GRPCInferenceService"]


def engine_stub(channel: grpc.Channel) -> Any:
    """Calls each method of our own service by its name."""
    return _stub(_ENGINE, channel)


def open_inference_stub(channel: grpc.Channel) -> Any:
    """Calls each method of the Open Inference Protocol by its name."""
    return _stub(_OPEN_INFERENCE, channel)


def _stub(service: ServiceDescriptor, channel: grpc.Channel) -> Any:
    return SimpleNamespace(**{each.name: _call(each, channel) for each in service.methods})


def _call(method: MethodDescriptor, channel: Any) -> Any:
    return getattr(channel, _kind(method))(
        f"/{method.containing_service.full_name}/{method.name}",
        GetMessageClass(method.input_type).SerializeToString,
        GetMessageClass(method.output_type).FromString,
    )


def serve_engine(servicer: object, server: grpc.Server) -> None:
    """Has an object answer the methods of our own service that it has."""
    handlers = {
        each.name: getattr(grpc, f"{_kind(each)}_rpc_method_handler")(
            getattr(servicer, each.name),
            GetMessageClass(each.input_type).FromString,
            GetMessageClass(each.output_type).SerializeToString,
        )
        for each in _ENGINE.methods
        if hasattr(servicer, each.name)
    }
    handler = grpc.method_handlers_generic_handler(_ENGINE.full_name, handlers)
    server.add_generic_rpc_handlers((handler,))


def _kind(method: MethodDescriptor) -> str:
    """What grpcio calls a method of this kind."""
    request = "stream" if method.client_streaming else "unary"
    reply = "stream" if method.server_streaming else "unary"
    return f"{request}_{reply}"
