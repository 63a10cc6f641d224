"""Kept replies over real sockets: one cache for all protocols, and one for each identity."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.client import Client, errors
from headrace.oip import open_inference_pb2 as oip
from headrace.oip import open_inference_pb2_grpc as oip_rpc
from headrace.testing import networks
from headrace.testing.case import parse
from tests.integration.harness import CALL_SECONDS, Server, assert_settled, changes
from tests.integration.test_rest import ask, tensor, told
from tests.integration.test_shared_memory import got, in_region, infer, put, region
from tests.support.open_inference import infer_request, outputs_of
from tests.support.stateful import SUM, SUM_STATES
from tests.support.tokens import entry

CASE = networks.add()
X, Y = (np.asarray(CASE.inputs[name]) for name in ("x", "y"))
CACHED = {"RESPONSE_CACHE": "YES"}
DOUBLE = parse("double (float[n,m] x) => (float[n,m] y) { y = Add(x, x) }").SerializeToString()
TRIPLE = parse("triple (float[n,m] x) => (float[n,m] y) { d = Add(x, x) y = Add(d, x) }")
DRAWS = parse("draws (float[n] x) => (float[n] y) { y = RandomNormalLike(x) }")
ONES = np.ones((2, 3), np.float32)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    for version, model in (("1", DOUBLE), ("2", TRIPLE.SerializeToString())):
        (root / "stored" / version).mkdir(parents=True)
        (root / "stored" / version / "model.onnx").write_bytes(model)
    text = 'version_policy = "all"\ntraffic = {1 = 50, 2 = 50}\n[config]\nRESPONSE_CACHE = "YES"\n'
    (root / "stored" / "network.toml").write_text(text)
    return root


@pytest.fixture(scope="module")
def serving(repository: Path) -> Iterator[Server]:
    options = ("--allow-client-shared-memory", "--model-repository", str(repository))
    with Server("--devices", "CPU,BATCH", *options) as running:
        yield running
        assert_settled(running)
        assert running.stop() == 0, running.log()
        assert "Traceback" not in running.log(), running.log()


@pytest.fixture
def client(serving: Server) -> Iterator[Client]:
    with Client(serving.address) as made:
        yield made


def counted(server: Server, network: str, **labels: str) -> dict[str, float]:
    name = "headrace_network_response_cache"
    return {
        what: server.total(f"{name}_{what}_total", network=network, **labels)
        for what in ("hits", "misses", "skipped", "evicted")
    }


def statistics(server: Server, network: str) -> Any:
    stub: Any = oip_rpc.GRPCInferenceServiceStub(server.channel)  # type: ignore[no-untyped-call]
    reply = stub.ModelStatistics(oip.ModelStatisticsRequest(name=network), timeout=CALL_SECONDS)
    (stats,) = reply.model_stats
    return stats


def test_all_protocols_share_the_kept_replies(serving: Server, client: Client) -> None:
    serving.load(CASE, "CPU", "shared", CACHED)
    network = client.network("shared")
    np.testing.assert_array_equal(network.infer(CASE.inputs)["z"], X + Y)
    stub: Any = oip_rpc.GRPCInferenceServiceStub(serving.channel)  # type: ignore[no-untyped-call]
    reply = stub.ModelInfer(infer_request("shared", CASE.inputs), timeout=CALL_SECONDS)
    np.testing.assert_array_equal(outputs_of(reply)["z"], X + Y)
    inputs = [tensor(name, array, data=array.tolist()) for name, array in (("x", X), ("y", Y))]
    status, _, body = ask(serving, "POST", "/v2/models/shared/infer", {"inputs": inputs})
    assert status == 200, body
    np.testing.assert_allclose(json.loads(body)["outputs"][0]["data"], (X + Y).reshape(-1))
    assert counted(serving, "shared") == {"hits": 2, "misses": 1, "skipped": 0, "evicted": 0}
    assert network.get_metric("RESPONSE_CACHE_HITS") == 2
    assert network.get_config("RESPONSE_CACHE") is True
    serving.unload("shared")
    assert serving.total("headrace_network_response_cache_hits_total", network="shared") == 0


def test_statistics_tell_kept_replies_as_perf_analyzer_reads_them(
    serving: Server, client: Client
) -> None:
    serving.load(CASE, "CPU", "told", CACHED)
    for _ in range(3):
        client.network("told").infer(CASE.inputs)
    stats = statistics(serving, "told")
    told_of = stats.inference_stats
    assert (stats.inference_count, stats.execution_count) == (3, 1)
    assert (told_of.success.count, told_of.queue.count) == (3, 3)
    assert (told_of.cache_hit.count, told_of.cache_miss.count) == (2, 1)
    assert told_of.cache_hit.ns > 0
    assert told_of.cache_miss.ns > 0
    assert told_of.compute_infer.count == 1
    (over_rest,) = told(serving, "/v2/models/told/stats")["model_stats"]
    assert int(over_rest["inference_stats"]["cache_hit"]["count"]) == 2
    (row,) = client.status("told")["networks"]
    shown = {each["name"]: each["value"] for each in row["series"]}
    assert shown["network_response_cache_hits_total"] == 2  # as `headrace status` reads it
    serving.unload("told")


def test_a_stream_gets_kept_replies(serving: Server, client: Client) -> None:
    serving.load(CASE, "CPU", "streamed", CACHED)
    network = client.network("streamed")
    requests = [network.start_async(CASE.inputs) for _ in range(20)]
    for each in requests:
        np.testing.assert_array_equal(each.result()["z"], X + Y)
    found = counted(serving, "streamed")
    assert (found["hits"], found["misses"]) == (19, 1)
    serving.unload("streamed")


def test_large_tensors_are_kept_too(serving: Server, client: Client) -> None:
    client.load_network(DOUBLE, device="CPU", config=CACHED, name="large")
    large = np.random.default_rng(1).random((512, 512), np.float32)
    for _ in range(2):
        found = client.network("large").infer({"x": large})
        np.testing.assert_array_equal(found["y"], large + large)
    assert counted(serving, "large")["hits"] == 1
    serving.unload("large")


def test_a_replaced_network_gives_no_reply_of_the_one_before(client: Client) -> None:
    client.load_network(DOUBLE, device="CPU", config=CACHED, name="replaced")
    assert client.network("replaced").infer({"x": ONES})["y"][0, 0] == 2
    client.load_network(TRIPLE, device="CPU", config=CACHED, name="replaced", replace=True)
    assert client.network("replaced").infer({"x": ONES})["y"][0, 0] == 3
    client.network("replaced").unload()


def test_versions_have_replies_of_their_own(serving: Server, client: Client) -> None:
    network = client.network("stored")
    found = [network.infer({"x": ONES})["y"][0, 0] for _ in range(4)]
    assert sorted(found) == [2, 2, 3, 3]
    for version in ("1", "2"):
        told_of = counted(serving, "stored", version=version)
        assert (told_of["hits"], told_of["misses"]) == (1, 1)


def test_a_kept_reply_is_written_to_a_region(serving: Server, client: Client) -> None:
    client.load_network(DOUBLE, device="CPU", config=CACHED, name="region")
    shape = ONES.shape
    for value, hits in ((1, 0), (1, 1), (5, 1), (5, 2)):
        with region(serving, 2 * ONES.nbytes) as (name, made):
            put(made, 0, value * ONES)
            infer(serving, in_region("region", shape, name, ONES.nbytes))
            np.testing.assert_array_equal(got(made, ONES.nbytes, ONES), 2 * value * ONES)
        assert counted(serving, "region")["hits"] == hits
    serving.unload("region")


def test_batches_have_only_what_is_not_kept(serving: Server, client: Client) -> None:
    client.load_network(DOUBLE, device="BATCH:CPU(4)", config=CACHED, name="batched")
    for _ in range(3):
        client.network("batched").infer({"x": ONES})
    stats = statistics(serving, "batched")
    assert (stats.execution_count, stats.inference_count) == (1, 6)
    assert counted(serving, "batched")["hits"] == 2
    serving.unload("batched")


@pytest.mark.parametrize(
    ("model", "config", "message"),
    [
        (DRAWS, CACHED, "random numbers"),
        (SUM, {**CACHED, "STATES": SUM_STATES}, "keeps states"),
        (SUM, {"RESPONSE_CACHE_BYTES": "5"}, "give RESPONSE_CACHE=YES too"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    client: Client, model: Any, config: dict[str, str], message: str
) -> None:
    with pytest.raises(errors.InvalidArgument, match=message):
        client.load_network(model, device="CPU", config=config, name="refused")


def test_the_bound_of_the_server_is_told(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text("".join(entry(name, name * 20, "manage") for name in ("anna", "bert")))
    options = ("--max-response-cache-bytes", "1 MiB", "--tokens", str(tokens), "--open-metrics")
    with (
        Server("--devices", "CPU", *options) as server,
        Client(server.address, token="anna" * 20) as anna,
        Client(server.address, token="bert" * 20) as bert,
    ):
        network = anna.load_network(CASE.model, device="CPU", config=CACHED, name="add")
        (note,) = changes(network.info)
        assert "at most 1048576 bytes" in note
        for client in (anna, bert, anna):
            client.network("add").infer(CASE.inputs)
        assert counted(server, "add")["misses"] == 2
        assert counted(server, "add")["hits"] == 1
