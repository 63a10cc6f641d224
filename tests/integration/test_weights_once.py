"""The weights of a network are in memory once, however often the network is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.client import Client
from headrace.testing.case import parse
from tests.integration.harness import Server, until

SIDE = 2048
WEIGHT_BYTES = 2 * SIDE * SIDE * 4
FEW_BYTES = WEIGHT_BYTES // 5  # what a copy takes beside weights: its layers, threads and arena
TEXT = f"""m (float[N,{SIDE}] x) => (float[N,{SIDE}] y) {{
    [first] middle = MatMul(x, v)
    [relu] positive = Relu(middle)
    [second] y = MatMul(positive, w)
}}"""
X = {"x": np.random.default_rng(1).standard_normal((4, SIDE)).astype(np.float32)}


@pytest.fixture(scope="module")
def model() -> bytes:
    """Two products with 16 MiB of weights each, which the backend packs."""
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal((SIDE, SIDE)).astype(np.float32) for name in "vw"}
    return parse(TEXT, weights).SerializeToString()


def processes(process: int) -> Iterator[str]:
    """A process, and all that come from it."""
    yield str(process)
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        for child in lines_of(children):
            for each in child.split():
                yield from processes(int(each))


def memory(server: Server) -> int:
    """The proportional set size of the server and its workers, in bytes."""
    rollups = [Path(f"/proc/{each}/smaps_rollup") for each in processes(server.process.pid)]
    lines = [line for each in rollups for line in lines_of(each)]
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def lines_of(file: Path) -> list[str]:
    """A file's lines; none if its process or thread has ended."""
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def answer(server: Server, name: str, version: str = "") -> Any:
    with Client(server.address) as client:
        return client.network(name, version).infer(X)["y"]


def counted(server: Server, name: str) -> int:
    """What a network counts for in the memory budget."""
    with Client(server.address) as client:
        return next(each.info.memory_bytes for each in client.networks() if each.name == name)


def load(server: Server, model: bytes, name: str, device: str = "CPU", **options: Any) -> Any:
    with Client(server.address) as client:
        client.load_network(model, device, name=name, **options)
    return answer(server, name)


def clean_stop(server: Server) -> None:
    assert server.stop() == 0, server.log()
    assert "Traceback" not in server.log(), server.log()
    assert "weights" not in server.log(), server.log()


@pytest.mark.parametrize(
    ("device", "options", "how"),
    [
        ("CPU", ("--devices", "CPU"), {}),
        ("CPU", ("--devices", "CPU", "--isolate-devices"), {}),
        (
            "HETERO:CPU,TEMPLATE",
            ("--devices", "CPU,TEMPLATE,HETERO"),
            {"affinities": {"first": "CPU", "relu": "TEMPLATE", "second": "CPU"}},
        ),
    ],
    ids=["in the server", "isolated", "parts"],
)
def test_a_copy_under_another_name_takes_little_memory_and_answers_the_same_bits(
    model: bytes, device: str, options: tuple[str, ...], how: Mapping[str, Any], tmp_path: Path
) -> None:
    budget = ("--memory-budget", "100%")
    with Server(*options, *budget, "--cache-dir", str(tmp_path)) as server:
        before = memory(server)
        plain = load(server, model, "plain", device, config={"CACHE_DIR": ""}, **how)
        server.unload("plain")
        first = load(server, model, "first", device, **how)
        there = memory(server)
        assert there - before > WEIGHT_BYTES * 3 // 4, "the weights are not in memory"
        second = load(server, model, "second", device, **how)
        until(lambda: memory(server) - there < FEW_BYTES, "a copy was to share the weights")
        np.testing.assert_array_equal(first, plain)
        np.testing.assert_array_equal(second, plain)
        until(lambda: counted(server, "first") >= WEIGHT_BYTES, "the first one was to be measured")
        server.unload("first")
        until(lambda: counted(server, "second") >= WEIGHT_BYTES, "the copy was to count for them")
        np.testing.assert_array_equal(answer(server, "second"), plain)
        clean_stop(server)


def test_versions_of_the_same_model_share_its_weights(model: bytes, tmp_path: Path) -> None:
    def add(version: int) -> None:
        made = tmp_path / "made"
        made.mkdir()
        (made / "model.onnx").write_bytes(model)
        made.rename(repository / "net" / str(version))

    def ready() -> set[str]:
        with Client(server.address) as client:
            return {each.version for each in client.networks() if each.info.state == "READY"}

    repository = tmp_path / "repository"
    (repository / "net").mkdir(parents=True)
    (repository / "net" / "network.toml").write_text('device = "CPU"\nversion_policy = "all"\n')
    add(1)
    options = ("--model-repository", str(repository), "--repository-poll-seconds", "0.1")
    cache = str(tmp_path / "cache")
    with Server("--devices", "CPU", "--cache-dir", cache, *options) as server:
        first = answer(server, "net", "1")
        there = memory(server)
        add(2)
        until(lambda: ready() == {"1", "2"}, "version 2 was to be loaded")
        np.testing.assert_array_equal(answer(server, "net", "2"), first)
        until(lambda: memory(server) - there < FEW_BYTES, "a version was to share the weights")
        clean_stop(server)


def test_a_later_server_maps_what_an_earlier_one_wrote(model: bytes, tmp_path: Path) -> None:
    cache, key = str(tmp_path / "cache"), str(tmp_path / "key")
    options = ("--devices", "CPU", "--cache-dir", cache, "--mac-key-file", key)
    with Server(*options) as server:
        plain = load(server, model, "m")
        server.kill()
    (file,) = (tmp_path / "cache" / "weights").iterdir()
    made = file.stat().st_ino
    with Server(*options) as server:
        np.testing.assert_array_equal(load(server, model, "m"), plain)
        assert file.stat().st_ino == made
        clean_stop(server)


def test_without_a_cache_no_file_is_written(model: bytes, tmp_path: Path) -> None:
    with Server("--devices", "CPU", environment={"TMPDIR": str(tmp_path)}) as server:
        load(server, model, "m")
        assert not [*tmp_path.glob("**/*.weights")]
        clean_stop(server)
