"""Tokens and private networks in a cluster: whichever replica gets a call, it says the same."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import numpy as np
import pytest

from headrace.client import Client, errors
from headrace.cluster.placement.forwarding import PASSED_ON
from headrace.oip import open_inference_pb2 as oip
from headrace.oip import open_inference_pb2_grpc as oip_rpc
from headrace.server.access.tokens import token_hash
from headrace.server.settings.sources import load_settings
from headrace.testing import networks
from headrace.testing.case import Case
from tests.support.cluster import Cluster, Hosted
from tests.support.open_inference import infer_request
from tests.support.patience import PATIENCE_SECONDS

ADD, MLP = networks.add(), networks.mlp()
ROLES = {"a": "manage", "b": "manage", "ops": "manage", "watch": "read"}
ONE = {"REPLICAS": "1"}

ClientOf = Callable[[str, Hosted], Client]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    tokens = folder / "tokens.toml"
    tokens.write_text(
        "".join(
            f'[[token]]\nname = "{name}"\nsha256 = "{token_hash(name)}"\nroles = ["{role}"]\n'
            for name, role in ROLES.items()
        )
    )
    settings = {
        "devices": "TEMPLATE",
        "port": "0",
        "http_port": "0",
        "tokens": str(tokens),
        "private_networks": "true",
        "operators": "token:ops",
    }
    running = Cluster(str(folder / "store"), load_settings(settings, {}), replicas=2)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture
def client_of(cluster: Cluster) -> Iterator[ClientOf]:
    """Makes a client with a token. At the end no network is left."""
    with ExitStack() as stack:

        def make(token: str, replica: Hosted) -> Client:
            return stack.enter_context(Client(replica.address, token=token))

        yield make
        for network in make("ops", cluster.replicas[0]).networks():
            network.unload()


def apart(cluster: Cluster, full: str) -> tuple[Hosted, Hosted]:
    """The replica that has the network with this full name, and the other one."""
    (holder,) = cluster.holders(full)
    near, far = sorted(cluster.replicas, key=lambda each: each.name != holder)
    return near, far


def load(client: Client, case: Case, name: str = "n") -> None:
    client.load_network(case.model, device="TEMPLATE", name=name, config=ONE)


def test_a_tenants_network_answers_its_tenant_through_every_replica(
    cluster: Cluster, client_of: ClientOf
) -> None:
    load(client_of("a", cluster.replicas[0]), MLP)
    expected = MLP.expected()["scores"]
    for replica in apart(cluster, "n@token:a"):
        client = client_of("a", replica)
        outputs = client.network("n").infer(MLP.inputs)
        np.testing.assert_allclose(outputs["scores"], expected, rtol=1e-5)
        assert [each.name for each in client.networks()] == ["n"]
        assert client.network("n").info.replicas == cluster.holders("n@token:a")
        assert [each.name for each in client_of("ops", replica).networks()] == ["n@token:a"]
        assert client_of("ops", replica).network("n@token:a").infer(MLP.inputs)


def test_a_tenant_learns_nothing_of_anothers_network_from_any_replica(
    cluster: Cluster, client_of: ClientOf
) -> None:
    def told(replica: Hosted) -> list[Any]:
        client = client_of("b", replica)
        found: list[Any] = [client.networks()]
        for name in ("n", "n@token:a"):
            with pytest.raises(errors.NotFound) as caught:
                client.network(name)
            found.append((caught.value.details.message, caught.value.details.field))
            with grpc.insecure_channel(replica.address) as channel:
                stub = oip_rpc.GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]
                with pytest.raises(grpc.RpcError) as refused:
                    stub.ModelInfer(
                        infer_request(name, MLP.inputs),
                        metadata=(("authorization", "Bearer b"),),
                        timeout=PATIENCE_SECONDS,
                    )
            found.append((refused.value.code(), refused.value.details()))
            path = f"/v2/models/{name}"
            found += [ask(replica, "b", path), ask(replica, "b", f"{path}/infer", {"inputs": []})]
        return found

    before = [told(each) for each in cluster.replicas]
    load(client_of("a", cluster.replicas[0]), MLP)
    assert [told(each) for each in cluster.replicas] == before


def test_two_tenants_use_one_name(cluster: Cluster, client_of: ClientOf) -> None:
    load(client_of("a", cluster.replicas[0]), MLP)
    load(client_of("b", cluster.replicas[0]), ADD)
    for replica in cluster.replicas:
        assert list(client_of("a", replica).network("n").infer(MLP.inputs)) == ["scores", "label"]
        assert list(client_of("b", replica).network("n").infer(ADD.inputs)) == ["z"]
    _, far = apart(cluster, "n@token:b")
    client_of("b", far).network("n").unload()
    for replica in cluster.replicas:
        with pytest.raises(errors.NotFound):
            client_of("b", replica).network("n")
        assert client_of("a", replica).network("n").infer(MLP.inputs)


def test_a_role_counts_wherever_the_network_is(cluster: Cluster, client_of: ClientOf) -> None:
    load(client_of("ops", cluster.replicas[0]), MLP)
    for replica in apart(cluster, "n"):
        watch, tenant = client_of("watch", replica), client_of("a", replica)
        network = watch.network("n")
        with pytest.raises(errors.PermissionDenied, match="infer"):
            network.infer(MLP.inputs)
        with pytest.raises(errors.PermissionDenied):
            network.unload()
        assert tenant.network("n").infer(MLP.inputs), "an operator's networks are shared"
        with pytest.raises(errors.PermissionDenied, match="is not yours"):
            tenant.network("n").set_config({"EXECUTION_TIMEOUT": "17"})
        with pytest.raises(errors.Unauthenticated):
            client_of("wrong", replica).network("n")


def test_the_mark_of_a_call_that_was_passed_on_is_no_credential(
    cluster: Cluster, client_of: ClientOf
) -> None:
    load(client_of("a", cluster.replicas[0]), MLP)
    request = infer_request("n", MLP.inputs)
    mark = (PASSED_ON, "1")
    for replica in apart(cluster, "n@token:a"):
        with grpc.insecure_channel(replica.address) as channel:
            stub = oip_rpc.GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]
            for credential, code in (
                ((), grpc.StatusCode.UNAUTHENTICATED),
                ((("authorization", "Bearer b"),), grpc.StatusCode.NOT_FOUND),
            ):
                with pytest.raises(grpc.RpcError) as caught:
                    stub.ModelInfer(request, metadata=(*credential, mark), timeout=PATIENCE_SECONDS)
                assert caught.value.code() is code
            ready = oip.ModelReadyRequest(name="n")
            with pytest.raises(grpc.RpcError):
                stub.ModelReady(ready, metadata=(mark,), timeout=PATIENCE_SECONDS)


def ask(replica: Hosted, token: str, path: str, body: Any = None) -> tuple[int, Any]:
    """The status and the JSON of a reply of REST."""
    request = urllib.request.Request(
        f"http://{replica.http}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"authorization": f"Bearer {token}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def rest_body(**more: Any) -> dict[str, Any]:
    """A request for the inputs of `MLP`."""
    x = np.asarray(MLP.inputs["x"])
    tensor = {"name": "x", "datatype": "FP32", "shape": x.shape, "data": x.ravel().tolist()}
    return {"inputs": [tensor], **more}


@pytest.mark.parametrize("path", ["/v2/models/n/infer", "/v2/models/n/versions/1/infer"])
def test_rest_s_requests_for_inference_reach_the_network(
    cluster: Cluster, client_of: ClientOf, path: str
) -> None:
    load(client_of("a", cluster.replicas[0]), MLP)
    near, far = apart(cluster, "n@token:a")
    outputs = [{"name": "scores", "parameters": {"classification": 2}}]
    for body in (
        rest_body(id="7"),
        rest_body(parameters={"priority": 3}),
        {**rest_body(outputs=outputs)},
    ):
        (status, said), (_, expected) = (ask(each, "a", path, body) for each in (far, near))
        assert (status, said) == (200, expected)


def test_rest_s_errors_come_back_as_they_are(cluster: Cluster, client_of: ClientOf) -> None:
    load(client_of("a", cluster.replicas[0]), MLP)
    near, far = apart(cluster, "n@token:a")
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}
    told, expected = (ask(each, "a", "/v2/models/n/infer", body) for each in (far, near))
    assert told == expected
    assert told[0] == 400


def test_rest_says_that_shared_memory_is_of_one_replica(
    cluster: Cluster, client_of: ClientOf
) -> None:
    load(client_of("a", cluster.replicas[0]), MLP)
    _, far = apart(cluster, "n@token:a")
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 4}
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "parameters": place}
    status, said = ask(far, "a", "/v2/models/n/infer", {"inputs": [tensor]})
    assert status == 404
    assert "which does not have shared memory region 'r'" in said["error"]


def test_rest_says_which_replica_has_the_network(cluster: Cluster, client_of: ClientOf) -> None:
    load(client_of("a", cluster.replicas[0]), MLP)
    near, far = apart(cluster, "n@token:a")
    asked: list[tuple[str, Any]] = [
        ("/v2/models/n", None),
        ("/v2/models/n/ready", None),
        ("/v2/models/n/versions/1/config", None),
        ("/v2/repository/models/n/unload", {}),
    ]
    for path, sent in asked:
        status, said = ask(far, "a", path, sent)
        assert status == 404, path
        assert f"network 'n' is not on this replica, but on {near.name}: use gRPC" in said["error"]
        status, said = ask(near, "a", path, sent)
        assert status == 200, (path, said)
    status, said = ask(far, "a", "/v2/models/none")
    assert (status, "replica" in said["error"]) == (404, False)
