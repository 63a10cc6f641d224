"""The methods of all services by name, each behind the boundary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2

from headrace.server.services.engine import Servicer
from headrace.server.services.health import HEALTH, SERVICE, HealthService
from headrace.server.services.infer_stream import InferStreams
from headrace.server.services.inference import Inference
from headrace.server.services.reflection import REFLECTION, ReflectionService
from headrace.server.services.shared_tensors import SharedMemoryService
from headrace.server.transport.boundary import Boundary
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.message import parse_request

T = TypeVar("T")


def register(
    server: grpc.aio.Server,
    servicer: Servicer,
    inference: Inference,
    streams: InferStreams,
    shared_memory: SharedMemoryService,
    boundary: Boundary,
) -> None:
    """Registers every method with `server`, each behind the boundary, which reads and serialises
    messages itself: gRPC is told of the kinds of replies alone."""

    def unary(name: str, handler: Any, kind: Any) -> grpc.RpcMethodHandler:
        return one_reply(boundary.unary(name, _parsing(kind, handler)))

    handlers = {
        "UploadModel": one_reply(boundary.client_stream("UploadModel", servicer.upload_model)),
        "LoadNetwork": unary("LoadNetwork", servicer.load_network, pb.LoadNetworkRequest),
        "UnloadNetwork": unary("UnloadNetwork", servicer.unload_network, pb.UnloadNetworkRequest),
        "ListNetworks": unary("ListNetworks", servicer.list_networks, pb.ListNetworksRequest),
        "GetNetwork": unary("GetNetwork", servicer.get_network, pb.GetNetworkRequest),
        "QueryNetwork": unary("QueryNetwork", servicer.query_network, pb.QueryNetworkRequest),
        "Infer": grpc.stream_unary_rpc_method_handler(
            boundary.unary("Infer", inference.infer, names_request=True)
        ),
        "InferStream": many_replies(
            boundary.stream("InferStream", streams.serve, boundary.streams)
        ),
        "GetMetric": unary("GetMetric", servicer.get_metric, pb.GetMetricRequest),
        "GetConfig": unary("GetConfig", servicer.get_config, pb.GetConfigRequest),
        "SetConfig": unary("SetConfig", servicer.set_config, pb.SetConfigRequest),
        "ImportNetwork": one_reply(
            boundary.client_stream("ImportNetwork", servicer.import_network)
        ),
        "ExportNetwork": many_replies(
            boundary.server_stream(
                "ExportNetwork",
                _parsing(pb.ExportNetworkRequest, servicer.export_network),
                boundary.streams,
            )
        ),
        "AddExtension": unary("AddExtension", servicer.add_extension, pb.AddExtensionRequest),
        "ListDevices": unary("ListDevices", servicer.list_devices, pb.ListDevicesRequest),
        "RegisterSharedMemory": unary(
            "RegisterSharedMemory", shared_memory.register, pb.RegisterSharedMemoryRequest
        ),
        "UnregisterSharedMemory": unary(
            "UnregisterSharedMemory", shared_memory.unregister, pb.UnregisterSharedMemoryRequest
        ),
        "ListSharedMemory": unary(
            "ListSharedMemory", shared_memory.list, pb.ListSharedMemoryRequest
        ),
    }
    add_service(server, SERVICE, handlers)


def register_health(server: grpc.aio.Server, service: HealthService, boundary: Boundary) -> None:
    """Registers grpc.health.v1: probes and watches have places of their own."""
    ask, probes, watches = health_pb2.HealthCheckRequest, boundary.probes, boundary.watches
    handlers = {
        "Check": one_reply(boundary.unary("Check", _parsing(ask, service.check), probes)),
        "List": one_reply(
            boundary.unary("List", _parsing(health_pb2.HealthListRequest, service.list), probes)
        ),
        "Watch": many_replies(
            boundary.server_stream("Watch", _parsing(ask, service.watch), watches)
        ),
    }
    add_service(server, HEALTH, handlers)


def register_reflection(
    server: grpc.aio.Server, service: ReflectionService, boundary: Boundary
) -> None:
    """Registers server reflection, whose open calls share places with the watches."""
    name = "ServerReflectionInfo"
    handlers = {name: many_replies(boundary.stream(name, service.serve, boundary.watches))}
    add_service(server, REFLECTION, handlers)


def add_service(
    server: grpc.aio.Server, name: str, handlers: dict[str, grpc.RpcMethodHandler]
) -> None:
    """Adds a service to a server that has not started.

    Generated functions would register each method with gRPC's core as well, which then waits for
    each one's next call by itself: 5 to 9 µs more for every call of any method.
    """
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))


def one_reply(call: Any) -> grpc.RpcMethodHandler:
    return grpc.stream_unary_rpc_method_handler(
        call, response_serializer=lambda reply: reply.SerializeToString()
    )


def many_replies(call: Any) -> grpc.RpcMethodHandler:
    return grpc.stream_stream_rpc_method_handler(call)


def _parsing(kind: Any, handler: Callable[[Any, Any], T]) -> Callable[[bytes, Any], T]:
    """The handler for serialised requests: behind the boundary, so that garbage has its status."""
    return lambda data, context: handler(parse_request(kind, data), context)
