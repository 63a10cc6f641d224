"""Execution providers of PyPI by configuration alone: `make test-providers`.

They are no part of `make test`: one is a pre-release, and the other wants an older ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from headrace.client import Client
from headrace.testing import networks
from headrace.testing.case import Case
from headrace.testing.compare import assert_same_outputs
from tests.integration.harness import Server

TOLERANCE = {"NXRT": 1e-4, "GGML": 1e-2}
"""ggml's products have some three digits."""
PACKAGE = 'library = "nxrt_ep_cpu"'
FILE = """library = "{}/lib/libonnxruntime_ggml.so"
config = {{PROVIDER_OPTIONS = "partial=1;weights=f32"}}"""


@pytest.fixture(scope="module", params=["NXRT", "GGML"])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def client(device: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    found = find_spec("onnxruntime_ggml")
    assert found is not None
    assert found.origin is not None
    table = {"NXRT": PACKAGE, "GGML": FILE.format(Path(found.origin).parent)}[device]
    file = tmp_path_factory.mktemp("config") / "headrace.toml"
    file.write_text(f"[plugins.{device}]\n{table}\n")
    options = ("--devices", f"CPU,HETERO,{device}", "--config", str(file))
    with Server(*options) as server, Client(server.address) as connected:
        yield connected
        assert server.stop() == 0, server.log()


def test_a_network_computes_what_it_should(client: Client, device: str) -> None:
    case = networks.add()
    network = client.load_network(case.network.to_bytes(), device=device, name=case.name)
    assert_same_outputs(network.infer(case.inputs), case.expected(), TOLERANCE[device])
    network.unload()


@pytest.mark.parametrize(
    "case", [networks.mlp(), networks.image(), networks.transformer(), networks.fragile()], ids=str
)
def test_hetero_shares_a_network_with_cpu(client: Client, device: str, case: Case) -> None:
    query = client.query_network(case.model, device=f"HETERO:{device},CPU")
    assert device in query.supported_layers.values()
    network = client.load_network(case.model, device=f"HETERO:{device},CPU", name=case.name)
    assert_same_outputs(network.infer(case.inputs), case.expected(), TOLERANCE[device])
    network.unload()
