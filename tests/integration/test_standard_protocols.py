"""What tools that know nothing of headrace find: health, reflection and rich error details.

Only grpcio's own packages talk to the server here, none of ours.
"""

from __future__ import annotations

import queue
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from grpc_status import rpc_status

from headrace.testing import networks
from tests.integration.harness import BASIC, CALL_SECONDS, Server

SERVICE = "headrace.v1.InferenceEngine"
OPEN_INFERENCE = "inference.GRPCInferenceService"
REFLECTIONS = (
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)
SERVING = health_pb2.HealthCheckResponse.SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
CASE = networks.add()


def asked(service: str) -> Any:
    return health_pb2.HealthCheckRequest(service=service)


class Dynamic:
    """The service as reflection describes it."""

    def __init__(self, server: Server) -> None:
        self.database = ProtoReflectionDescriptorDatabase(server.channel)
        self.service = DescriptorPool(self.database).FindServiceByName(SERVICE)
        self._channel = server.channel

    def call(self, method: str, **fields: Any) -> Any:
        """Calls a unary method; fields as the message's constructor takes them."""
        described = self.service.FindMethodByName(method)
        ask = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(described.output_type).FromString,
        )
        return ask(GetMessageClass(described.input_type)(**fields), timeout=CALL_SECONDS)


@pytest.fixture(scope="module")
def health(server: Server) -> Any:
    return health_pb2_grpc.HealthStub(server.channel)


@pytest.mark.parametrize("service", ["", SERVICE, OPEN_INFERENCE])
def test_a_ready_server_is_serving(health: Any, service: str) -> None:
    assert health.Check(asked(service), timeout=CALL_SECONDS).status == SERVING


def test_a_network_is_a_service_for_as_long_as_it_is_loaded(server: Server, health: Any) -> None:
    with pytest.raises(grpc.RpcError) as before:
        health.Check(asked("checked"), timeout=CALL_SECONDS)
    server.load(CASE, "TEMPLATE", "checked")
    assert health.Check(asked("checked"), timeout=CALL_SECONDS).status == SERVING
    listed = health.List(health_pb2.HealthListRequest(), timeout=CALL_SECONDS).statuses
    assert {name: each.status for name, each in listed.items()}.items() >= {
        "": SERVING,
        SERVICE: SERVING,
        "checked": SERVING,
    }.items()
    server.unload("checked")
    with pytest.raises(grpc.RpcError) as after:
        health.Check(asked("checked"), timeout=CALL_SECONDS)
    for caught in (before, after):  # SERVICE_UNKNOWN is for Watch alone
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_watch_follows_a_network_that_comes_and_goes(server: Server, health: Any) -> None:
    watches = [health.Watch(asked("watched"), timeout=CALL_SECONDS) for _ in range(2)]
    for expected, change in (
        (UNKNOWN, lambda: server.load(CASE, "TEMPLATE", "watched")),
        (SERVING, lambda: server.unload("watched")),
        (UNKNOWN, lambda: server.load(CASE, "TEMPLATE", "watched")),
        (SERVING, lambda: server.unload("watched")),
        (UNKNOWN, lambda: None),
    ):
        assert [next(watch).status for watch in watches] == [expected] * 2
        change()
    for watch in watches:
        watch.cancel()


def test_reflection_names_every_service(server: Server) -> None:
    names = set(Dynamic(server).database.get_services())
    assert names == {SERVICE, OPEN_INFERENCE, "grpc.health.v1.Health", *REFLECTIONS}


@pytest.mark.parametrize("service", REFLECTIONS)
def test_reflection_is_there_under_both_names_and_describes_itself(
    server: Server, service: str
) -> None:
    ask = server.channel.stream_stream(
        f"/{service}/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    question = reflection_pb2.ServerReflectionRequest(file_containing_symbol=service)
    answer = next(ask(iter([question]), timeout=CALL_SECONDS))
    (file,) = answer.file_descriptor_response.file_descriptor_proto
    described = descriptor_pb2.FileDescriptorProto.FromString(file)
    assert f"{described.package}.{described.service[0].name}" == service
    assert described.service[0].method[0].input_type.startswith(f".{described.package}.")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\x12\x80\x80\x04" + bytes(1 << 16), "at most 65536 bytes"),
        (b"\xff", "not a message of the type grpc.reflection.v1alpha.ServerReflectionRequest"),
    ],
)
def test_reflection_takes_no_long_question_and_no_garbage(
    server: Server, message: bytes, reason: str
) -> None:
    ask = server.channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    )
    with pytest.raises(grpc.RpcError) as caught:
        next(ask(iter([message])))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert reason in caught.value.details()


def test_what_reflection_says_is_enough_to_load_and_infer(server: Server) -> None:
    dynamic = Dynamic(server)
    model = {"data": CASE.model.SerializeToString()}
    dynamic.call("LoadNetwork", name="reflected", device="TEMPLATE", model=model)
    inputs = [
        {"name": name, "tensor": {"dtype": "FLOAT", "shape": value.shape, "data": value.tobytes()}}
        for name, value in CASE.inputs.items()
        if isinstance(value, np.ndarray)
    ]
    reply = dynamic.call("Infer", network="reflected", inputs=inputs)
    (output,) = reply.outputs
    z = np.frombuffer(output.tensor.data, np.float32).reshape(output.tensor.shape)
    np.testing.assert_array_equal(z, CASE.expected()["z"])
    dynamic.call("UnloadNetwork", name="reflected")


def test_every_method_of_the_service_is_described(server: Server) -> None:
    methods = Dynamic(server).service.methods_by_name
    assert {"LoadNetwork", "InferStream", "ExportNetwork", "ListDevices"} <= set(methods)
    assert methods["InferStream"].client_streaming
    assert methods["InferStream"].server_streaming


def refusal(server: Server, method: str, **fields: Any) -> tuple[Any, dict[str, Any]]:
    """The google.rpc.Status of a call that fails, and its details by type."""
    with pytest.raises(grpc.RpcError) as caught:
        Dynamic(server).call(method, **fields)
    status = rpc_status.from_call(caught.value)
    assert status is not None
    assert status.message == caught.value.details()
    details = {}
    for packed in status.details:
        detail = getattr(error_details_pb2, packed.TypeName().rpartition(".")[2])()
        assert packed.Unpack(detail)
        details[type(detail).__name__] = detail
    return status, details


def test_an_error_says_who_and_why(server: Server) -> None:
    status, details = refusal(server, "GetNetwork", name="nowhere")
    assert status.code == grpc.StatusCode.NOT_FOUND.value[0]
    assert details["ErrorInfo"].domain == "headrace"
    assert details["ErrorInfo"].reason == "NOT_FOUND"
    assert details["RequestInfo"].request_id


def test_an_error_names_the_field_at_fault(server: Server) -> None:
    status, details = refusal(
        server, "LoadNetwork", name="bad", device="TEMPLATE", model={"data": b"\xff"}
    )
    assert status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    (violation,) = details["BadRequest"].field_violations
    assert violation.field == "model"
    assert violation.description


def test_a_refusal_for_want_of_room_says_when_to_try_again() -> None:
    endless = networks.endless()
    with Server(*BASIC) as server:
        dynamic = Dynamic(server)
        config = {"NUM_STREAMS": "1", "QUEUE_CAPACITY": "1"}
        dynamic.call("SetConfig", target={"device": "TEMPLATE"}, config=config)
        server.load(endless, "TEMPLATE")
        held = [server.start("endless", endless.inputs) for _ in range(3)]  # one too many
        ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for call in held:
            call.add_done_callback(ended.put)
        refused = ended.get(timeout=CALL_SECONDS)
        status = rpc_status.from_call(refused)
        assert status is not None
        assert status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        retry = error_details_pb2.RetryInfo()
        (packed,) = [each for each in status.details if each.Is(retry.DESCRIPTOR)]
        packed.Unpack(retry)
        assert retry.retry_delay.ToTimedelta().total_seconds() > 0
        for call in held:
            call.cancel()
