"""A model repository of Triton, served as it lies."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from headrace.client import Client
from tests.integration.harness import CALL_SECONDS, Server
from tests.support.triton_repository import ENSEMBLES, LABELS, MODELS, SIZE, write

LEFT = np.arange(2 * SIZE, dtype=np.int32).reshape(2, SIZE)
RIGHT = np.full((2, SIZE), 3, np.int32)


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("models")
    write(root)
    with Server("--devices", "CPU,BATCH,PIPELINE", "--model-repository", str(root)) as server:
        yield server
        assert server.stop() == 0, server.log()
        assert "Traceback" not in server.log(), server.log()


@pytest.fixture
def client(triton: Server) -> Iterator[Client]:
    with Client(triton.address) as made:
        yield made


def config_of(server: Server, name: str) -> Any:
    return json.loads(server.get(f"/v2/models/{name}/config"))


def post(server: Server, path: str, body: object) -> Any:
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"http://{server.http}{path}", data)
    with urllib.request.urlopen(request, timeout=CALL_SECONDS) as reply:
        return json.loads(reply.read() or "{}")


def test_all_of_it_is_loaded(client: Client) -> None:
    rows = {each.name: (each.state, each.reason) for each in client.repository()}
    assert rows == dict.fromkeys((*MODELS, *ENSEMBLES), ("READY", ""))


@pytest.mark.parametrize("name", ENSEMBLES)
def test_an_ensemble_computes_what_its_models_compute(client: Client, name: str) -> None:
    found = client.network(name).infer({"INPUT0": LEFT, "INPUT1": RIGHT})
    np.testing.assert_array_equal(found["OUTPUT0"], LEFT + RIGHT)
    np.testing.assert_array_equal(found["OUTPUT1"], LEFT - RIGHT)


def test_a_model_is_loaded_as_its_configuration_says(triton: Server, client: Client) -> None:
    network = client.network("add_sub_float")
    assert (network.info.device, network.get_metric("BATCH_SIZE")) == ("BATCH:CPU(8)", 8)
    assert network.get_config("NUM_STREAMS") == 2
    config = config_of(triton, "add_sub_float")
    batching = config["dynamic_batching"]
    assert (int(batching["default_priority_level"]), batching["preferred_batch_size"]) == (2, [8])
    (warm_up,) = config["model_warmup"]
    assert warm_up["inputs"]["INPUT1"]["random_data"]


def test_a_client_sees_the_shapes_of_dims(triton: Server, client: Client) -> None:
    network = client.network("column")
    assert str(network.info.inputs[0].shape) == "(None, 1)"
    values = np.arange(3, dtype=np.float32).reshape(3, 1)
    np.testing.assert_array_equal(network.infer({"x": values})["y"], -values)
    (told,) = config_of(triton, "column")["input"]
    assert ([int(size) for size in told["dims"]], told["reshape"]) == ([1], {"shape": []})


@pytest.mark.parametrize("name", ["add_sub_float", "column", "fan", "labelled", "nop", "simple"])
def test_a_configuration_that_the_server_gives_loads_the_same_again(
    triton: Server, client: Client, name: str
) -> None:
    given = config_of(triton, name)
    body = {"parameters": {"config": json.dumps(given)}}
    post(triton, f"/v2/repository/models/{name}/load", body)
    assert config_of(triton, name) == given
    assert client.network(name).info.state == "READY"


def test_an_ensemble_has_labels_of_its_own_or_those_of_its_models(triton: Server) -> None:
    def top(name: str) -> str:
        tensors = [
            {"name": each, "datatype": "INT32", "shape": [1, SIZE], "data": list(range(SIZE))}
            for each in ("INPUT0", "INPUT1")
        ]
        wanted = [{"name": "OUTPUT0", "parameters": {"classification": 1}}]
        body = {"inputs": tensors, "outputs": wanted}
        (output,) = post(triton, f"/v2/models/{name}/infer", body)["outputs"]
        return str(output["data"][0])

    assert top("add_sub") == f"30:15:{LABELS[15]}"
    assert top("simple") == f"30:15:{LABELS[15]}"
    assert top("labelled") == f"30:15:other {LABELS[15]}"


@pytest.mark.parametrize("name", ["simple", "sequence"])
def test_the_replies_of_a_model_and_of_an_ensemble_may_be_kept(
    triton: Server, client: Client, name: str
) -> None:
    network, kept = client.network(name), "simple" if name == "simple" else "nop"

    def hits() -> int:
        (told,) = json.loads(triton.get(f"/v2/models/{kept}/stats"))["model_stats"]
        return int(told["inference_stats"]["cache_hit"]["count"])

    network.infer({"INPUT0": LEFT, "INPUT1": LEFT})
    before = hits()
    found = network.infer({"INPUT0": LEFT, "INPUT1": LEFT})
    np.testing.assert_array_equal(found["OUTPUT0"], 2 * LEFT)
    assert hits() > before
