"""Lists the methods of all services, one row each, and registers them behind the boundary."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import grpc
from grpc_health.v1 import health_pb2

from headrace.oip import open_inference_pb2 as oip
from headrace.server.services.engine import Servicer
from headrace.server.services.health import HEALTH, SERVICE, HealthService
from headrace.server.services.infer_stream import InferStreams
from headrace.server.services.inference import Inference
from headrace.server.services.open_inference.service import SERVICE as OPENED
from headrace.server.services.open_inference.service import OpenInferenceService
from headrace.server.services.open_inference.stream import ModelStreams
from headrace.server.services.reflection import SERVICES as REFLECTION
from headrace.server.services.reflection import ReflectionService
from headrace.server.services.shared_tensors import SharedMemoryService
from headrace.server.transport.boundary import Boundary, Lane
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.message import parse_request


class Kind(enum.Enum):
    """How many messages a method takes and gives."""

    UNARY = enum.auto()
    CLIENT_STREAM = enum.auto()
    SERVER_STREAM = enum.auto()
    STREAM = enum.auto()


class Method(NamedTuple):
    """One method.

    Attributes:
        message: the type that a request is parsed as. None if the handler takes serialised
            messages or reads its stream.
        lane: the lane whose places the method's calls take.
        names_request: whether the reply itself contains the id of its request.
    """

    service: str
    name: str
    kind: Kind
    message: Any
    handler: Callable[..., Any]
    lane: Lane
    names_request: bool = False


class Services(NamedTuple):
    """The objects that handle the methods."""

    engine: Servicer
    inference: Inference
    streams: InferStreams
    shared_memory: SharedMemoryService
    open_inference: OpenInferenceService
    model_streams: ModelStreams
    health: HealthService
    reflection: ReflectionService


def all_methods(services: Services, boundary: Boundary) -> list[Method]:
    """The table of methods.

    Calls that callers can keep open have places of their own. Probes and watches do too.
    """
    unary, upload, download, both = Kind
    calls, streams = boundary.calls, boundary.streams
    probes, watches = boundary.probes, boundary.watches
    engine, health, opened = services.engine, services.health, services.open_inference
    shared = services.shared_memory
    probe = health_pb2.HealthCheckRequest
    rows: tuple[tuple[Any, ...], ...] = (
        (SERVICE, "UploadModel", upload, None, engine.upload_model, streams),
        (SERVICE, "LoadNetwork", unary, pb.LoadNetworkRequest, engine.load_network, calls),
        (SERVICE, "UnloadNetwork", unary, pb.UnloadNetworkRequest, engine.unload_network, calls),
        (SERVICE, "ListNetworks", unary, pb.ListNetworksRequest, engine.list_networks, calls),
        (SERVICE, "GetNetwork", unary, pb.GetNetworkRequest, engine.get_network, calls),
        (SERVICE, "QueryNetwork", unary, pb.QueryNetworkRequest, engine.query_network, calls),
        (SERVICE, "Infer", unary, None, services.inference.infer, calls, True),
        (SERVICE, "InferStream", both, None, services.streams.serve, streams),
        (SERVICE, "GetMetric", unary, pb.GetMetricRequest, engine.get_metric, calls),
        (SERVICE, "GetConfig", unary, pb.GetConfigRequest, engine.get_config, calls),
        (SERVICE, "SetConfig", unary, pb.SetConfigRequest, engine.set_config, calls),
        (SERVICE, "ImportNetwork", upload, None, engine.import_network, streams),
        (
            *(SERVICE, "ExportNetwork", download),
            *(pb.ExportNetworkRequest, engine.export_network, streams),
        ),
        (SERVICE, "AddExtension", unary, pb.AddExtensionRequest, engine.add_extension, calls),
        (SERVICE, "SetTraffic", unary, pb.SetTrafficRequest, engine.set_traffic, calls),
        (SERVICE, "ListRepository", unary, pb.ListRepositoryRequest, engine.list_repository, calls),
        (SERVICE, "ListDevices", unary, pb.ListDevicesRequest, engine.list_devices, calls),
        (
            *(SERVICE, "RegisterSharedMemory", unary),
            *(pb.RegisterSharedMemoryRequest, shared.register, calls),
        ),
        (
            *(SERVICE, "UnregisterSharedMemory", unary),
            *(pb.UnregisterSharedMemoryRequest, shared.unregister, calls),
        ),
        (SERVICE, "ListSharedMemory", unary, pb.ListSharedMemoryRequest, shared.list, calls),
        (OPENED, "ServerLive", unary, oip.ServerLiveRequest, opened.server_live, probes),
        (OPENED, "ServerReady", unary, oip.ServerReadyRequest, opened.server_ready, probes),
        (OPENED, "ModelReady", unary, oip.ModelReadyRequest, opened.model_ready, probes),
        *(
            (OPENED, name, unary, getattr(oip, f"{name}Request"), handler, calls)
            for name, handler in (
                ("ServerMetadata", opened.server_metadata),
                ("ModelMetadata", opened.model_metadata),
                ("ModelConfig", opened.model_config),
                ("ModelStatistics", opened.model_statistics),
                ("RepositoryIndex", opened.repository_index),
                ("RepositoryModelLoad", opened.repository_model_load),
                ("RepositoryModelUnload", opened.repository_model_unload),
                ("SystemSharedMemoryStatus", opened.system_memory_status),
                ("SystemSharedMemoryRegister", opened.system_memory_register),
                ("SystemSharedMemoryUnregister", opened.system_memory_unregister),
                ("CudaSharedMemoryStatus", opened.cuda_memory_status),
                ("CudaSharedMemoryRegister", opened.cuda_memory_register),
                ("CudaSharedMemoryUnregister", opened.cuda_memory_unregister),
                ("TraceSetting", opened.trace_setting),
                ("LogSettings", opened.log_settings),
            )
        ),
        (OPENED, "ModelInfer", unary, None, opened.model_infer, calls, True),
        (OPENED, "ModelStreamInfer", both, None, services.model_streams.serve, streams),
        (HEALTH, "Check", unary, probe, health.check, probes),
        (HEALTH, "List", unary, health_pb2.HealthListRequest, health.list, probes),
        (HEALTH, "Watch", download, probe, health.watch, watches),
        *(
            (name, "ServerReflectionInfo", both, None, services.reflection.serve, watches)
            for name in REFLECTION
        ),
    )
    return [Method(*row) for row in rows]


def register(server: grpc.aio.Server, methods: Iterable[Method], boundary: Boundary) -> None:
    """Registers methods behind the boundary with a server that has not started.

    The boundary reads and serialises messages itself. gRPC only knows the kinds of replies.

    Generated functions would also register each method with gRPC's core. The core would then wait
    for the next call of each method separately, which adds 5 to 9 µs to every call.
    """
    services: dict[str, dict[str, grpc.RpcMethodHandler]] = {}
    for method in methods:
        services.setdefault(method.service, {})[method.name] = _handler(method, boundary)
    for name, handlers in services.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))


def _handler(method: Method, boundary: Boundary) -> grpc.RpcMethodHandler:
    name, handler, lane = method.name, _parsing(method.message, method.handler), method.lane
    match method.kind:
        case Kind.UNARY:
            serializer = None if method.message is None else _serialize
            return grpc.stream_unary_rpc_method_handler(
                boundary.unary(name, handler, lane, names_request=method.names_request),
                response_serializer=serializer,
            )
        case Kind.CLIENT_STREAM:
            return grpc.stream_unary_rpc_method_handler(
                boundary.client_stream(name, handler, lane), response_serializer=_serialize
            )
        case Kind.SERVER_STREAM:
            call = boundary.server_stream(name, handler, lane)
        case Kind.STREAM:
            call = boundary.stream(name, handler, lane)
    return grpc.stream_stream_rpc_method_handler(call)


def _serialize(reply: Any) -> bytes:
    data: bytes = reply.SerializeToString()
    return data


def _parsing(kind: Any, handler: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a handler that parses requests itself, so that a bad message gets a proper status."""
    if kind is None:
        return handler
    return lambda data, context: handler(parse_request(kind, data), context)
