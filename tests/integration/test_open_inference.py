"""The Open Inference Protocol over a socket, with stubs generated from our .proto."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import grpc
import numpy as np
import pytest

from headrace.oip import open_inference_pb2 as oip
from headrace.oip import open_inference_pb2_grpc as rpc
from headrace.testing import networks
from tests.integration.harness import CALL_SECONDS, Server

CASE = networks.add()
DATATYPES = {"float32": "FP32", "int64": "INT64", "object": "BYTES"}


@pytest.fixture(scope="module")
def stub(server: Server) -> Any:
    return rpc.GRPCInferenceServiceStub(server.channel)  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def model(server: Server) -> Iterator[str]:
    server.load(CASE, "TEMPLATE", "open")
    yield "open"
    server.unload("open")


def request(model: str, inputs: Mapping[str, Any], **fields: Any) -> Any:
    return oip.ModelInferRequest(
        model_name=model,
        inputs=[
            oip.ModelInferRequest.InferInputTensor(
                name=name, datatype=DATATYPES[str(value.dtype)], shape=value.shape
            )
            for name, value in inputs.items()
        ],
        raw_input_contents=[value.tobytes() for value in inputs.values()],
        **fields,
    )


def refused(call: Any, message: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call(message, timeout=CALL_SECONDS)
    return caught.value


def test_the_server_is_live_and_ready_and_says_what_it_is(stub: Any) -> None:
    assert stub.ServerLive(oip.ServerLiveRequest()).live
    assert stub.ServerReady(oip.ServerReadyRequest()).ready
    assert stub.ServerMetadata(oip.ServerMetadataRequest()).name == "headrace"


def test_a_model_is_a_network(stub: Any, model: str) -> None:
    assert stub.ModelReady(oip.ModelReadyRequest(name=model)).ready
    metadata = stub.ModelMetadata(oip.ModelMetadataRequest(name=model))
    assert (metadata.name, list(metadata.versions), metadata.platform) == (model, ["1"], "onnx")
    assert [(each.name, each.datatype, list(each.shape)) for each in metadata.inputs] == [
        ("x", "FP32", [2, 3]),
        ("y", "FP32", [2, 3]),
    ]


def test_an_inference_gives_what_the_network_gives(stub: Any, model: str) -> None:
    reply = stub.ModelInfer(request(model, CASE.inputs, id="a"), timeout=CALL_SECONDS)
    assert (reply.model_name, reply.model_version, reply.id) == (model, "1", "a")
    (output,) = reply.outputs
    assert (output.name, output.datatype) == ("z", "FP32")
    z = np.frombuffer(reply.raw_output_contents[0], np.float32).reshape(output.shape)
    x, y = np.asarray(CASE.inputs["x"]), np.asarray(CASE.inputs["y"])
    np.testing.assert_array_equal(z, x + y)


@pytest.mark.parametrize("version", ["2", "x"])
def test_a_version_that_is_not_there_is_not_found(stub: Any, model: str, version: str) -> None:
    message = request(model, CASE.inputs, model_version=version)
    assert refused(stub.ModelInfer, message).code() is grpc.StatusCode.NOT_FOUND
    assert not stub.ModelReady(oip.ModelReadyRequest(name=model, version=version)).ready


def test_an_input_that_does_not_fit_is_refused_by_name(stub: Any, model: str) -> None:
    error = refused(stub.ModelInfer, request(model, {"x": np.zeros((3, 3), np.float32)}))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "input 'x' takes float32[2, 3]" in error.details()


def test_garbage_is_refused(server: Server) -> None:
    call = server.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    error = refused(call, b"\xff")
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "not a inference.ModelInferRequest" in error.details()
