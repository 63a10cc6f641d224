"""Networks that only some replicas have: every call works through every replica."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.client import Client, errors
from headrace.client.sync import Network
from headrace.cluster.placement.forwarding import PASSED_ON
from headrace.oip import open_inference_pb2 as oip
from headrace.oip import open_inference_pb2_grpc as oip_rpc
from headrace.server.settings.sources import load_settings
from headrace.testing import networks
from headrace.v1 import inference_engine_pb2 as pb
from headrace.v1 import inference_engine_pb2_grpc as rpc
from tests.integration.harness import infer_request as serve_request
from tests.integration.harness import outcome_of, until
from tests.support.cluster import STOP_SECONDS, Cluster
from tests.support.manual import blocks
from tests.support.open_inference import infer_request, outputs_of, parameters
from tests.support.patience import PATIENCE_SECONDS
from tests.support.stateful import SUM, SUM_STATES

CASE = networks.mlp()
MODEL = CASE.model.SerializeToString()
X = CASE.inputs
SETTINGS = {
    "devices": "CPU,TEMPLATE",
    "allow_insecure": "true",
    "port": "0",
    "http_port": "0",
    "grace_seconds": "60",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(str(tmp_path_factory.mktemp("cluster")), load_settings(SETTINGS, {}))
    try:
        yield running
    finally:
        running.close()


@pytest.fixture
def clients(cluster: Cluster) -> Iterator[list[Client]]:
    found = cluster.clients()
    yield found
    for each in found:
        each.close()
    with Client(cluster.replicas[0].address) as one:
        for network in one.networks():
            network.unload()


def load(client: Client, name: str = "n", replicas: int = 1, **how: object) -> None:
    config = {"REPLICAS": str(replicas)}
    client.load_network(MODEL, device="TEMPLATE", name=name, config=config, **how)  # type: ignore[arg-type]


def test_the_manuals_program_runs(
    cluster: Cluster,
    clients: list[Client],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "model.onnx").write_bytes(MODEL)
    monkeypatch.chdir(tmp_path)
    (program,) = blocks("docs/run/cluster.md", "python")
    program = program.replace("localhost:9000", cluster.replicas[0].address)
    exec(compile(program, "cluster.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == f"{cluster.holders('m')}\n"
    assert len(cluster.holders("m")) == 2


def test_every_replica_answers_for_a_network_that_one_has(
    cluster: Cluster, clients: list[Client]
) -> None:
    load(clients[0])
    assert len(cluster.holders("n")) == 1
    expected = clients[0].network("n").infer(X)["scores"]
    for each in clients:
        network = each.network("n")
        np.testing.assert_array_equal(network.infer(X)["scores"], expected)
        for _, outputs in network.infer_many([X] * 20):
            assert not isinstance(outputs, errors.Error)
            np.testing.assert_array_equal(outputs["scores"], expected)
        assert network.get_config("EXECUTION_TIMEOUT") == 600.0
        assert network.info.replicas == cluster.holders("n")
        assert [(one.name, one.info.replicas) for one in each.networks()] == [
            ("n", cluster.holders("n"))
        ]


def away(cluster: Cluster, clients: list[Client], name: str = "n") -> Client:
    """A client of a replica that does not have the network."""
    holders = cluster.holders(name)
    return next(
        client
        for client, each in zip(clients, cluster.replicas, strict=True)
        if each.name not in holders
    )


def holding(cluster: Cluster, clients: list[Client], name: str = "n") -> Client:
    """A client of a replica that has the network."""
    holders = cluster.holders(name)
    return next(
        client
        for client, each in zip(clients, cluster.replicas, strict=True)
        if each.name in holders
    )


def channel_away(cluster: Cluster, name: str = "n") -> grpc.Channel:
    """A channel to a replica that does not have the network."""
    holders = cluster.holders(name)
    return grpc.insecure_channel(
        next(each.address for each in cluster.replicas if each.name not in holders)
    )


def test_the_open_protocol_and_health_reach_the_network(
    cluster: Cluster, clients: list[Client]
) -> None:
    load(clients[0])
    expected = clients[0].network("n").infer(X)["scores"]
    request = infer_request("n", X, id="7")
    with channel_away(cluster) as channel:
        stub = oip_rpc.GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        reply = stub.ModelInfer(request, timeout=PATIENCE_SECONDS)
        np.testing.assert_array_equal(outputs_of(reply)["scores"], expected)
        streamed = list(stub.ModelStreamInfer(iter([request] * 5), timeout=PATIENCE_SECONDS))
        assert [each.infer_response.id for each in streamed] == ["7"] * 5
        for each in streamed:
            np.testing.assert_array_equal(outputs_of(each.infer_response)["scores"], expected)
            assert each.infer_response.parameters["triton_final_response"].bool_param
        ready = oip.ModelReadyRequest(name="n")
        assert stub.ModelReady(ready, timeout=PATIENCE_SECONDS).ready
        config = stub.ModelConfig(oip.ModelConfigRequest(name="n"), timeout=PATIENCE_SECONDS)
        assert config.config.name == "n"
        index = stub.RepositoryIndex(oip.RepositoryIndexRequest(), timeout=PATIENCE_SECONDS)
        assert [(each.name, each.state) for each in index.models] == [("n", "READY")]
        health = health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest(service="n")
        assert health.Check(asked, timeout=PATIENCE_SECONDS).status == 1
        watch = health.Watch(asked, timeout=PATIENCE_SECONDS)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        clients[0].network("n").unload()
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watch.cancel()


def test_changes_reach_the_network_from_a_replica_without_it(
    cluster: Cluster, clients: list[Client]
) -> None:
    load(clients[0])
    far = away(cluster, clients)
    network = far.network("n")
    network.set_config({"EXECUTION_TIMEOUT": "17"})
    for each in clients:
        assert each.network("n").get_config("EXECUTION_TIMEOUT") == 17.0
    blob = network.export()
    with pytest.raises(errors.AlreadyExists):
        load(far)
    with pytest.raises(errors.AlreadyExists):
        far.import_network(blob, name="n")
    far.import_network(blob, name="n", replace=True, config={"REPLICAS": "2"})
    assert len(cluster.holders("n")) == 2
    network.unload()
    for each in clients:
        with pytest.raises(errors.NotFound):
            each.network("n")
        assert each.networks() == []


def test_a_network_is_spread_as_it_is_loaded_again(cluster: Cluster, clients: list[Client]) -> None:
    load(clients[0], replicas=2)
    assert len(cluster.holders("n")) == 2
    load(away(cluster, clients), replace=True)
    (only,) = cluster.holders("n")
    clients[0].load_network(MODEL, device="TEMPLATE", name="n", replace=True)
    assert cluster.holders("n") == ()
    for each in clients:
        assert each.network("n").info.replicas == ()
    load(clients[0], replicas=9, replace=True)
    assert sorted(cluster.holders("n")) == sorted(each.name for each in cluster.replicas)
    assert only in cluster.holders("n")


def test_networks_are_spread_over_the_replicas(cluster: Cluster, clients: list[Client]) -> None:
    for number in range(6):
        load(clients[0], f"n{number}")
    found = sorted(cluster.holders(f"n{number}") for number in range(6))
    assert found == sorted([(each.name,) for each in cluster.replicas] * 2)
    for each in clients:
        assert sorted(one.name for one in each.networks()) == [f"n{k}" for k in range(6)]


def test_errors_come_back_as_they_are(cluster: Cluster, clients: list[Client]) -> None:
    load(clients[0])
    far, near = away(cluster, clients).network("n"), holding(cluster, clients).network("n")
    wrong = {"x": np.zeros((1, 9), np.float32)}
    for call in (Network.infer, lambda network, x: network.start_async(x).result()):
        told = []
        for network in (far, near):
            with pytest.raises(errors.InvalidArgument) as caught:
                call(network, wrong)
            told.append(caught.value.details)
        assert told[0] == told[1]
        assert told[0].field == "inputs['x'].shape"
    with pytest.raises(errors.NotFound, match="configuration key"):
        far.get_config("NOPE")


def test_a_call_is_passed_on_once(cluster: Cluster, clients: list[Client]) -> None:
    load(clients[0])
    with channel_away(cluster) as channel:
        stub = oip_rpc.GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        mark = ((PASSED_ON, "1"),)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(infer_request("n", X), metadata=mark, timeout=PATIENCE_SECONDS)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        ready = oip.ModelReadyRequest(name="n")
        assert not stub.ModelReady(ready, metadata=mark, timeout=PATIENCE_SECONDS).ready


def test_deadlines_and_cancels_reach_the_replica_that_computes(
    cluster: Cluster, clients: list[Client]
) -> None:
    case = networks.endless()
    model = case.model.SerializeToString()
    clients[0].load_network(model, device="TEMPLATE", name="n", config={"REPLICAS": "1"})
    far = away(cluster, clients).network("n")
    with pytest.raises(errors.DeadlineExceeded):
        far.infer(case.inputs, timeout=0.2)
    request = far.start_async(case.inputs)
    request.cancel()
    with pytest.raises(errors.Cancelled):
        request.result()
    far.unload()  # it returns when the last request has ended


def test_the_requests_of_a_sequence_stay_together_and_in_order(
    cluster: Cluster, clients: list[Client]
) -> None:
    config = {"REPLICAS": "2", "STATES": SUM_STATES}
    clients[0].load_network(SUM, device="TEMPLATE", name="n", config=config)
    value = {"x": np.ones((1, 2), np.float32)}
    for client in clients * 3:
        with client.network("n").session() as session:
            waiting = [session.start_async(value) for _ in range(6)]
            sums = [float(each.result()["doubled"][0, 0]) for each in waiting]
            assert sums == [2, 4, 6, 8, 10, 12]


def test_a_sequence_may_change_the_replica_that_it_calls(
    cluster: Cluster, clients: list[Client]
) -> None:
    config = {"REPLICAS": "2", "STATES": SUM_STATES}
    clients[0].load_network(SUM, device="TEMPLATE", name="n", config=config)
    channels = [grpc.insecure_channel(each.address) for each in cluster.replicas]
    calls = [rpc.InferenceEngineStub(each).InferStream for each in channels]  # type: ignore[no-untyped-call]
    opened = [oip_rpc.GRPCInferenceServiceStub(each) for each in channels]  # type: ignore[no-untyped-call]
    x = np.ones((1, 2), np.float32)
    for name in ("one", "other"):
        start = parameters({"sequence_id": name, "sequence_start": True})
        more = parameters({"sequence_id": name})
        request = infer_request("n", {"x": x}, parameters=start)
        first = opened[0].ModelInfer(request, timeout=PATIENCE_SECONDS)
        assert outputs_of(first)["doubled"].tolist() == [[2, 2]]
        request = infer_request("n", {"x": x}, parameters=more)
        for number, each in enumerate(opened):
            (reply,) = each.ModelStreamInfer(iter([request]), timeout=PATIENCE_SECONDS)
            doubled = outputs_of(reply.infer_response)["doubled"].tolist()
            assert doubled == [[2.0 * (number + 2)] * 2]
        own = serve_request("n", {"x": x}, id="last", session=pb.Session(id=name))
        (reply,) = calls[1](iter([pb.InferStreamRequest(requests=[own])]), timeout=PATIENCE_SECONDS)
        assert reply.results[0].reply.id == "last", reply
    for each in channels:
        each.close()


def test_a_stream_at_a_stop_ends_when_its_requests_have(
    cluster: Cluster, clients: list[Client]
) -> None:
    """One request on the stream runs on the replica that stops, the other was passed on."""
    stopping = cluster.join()
    case = networks.endless()
    model = case.model.SerializeToString()
    with Client(stopping.address) as client, grpc.insecure_channel(stopping.address) as channel:
        for number in range(4):
            config = {"REPLICAS": "1"}
            client.load_network(model, device="TEMPLATE", name=f"n{number}", config=config)
        homes = {cluster.holders(f"n{number}")[0]: f"n{number}" for number in range(4)}
        here = homes.pop(stopping.name)
        _, passed = homes.popitem()
        messages: queue.Queue[pb.InferStreamRequest | None] = queue.Queue()
        call = rpc.InferenceEngineStub(channel).InferStream  # type: ignore[no-untyped-call]
        results = call(iter(messages.get, None), timeout=PATIENCE_SECONDS)
        requests = [
            serve_request(name, case.inputs, id=identifier)
            for name, identifier in ((here, "here"), (passed, "passed"))
        ]
        messages.put(pb.InferStreamRequest(requests=requests))
        for name in (here, passed):
            running(cluster, name)
        stop = threading.Thread(target=cluster.stop, args=(stopping,))
        stop.start()
        states = health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest()
        for answer in states.Watch(asked, timeout=PATIENCE_SECONDS):
            if answer.status == health_pb2.HealthCheckResponse.NOT_SERVING:
                break
        messages.put(pb.InferStreamRequest(cancel=["here", "passed"]))
        found: dict[str, str] = {}
        while len(found) < 2:
            found |= {each.id: outcome_of(each) for each in next(results).results}
        assert found == {"here": "CANCELLED", "passed": "CANCELLED"}
        with pytest.raises(grpc.RpcError) as ended:
            next(results)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        messages.put(None)
        stop.join(STOP_SECONDS)
        assert not stop.is_alive()


def running(cluster: Cluster, name: str) -> None:
    """Waits until a request of the network runs."""
    (holder,) = (each for each in cluster.replicas if each.name in cluster.holders(name))
    app = holder.replica._app
    assert app is not None

    def busy() -> bool:
        entry = app.backend.core.networks.find(name)
        return entry.references > 0

    until(busy)


def test_a_replica_that_stops_leaves_its_networks_to_others_first(
    cluster: Cluster, clients: list[Client]
) -> None:
    load(clients[0])
    (holder,) = (each for each in cluster.replicas if each.name in cluster.holders("n"))
    far = away(cluster, clients).network("n")
    over, answered = threading.Event(), threading.Event()
    failed: list[errors.Error] = []

    def call() -> None:
        while not over.is_set():
            try:
                far.infer(X)
                answered.set()
            except errors.Error as error:
                failed.append(error)

    calling = threading.Thread(target=call)
    calling.start()
    try:
        assert answered.wait(PATIENCE_SECONDS)
        cluster.stop(holder)
        far.infer(X)
    finally:
        over.set()
        calling.join(PATIENCE_SECONDS)
    assert failed == []
    until(lambda: holder.name not in cluster.holders("n"))
    assert len(cluster.holders("n")) == 1
    late = cluster.join()
    with Client(late.address) as client:
        assert client.network("n").infer(X)["scores"].shape == (3, 4)
