"""Models and pipelines of OpenVINO Model Server's ``config.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.client import Client, errors
from tests.integration.harness import Server
from tests.support.ovms_repository import MODELS, PIPELINES, write

ONE = np.arange(10, dtype=np.float32).reshape(1, 10)
THREE = np.stack([ONE, 2 * ONE, 3 * ONE])
NINE = np.stack([THREE, 2 * THREE, 3 * THREE])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def server(file: Path) -> Iterator[Server]:
    options = ("--model-repository", str(file.parent), "--ovms-config", str(file))
    with Server("--devices", "CPU,PIPELINE", *options) as running:
        yield running
        assert running.stop() == 0, running.log()
        assert "Traceback" not in running.log(), running.log()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as made:
        yield made


def test_all_of_it_is_loaded(client: Client) -> None:
    rows = {each.name: (each.state, each.reason) for each in client.repository()}
    names = [*MODELS, *(str(each["name"]) for each in PIPELINES)]
    assert rows == dict.fromkeys(names, ("READY", ""))
    assert client.network("add_one").get_config("NUM_STREAMS") == 2


@pytest.mark.parametrize(
    ("name", "given", "answer"),
    [
        ("chain", ONE, ONE + 2),
        ("fork", ONE, 2 * ONE + 3),
        ("demultiplexer", ONE, THREE + 1),
        ("gather", ONE, 6 * ONE + 3),
        ("two_demultiplexers", ONE, NINE + 1),
        ("two_demultiplexers_and_gathers", ONE, 36 * ONE + 9),
        ("request_rows", THREE, THREE + 1),
        ("request_rows", THREE[:0], THREE[:0]),
        ("two_rows", THREE[:2], THREE[:2] + 1),
    ],
)
def test_a_pipeline_computes_what_its_nodes_compute(
    client: Client, name: str, given: np.ndarray, answer: np.ndarray
) -> None:
    found = client.network(name).infer({"numbers": given})["answer"]
    np.testing.assert_array_equal(found, answer)


def test_a_request_with_another_number_of_rows_is_refused(client: Client) -> None:
    with pytest.raises(errors.InvalidArgument, match="2"):
        client.network("two_rows").infer({"numbers": THREE})


def test_rows_are_described_with_their_axes(server: Server) -> None:
    told = json.loads(server.get("/v2/models/two_demultiplexers"))
    assert told["outputs"][0]["shape"] == [3, -1, 1, 10]
