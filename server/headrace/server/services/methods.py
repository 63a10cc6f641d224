"""Lists the methods of all services, one row each, and puts them behind the boundary."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from headrace.oip import open_inference_pb2 as oip
from headrace.server.access.audit import about
from headrace.server.access.identity import Role
from headrace.server.services.engine import Servicer
from headrace.server.services.health import HEALTH, SERVICE, HealthService
from headrace.server.services.infer_stream import InferStreams
from headrace.server.services.inference import Inference
from headrace.server.services.open_inference.service import SERVICE as OPENED
from headrace.server.services.open_inference.service import OpenInferenceService
from headrace.server.services.open_inference.stream import ModelStreams
from headrace.server.services.reflection import SERVICES as REFLECTION
from headrace.server.services.reflection import ReflectionService
from headrace.server.services.shared_memory import SharedMemoryService
from headrace.server.transport.boundary import Boundary, CallLane
from headrace.server.transport.call import BoundMethod, IncomingCall
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.message import parse_request


class Kind(enum.Enum):
    """Whether a method takes many messages, and whether it gives many."""

    UNARY = False, False
    CLIENT_STREAM = True, False
    SERVER_STREAM = False, True
    STREAM = True, True


class Method(NamedTuple):
    """One method.

    Attributes:
        message: the type that a request is parsed as. None if the handler takes serialised
            messages or reads its stream.
        lane: the lane whose slots the method's calls take.
        role: the role that callers need.
        names_request: whether the reply itself contains the id of its request, which the handler
            reads.
    """

    service: str
    name: str
    kind: Kind
    message: Any
    handler: Callable[..., Any]
    lane: CallLane
    role: Role
    names_request: bool = False


class Servicers(NamedTuple):
    """The objects that handle the methods.

    Attributes:
        status: returns the status document as JSON, with the networks whose names contain its
            argument.
    """

    engine: Servicer
    inference: Inference
    streams: InferStreams
    shared_memory: SharedMemoryService
    open_inference: OpenInferenceService
    model_streams: ModelStreams
    health: HealthService
    reflection: ReflectionService
    status: Callable[[str], bytes]


def all_methods(
    services: Servicers, boundary: Boundary, registration: Role = Role.MANAGE
) -> list[Method]:
    """The table of methods.

    Calls that callers can keep open have slots of their own. Probes and watches do too.

    Args:
        registration: the role that the registration of shared memory needs.
    """
    calls, streams = boundary.calls, boundary.streams
    probes, watches = boundary.probes, boundary.watches
    anybody, read, infer, manage = Role
    engine, health, opened = services.engine, services.health, services.open_inference
    shared = services.shared_memory
    of_engine: tuple[tuple[Any, ...], ...] = (
        ("UploadModel", engine.upload_model, streams, manage),
        ("LoadNetwork", engine.load_network, calls, manage),
        ("UnloadNetwork", engine.unload_network, calls, manage),
        ("ListNetworks", engine.list_networks, calls, read),
        ("GetNetwork", engine.get_network, calls, read),
        ("QueryNetwork", engine.query_network, calls, infer),
        ("Infer", services.inference.infer, calls, infer, True),
        ("InferStream", services.streams.serve, streams, infer),
        ("GetMetric", engine.get_metric, calls, read),
        ("GetConfig", engine.get_config, calls, read),
        ("SetConfig", engine.set_config, calls, manage),
        ("ImportNetwork", engine.import_network, streams, manage),
        ("ExportNetwork", engine.export_network, streams, manage),
        ("AddExtension", engine.add_extension, calls, manage),
        ("SetTraffic", engine.set_traffic, calls, manage),
        ("SetShadow", engine.set_shadow, calls, manage),
        ("ListRepository", engine.list_repository, calls, read),
        ("ListDevices", engine.list_devices, calls, read),
        # A busy or stopping server has to tell its status, too.
        ("GetStatus", _telling(services.status), probes, read),
        ("RegisterSharedMemory", shared.register, calls, registration),
        ("UnregisterSharedMemory", shared.unregister, calls, registration),
        ("ListSharedMemory", shared.list, calls, read),
    )
    of_protocol: tuple[tuple[Any, ...], ...] = (
        ("ServerLive", opened.server_live, probes, anybody),
        ("ServerReady", opened.server_ready, probes, anybody),
        ("ModelReady", opened.model_ready, probes, read),
        ("ServerMetadata", opened.server_metadata, calls, read),
        ("ModelMetadata", opened.model_metadata, calls, read),
        ("ModelConfig", opened.model_config, calls, read),
        ("ModelStatistics", opened.model_statistics, calls, read),
        ("RepositoryIndex", opened.repository_index, calls, read),
        ("RepositoryModelLoad", opened.repository_model_load, calls, manage),
        ("RepositoryModelUnload", opened.repository_model_unload, calls, manage),
        ("SystemSharedMemoryStatus", opened.system_memory_status, calls, read),
        ("SystemSharedMemoryRegister", opened.system_memory_register, calls, registration),
        ("SystemSharedMemoryUnregister", opened.system_memory_unregister, calls, registration),
        ("CudaSharedMemoryStatus", opened.cuda_memory_status, calls, read),
        ("CudaSharedMemoryRegister", opened.cuda_memory_register, calls, registration),
        ("CudaSharedMemoryUnregister", opened.cuda_memory_unregister, calls, registration),
        # Each of them reads and changes settings.
        ("TraceSetting", opened.trace_setting, calls, manage),
        ("LogSettings", opened.log_settings, calls, manage),
        ("ModelInfer", opened.model_infer, calls, infer, True),
        ("ModelStreamInfer", services.model_streams.serve, streams, infer),
    )
    # Check and Watch of a network need more: their handlers check that.
    of_health = (
        ("Check", health.check, probes, anybody),
        ("List", health.list, probes, read),
        ("Watch", health.watch, watches, anybody),
    )
    of_reflection = (("ServerReflectionInfo", services.reflection.serve, watches, read),)
    tables: list[tuple[str, Any, Iterable[tuple[Any, ...]]]] = [
        (SERVICE, pb, of_engine),
        (OPENED, oip, of_protocol),
        (HEALTH, health_pb2, of_health),
        *((name, reflection_pb2, of_reflection) for name in REFLECTION),
    ]
    methods: list[Method] = []
    for service, module, rows in tables:
        told = module.DESCRIPTOR.services_by_name[service.rpartition(".")[2]].methods_by_name
        for name, handler, lane, role, *names_request in rows:
            one = told[name]
            kind = Kind((one.client_streaming, one.server_streaming))
            message = (
                None if one.client_streaming or names_request else GetMessageClass(one.input_type)
            )
            methods.append(
                Method(service, name, kind, message, handler, lane, role, *names_request)
            )
    return methods


class Handlers:
    """The methods behind the boundary, by the paths of their calls. Implements `Methods`.

    Attributes:
        kinds: the kind of each method, by path.
    """

    def __init__(self, methods: Iterable[Method], boundary: Boundary) -> None:
        methods = list(methods)
        self.kinds = {f"/{row.service}/{row.name}": row.kind for row in methods}
        self._bound = {f"/{row.service}/{row.name}": _bound(row, boundary) for row in methods}

    def find(self, path: str) -> BoundMethod | None:
        return self._bound.get(path)


def _bound(method: Method, boundary: Boundary) -> BoundMethod:
    name, lane, role = method.name, method.lane, method.role
    handler = _parsing(method, audited=role is Role.MANAGE)
    match method.kind:
        case Kind.UNARY:
            handle = boundary.unary(name, handler, lane, role, names_request=method.names_request)
        case Kind.CLIENT_STREAM:
            handle = boundary.client_stream(name, _serializing(handler), lane, role)
        case Kind.SERVER_STREAM:
            handle = boundary.server_stream(name, handler, lane, role)
        case Kind.STREAM:
            handle = boundary.stream(name, handler, lane, role)
    one = method.kind in (Kind.UNARY, Kind.CLIENT_STREAM)
    return BoundMethod(handle, method.kind is Kind.UNARY, one, boundary.knows_callers)


def _telling(status: Callable[[str], bytes]) -> Callable[..., Any]:
    """The method that returns the status document."""

    async def get_status(request: pb.GetStatusRequest, _: Any) -> pb.GetStatusReply:
        return pb.GetStatusReply(document=await asyncio.to_thread(status, request.match))

    return get_status


def _parsing(method: Method, *, audited: bool) -> Callable[..., Any]:
    """Makes a handler that parses requests itself, so that a bad message gets a proper status. If
    it gives one reply, it serialises that, too."""
    kind, handler = method.message, method.handler
    if kind is None:
        return handler

    def parse_and_handle(data: bytes, context: IncomingCall) -> Any:
        message = parse_request(kind, data)
        if audited:
            about(_subject(message))
        return handler(message, context)

    return _serializing(parse_and_handle) if method.kind is Kind.UNARY else parse_and_handle


def _serializing(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a handler that returns the bytes of its reply."""

    async def handle_and_serialize(*arguments: Any) -> bytes:
        reply = await handler(*arguments)
        data: bytes = reply.SerializeToString()
        return data

    return handle_and_serialize


def _subject(message: Any) -> str:
    """The name of what a request is about, for the audit log."""
    for holder in (message, getattr(message, "target", None)):
        for field in ("name", "model_name", "network", "device"):
            if name := getattr(holder, field, ""):
                return str(name)
    return ""
