"""Networks larger than the 2 GiB that one protobuf message may have: `make test-large`.

Takes some minutes, 5 GB of disk for temporary files and 12 GB of memory.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from headrace.client import Client, Network
from headrace.client.errors import InvalidArgument
from tests.integration.harness import Server, changes

pytestmark = pytest.mark.timeout(900)

_SIZE, _LAYERS = 8192, 9
_SECONDS = 600.0
_CONFIG = """
devices = "APART,CPU,OPENVINO,TEMPLATE"
[plugins.APART]
device = "CPU"
[plugins.APART.config]
ISOLATION = "PROCESS"
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the network ``large``, whose weights are external data."""
    folder = tmp_path_factory.mktemp("repository") / "large"
    folder.mkdir()
    tensors = []
    rng = np.random.default_rng(0)
    with (folder / "weights").open("wb") as file:
        for layer in range(_LAYERS):
            tensor = TensorProto(
                name=f"w{layer}",
                dims=[_SIZE, _SIZE],
                data_type=TensorProto.FLOAT,
                data_location=TensorProto.EXTERNAL,
            )
            places = {"location": "weights", "offset": file.tell(), "length": 4 * _SIZE**2}
            for key, value in places.items():
                tensor.external_data.add(key=key, value=str(value))
            tensors.append(tensor)
            file.write((rng.random((_SIZE, _SIZE), np.float32) - 0.5).data)
        assert file.tell() > 2**31
    nodes = [
        helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"x{layer + 1}"], name=f"m{layer}")
        for layer in range(_LAYERS)
    ]
    shape: list[str | int | None] = ["N", _SIZE]
    inputs = [helper.make_tensor_value_info("x0", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info(f"x{_LAYERS}", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(nodes, "large", inputs, outputs, tensors)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, folder / "model.onnx")
    return folder.parent


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(1).random((1, _SIZE), np.float32)


@pytest.fixture(scope="module")
def expected(repository: Path, x: np.ndarray) -> np.ndarray:
    weights = np.memmap(repository / "large" / "weights", np.float32, "r")
    for layer in weights.reshape(_LAYERS, _SIZE, _SIZE):
        x = x @ layer
    return x


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = tmp_path_factory.mktemp("config") / "headrace.toml"
    config.write_text(_CONFIG, "utf-8")
    with Server(
        "--config",
        str(config),
        "--model-repository",
        str(repository),
        "--max-model-bytes",
        "3 GiB",
        "--max-uploads-bytes",
        "6 GiB",
    ) as server:
        with Client(server.address) as client:  # it was loaded at the start
            client.network("large").unload()
        yield server
        assert server.stop() == 0, server.log()


def assert_right(network: Network, x: np.ndarray, expected: np.ndarray) -> None:
    (found,) = network.infer({"x0": x}).values()
    assert isinstance(found, np.ndarray)
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("device", ["CPU", "APART", "OPENVINO", "TEMPLATE"])
def test_devices_compute_it(
    server: Server, device: str, x: np.ndarray, expected: np.ndarray
) -> None:
    if device == "OPENVINO":
        pytest.importorskip("openvino")
    with Client(server.address, timeout=_SECONDS) as client:
        network = client.load_network(repository="large", device=device, name="n")
        assert_right(network, x, expected)
        assert not changes(network)
        network.unload()
    assert "Traceback" not in server.log(), server.log()


def test_what_is_exported_can_be_imported(
    server: Server, x: np.ndarray, expected: np.ndarray
) -> None:
    with Client(server.address, timeout=_SECONDS) as client:
        network = client.load_network(repository="large", device="CPU", name="n")
        blob = network.export()
        network.unload()
        again = client.import_network(blob, name="again")
        del blob
        assert_right(again, x, expected)
        again.unload()


def test_a_client_sends_the_weights_beside_a_model(
    server: Server, repository: Path, x: np.ndarray, expected: np.ndarray
) -> None:
    """More than two GiB of them, and never all in memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Client(server.address, timeout=_SECONDS) as client:
        network = client.load_network(repository / "large" / "model.onnx", device="CPU", name="n")
        assert_right(network, x, expected)
        network.unload()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 256 * 1024, "kilobytes"


def test_more_weights_than_the_server_takes_are_refused_while_they_are_sent(
    server: Server, tmp_path: Path
) -> None:
    size = 2**40
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(size)
    weight = TensorProto(name="w", dims=[size], data_type=TensorProto.INT8)
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="weights")
    graph = helper.make_graph([], "sparse", [], [], [weight])
    onnx.save(helper.make_model(graph), tmp_path / "model.onnx")
    with (
        Client(server.address, timeout=_SECONDS) as client,
        pytest.raises(InvalidArgument, match="max_model_bytes"),
    ):
        client.load_network(tmp_path / "model.onnx", device="CPU", name="sparse")


def test_a_client_is_told_what_to_do(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        file.truncate(3 * 2**30 + 1)
    with (
        Client(server.address, timeout=_SECONDS) as client,
        pytest.raises(InvalidArgument, match=r"max_model_bytes.*model repository"),
    ):
        client.load_network(path, device="CPU")
