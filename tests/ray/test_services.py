"""The ordinary client against the cluster: every kind of call, through HAProxy."""

from __future__ import annotations

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.client import Client, errors
from headrace.client.sync import Network
from headrace.oip import open_inference_pb2 as oip
from headrace.oip import open_inference_pb2_grpc as oip_rpc
from headrace.v1 import inference_engine_pb2 as pb
from headrace.v1 import inference_engine_pb2_grpc as rpc
from tests.ray.conftest import MODEL, PATIENCE_SECONDS, Servers, X


def test_a_network_answers_unary_calls_and_streams(mlp: Network) -> None:
    expected = mlp.infer(X)["scores"]
    for _ in range(9):
        np.testing.assert_array_equal(mlp.infer(X)["scores"], expected)
    answers = dict(mlp.infer_many([X] * 50))
    assert sorted(answers) == list(range(50))
    for each in answers.values():
        assert not isinstance(each, errors.Error)
        np.testing.assert_array_equal(each["scores"], expected)


def test_a_query_names_the_layers_of_the_device(client: Client) -> None:
    found = client.query_network(MODEL, device="CPU")
    assert set(found.supported_layers.values()) == {"CPU"}


def test_an_error_arrives_with_its_details(client: Client, mlp: Network) -> None:
    with pytest.raises(errors.NotFound) as unknown:
        client.network("nope").infer(X)
    assert (unknown.value.details.reason, unknown.value.details.field) == ("NOT_FOUND", "network")
    assert unknown.value.details.request_id
    with pytest.raises(errors.InvalidArgument) as wrong:
        mlp.infer({"x": np.zeros((1, 9), np.float32)})
    assert wrong.value.details.field == "inputs['x'].shape"


def test_a_deadline_ends_a_call(mlp: Network) -> None:
    with pytest.raises(errors.DeadlineExceeded):
        mlp.infer(X, timeout=0.000001)


def test_large_messages_pass(mlp: Network) -> None:
    rows = np.tile(np.asarray(X["x"]), (500_000, 1))  # 48 MB there, 36 MB back
    outputs = mlp.infer({"x": rows})
    assert outputs["scores"].shape == (len(rows), 4)


def test_an_export_comes_back_as_an_import_on_all_replicas(
    servers: Servers, client: Client, mlp: Network
) -> None:
    expected = mlp.infer(X)["scores"]
    blob = mlp.export()
    client.import_network(blob, name="copy")
    for member in servers.ready(3):
        with Client(member.address) as direct:
            np.testing.assert_array_equal(direct.network("copy").infer(X)["scores"], expected)


def test_an_upload_to_one_replica_is_loaded_through_another(
    servers: Servers, client: Client
) -> None:
    members = servers.ready(3)
    with (
        grpc.insecure_channel(members[0].address) as first,
        grpc.insecure_channel(members[1].address) as second,
    ):
        chunks = (
            pb.UploadModelRequest(chunk=MODEL[i : i + 512]) for i in range(0, len(MODEL), 512)
        )
        upload = rpc.InferenceEngineStub(first).UploadModel  # type: ignore[no-untyped-call]
        digest = upload(chunks, timeout=PATIENCE_SECONDS).digest
        load = rpc.InferenceEngineStub(second).LoadNetwork  # type: ignore[no-untyped-call]
        source = pb.ModelSource(digest=digest)
        request = pb.LoadNetworkRequest(name="uploaded", model=source, device="CPU")
        load(request, timeout=PATIENCE_SECONDS)
    assert client.network("uploaded").infer(X)["scores"].shape == (3, 4)


def test_the_standard_protocols_pass(servers: Servers, mlp: Network) -> None:
    with grpc.insecure_channel(servers.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="mlp")
        assert health.Check(request, timeout=PATIENCE_SECONDS).status == 1
        watch = health.Watch(request, timeout=PATIENCE_SECONDS)
        assert next(watch).status == 1
        mlp.unload()
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watch.cancel()
        stub = oip_rpc.GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        assert stub.ServerReady(oip.ServerReadyRequest(), timeout=PATIENCE_SECONDS).ready
