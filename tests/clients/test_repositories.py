"""Ensembles of Triton and pipelines of OpenVINO Model Server, served as they lie to tritonclient
and perf_analyzer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http

from tests.clients.conftest import Serving, serve, write_models
from tests.clients.test_perf_analyzer import analyze, counts, needs_perf_analyzer

SIZE = 16
LEFT = np.arange(2 * SIZE, dtype=np.int32).reshape(2, SIZE)
RIGHT = np.full((2, SIZE), 3, np.int32)
ENSEMBLES = [
    "simple",
    "labelled",
    "sequence",
    "fan",
    "mixed_types",
    "batch_and_nobatch",
    "nobatch_and_batch",
]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("repository")
    write_models("tests/support/triton_repository.py", folder)
    options = ("--devices", "CPU,BATCH,PIPELINE", "--model-repository", str(folder))
    yield from serve(options, {})


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """The models and pipelines of a configuration of OpenVINO Model Server."""
    folder = tmp_path_factory.mktemp("repository")
    write_models("tests/support/ovms_repository.py", folder)
    options = ("--devices", "CPU,PIPELINE", "--model-repository", str(folder))
    yield from serve((*options, "--ovms-config", str(folder / "config.json")), {})


def inputs(kind: Any) -> list[Any]:
    made = []
    for name, value in (("INPUT0", LEFT), ("INPUT1", RIGHT)):
        each = kind.InferInput(name, list(value.shape), "INT32")
        each.set_data_from_numpy(value)
        made.append(each)
    return made


@pytest.mark.parametrize("name", ENSEMBLES)
@pytest.mark.parametrize("kind", [triton, triton_http])
def test_an_ensemble_adds_and_subtracts(repository: Serving, kind: Any, name: str) -> None:
    address = repository.grpc if kind is triton else repository.http
    with kind.InferenceServerClient(address) as client:
        assert client.is_model_ready(name)
        result = client.infer(name, inputs(kind))
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), LEFT + RIGHT)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), LEFT - RIGHT)


def test_an_ensemble_names_its_models_and_classes(repository: Serving) -> None:
    with triton.InferenceServerClient(repository.grpc) as client:
        config = client.get_model_config("fan").config
        assert config.platform == "ensemble"
        steps = [step.model_name for step in config.ensemble_scheduling.step]
        assert sorted(steps) == ["add_sub", "nop", "nop", "nop", "nop"]
        wanted = triton.InferRequestedOutput("OUTPUT0", class_count=1)
        found = client.infer("simple", inputs(triton), outputs=[wanted]).as_numpy("OUTPUT0")
    assert found[1].tolist() == [b"34:15:label 15"]


@needs_perf_analyzer
@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("name", ["fan", "mixed_types", "add_sub_float"])
def test_perf_analyzer_runs(repository: Serving, binaries: Path, protocol: str, name: str) -> None:
    options = ("-m", name, "-b", "2", "--concurrency-range", "4")
    printed = analyze(repository, binaries, protocol, *options)
    (requests,), (rows,) = (
        counts(printed, "Successful request count")[:1],
        counts(printed, "Inference count")[:1],
    )
    assert rows == 2 * requests > 0


@pytest.mark.parametrize("kind", [triton, triton_http])
def test_nodes_that_split_and_gather_work(pipelines: Serving, kind: Any) -> None:
    address = pipelines.grpc if kind is triton else pipelines.http
    numbers = np.arange(10, dtype=np.float32).reshape(1, 10)
    given = kind.InferInput("numbers", [1, 10], "FP32")
    given.set_data_from_numpy(numbers)
    with kind.InferenceServerClient(address) as client:
        rows = client.infer("two_demultiplexers", [given]).as_numpy("answer")
        total = client.infer("two_demultiplexers_and_gathers", [given]).as_numpy("answer")
    factors = np.outer([1, 2, 3], [1, 2, 3]).astype(np.float32)
    np.testing.assert_array_equal(rows, factors[:, :, None, None] * numbers + 1)
    np.testing.assert_array_equal(total, 36 * numbers + 9)


@needs_perf_analyzer
@pytest.mark.parametrize("name", ["demultiplexer", "gather", "two_demultiplexers_and_gathers"])
def test_perf_analyzer_runs_pipelines(pipelines: Serving, binaries: Path, name: str) -> None:
    printed = analyze(pipelines, binaries, "grpc", "-m", name, "--concurrency-range", "4")
    assert counts(printed, "Successful request count")[0] > 0
