"""The service's methods by name, each behind the boundary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from headrace.server.boundary import Boundary
from headrace.server.health import SERVICE
from headrace.server.infer_stream import InferStreams
from headrace.server.inference import Inference
from headrace.server.servicer import Servicer
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.message import parse_request

T = TypeVar("T")


def register(
    server: grpc.aio.Server,
    servicer: Servicer,
    inference: Inference,
    streams: InferStreams,
    boundary: Boundary,
) -> None:
    """Registers every method with `server`, each behind the boundary."""

    def unary(name: str, handler: Any, kind: Any) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(
            boundary.unary(name, _parsing(kind, handler)),
            response_serializer=lambda reply: reply.SerializeToString(),
        )

    def client_stream(name: str, handler: Any) -> grpc.RpcMethodHandler:
        return grpc.stream_unary_rpc_method_handler(
            boundary.unary(name, handler),
            response_serializer=lambda reply: reply.SerializeToString(),
        )

    handlers = {
        "UploadModel": client_stream("UploadModel", servicer.upload_model),
        "LoadNetwork": unary("LoadNetwork", servicer.load_network, pb.LoadNetworkRequest),
        "UnloadNetwork": unary("UnloadNetwork", servicer.unload_network, pb.UnloadNetworkRequest),
        "ListNetworks": unary("ListNetworks", servicer.list_networks, pb.ListNetworksRequest),
        "GetNetwork": unary("GetNetwork", servicer.get_network, pb.GetNetworkRequest),
        "QueryNetwork": unary("QueryNetwork", servicer.query_network, pb.QueryNetworkRequest),
        "Infer": grpc.unary_unary_rpc_method_handler(
            boundary.unary("Infer", inference.infer, names_request=True)
        ),
        "InferStream": grpc.stream_stream_rpc_method_handler(
            boundary.stream("InferStream", streams.serve)
        ),
        "GetMetric": unary("GetMetric", servicer.get_metric, pb.GetMetricRequest),
        "GetConfig": unary("GetConfig", servicer.get_config, pb.GetConfigRequest),
        "SetConfig": unary("SetConfig", servicer.set_config, pb.SetConfigRequest),
        "ImportNetwork": client_stream("ImportNetwork", servicer.import_network),
        "ExportNetwork": grpc.unary_stream_rpc_method_handler(
            boundary.server_stream(
                "ExportNetwork", _parsing(pb.ExportNetworkRequest, servicer.export_network)
            )
        ),
        "AddExtension": unary("AddExtension", servicer.add_extension, pb.AddExtensionRequest),
        "ListDevices": unary("ListDevices", servicer.list_devices, pb.ListDevicesRequest),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def _parsing(kind: Any, handler: Callable[[Any, Any], T]) -> Callable[[bytes, Any], T]:
    """The handler for serialised requests: behind the boundary, so that garbage has its status."""
    return lambda data, context: handler(parse_request(kind, data), context)
