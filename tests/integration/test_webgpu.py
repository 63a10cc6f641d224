"""A device that the configuration makes of a library with an execution provider."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx.parser import parse_model

from headrace.client import Client
from headrace.client.errors import InvalidArgument, Unavailable
from headrace.testing import networks
from headrace.testing.compare import assert_same_outputs
from tests.integration.child_processes import children
from tests.integration.harness import Server, until
from tests.support import swiftshader

pytestmark = pytest.mark.long

TOLERANCE = 1e-5
SPLIT = """<ir_version: 8, opset_import: ["": 17]>
split (float[2,2] x) => (float d) { [sum] s = Add(x, x) [positive] r = Relu(s) [det] d = Det(r) }"""


def configured(folder: Path, text: str) -> tuple[str, ...]:
    file = folder / "headrace.toml"
    file.write_text(text)
    return ("--devices", "AUTO,BATCH,CPU,HETERO,MULTI,WEBGPU", "--config", str(file))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if reason := swiftshader.lacking():
        pytest.skip(reason)
    options = configured(
        tmp_path_factory.mktemp("config"), f'[plugins.WEBGPU]\nlibrary = "{swiftshader.PACKAGE}"\n'
    )
    with Server(*options, environment=swiftshader.ENVIRONMENT) as running:
        yield running
        assert running.stop() == 0, running.log()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as connected:
        yield connected


def test_it_tells_who_made_the_device_and_the_provider(client: Client) -> None:
    assert client.get_metric("WEBGPU", "AVAILABLE_DEVICES") == ["0"]
    assert client.get_metric("WEBGPU", "DEVICE_TYPE") == "EMULATED"
    name = client.get_metric("WEBGPU", "FULL_DEVICE_NAME")
    assert isinstance(name, str)
    assert "CPU, WebGpuExecutionProvider" in name
    assert "Microsoft" in name


def test_the_library_runs_in_a_process_of_its_own(server: Server) -> None:
    assert "providers_webgpu" not in Path(f"/proc/{server.process.pid}/maps").read_text()


def test_a_network_computes_what_it_should(client: Client) -> None:
    case = networks.mlp()
    network = client.load_network(case.network.to_bytes(), device="WEBGPU", name="mlp")
    assert_same_outputs(network.infer(case.inputs), case.expected(), TOLERANCE)
    network.unload()


def test_hetero_leaves_to_cpu_what_the_provider_has_no_kernel_for(client: Client) -> None:
    model, device = parse_model(SPLIT), "HETERO:WEBGPU,CPU"
    query = client.query_network(model, device=device)
    assert query.supported_layers == {"sum": "WEBGPU", "positive": "WEBGPU", "det": "CPU"}
    network = client.load_network(model, device=device, name="split")
    found = network.infer({"x": np.array([[1, 2], [-3, 4]], np.float32)})
    assert found["d"] == pytest.approx(16.0)
    network.unload()


@pytest.mark.parametrize("device", ["AUTO:WEBGPU,CPU", "MULTI:WEBGPU,CPU", "BATCH:WEBGPU(4)"])
def test_devices_that_choose_among_others_choose_it_as_any_other(
    client: Client, device: str
) -> None:
    case = networks.mlp()
    network = client.load_network(case.network.to_bytes(), device=device, name="mlp")
    for _ in range(3):
        assert_same_outputs(network.infer(case.inputs), case.expected(), TOLERANCE)
    network.unload()


def test_a_shadow_compares_it_with_cpu(client: Client, server: Server) -> None:
    case = networks.mlp()
    network = client.load_network(case.network.to_bytes(), device="CPU", name="shadowed")
    client.set_shadow("shadowed", device="WEBGPU", percent=100)
    network.infer(case.inputs)

    def outcomes() -> set[str]:
        return {
            dict(labels)["outcome"]
            for (name, labels), count in server.scrape().items()
            if name == "headrace_shadow_requests_total" and count
        }

    until(lambda: bool(outcomes()), "the shadow's answer")
    assert outcomes() <= {"equal", "close"}
    network.unload()


def test_its_process_is_started_again_with_its_networks_and_disturbs_no_other(
    client: Client, server: Server
) -> None:
    case = networks.mlp()
    network = client.load_network(case.network.to_bytes(), device="WEBGPU", name="mlp")
    other = client.load_network(case.network.to_bytes(), device="CPU", name="other")
    (process,) = (
        each
        for each in children(server)
        if "providers_webgpu" in Path(f"/proc/{each.pid}/maps").read_text()
    )
    process.kill()

    def answers() -> bool:
        assert_same_outputs(other.infer(case.inputs), case.expected(), TOLERANCE)
        try:
            found = network.infer(case.inputs)
        except Unavailable:
            return False
        assert_same_outputs(found, case.expected(), TOLERANCE)
        return not process.is_running()

    until(answers, "the next process")
    network.unload()
    other.unload()


@pytest.mark.parametrize("key", ["PROVIDER_PACKAGE", "PROVIDER_LIBRARY", "PROVIDER_OPTIONS"])
def test_no_client_can_name_a_library_or_its_options(client: Client, key: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot be set by a client"):
        client.load_network(parse_model(SPLIT), device="WEBGPU", name="n", config={key: "/x.so"})
    with pytest.raises(InvalidArgument, match="cannot be set by a client"):
        client.set_config("WEBGPU", {key: "/x.so"})


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        ("no_such_package", "the Python package no_such_package is not installed"),
        ("json", "the Python package json has no function get_library_path()"),
        ("/nowhere/libprovider.so", "ONNX Runtime cannot load libprovider.so"),
    ],
)
def test_a_library_that_cannot_be_used_leaves_the_device_out_with_the_reason(
    tmp_path: Path, library: str, reason: str
) -> None:
    options = configured(tmp_path, f'[plugins.WEBGPU]\nlibrary = "{library}"\n')
    with Server(*options) as running, Client(running.address) as client:
        (webgpu,) = (each for each in client.devices() if each.name == "WEBGPU")
        assert reason in webgpu.reason
        assert "/nowhere" not in webgpu.reason
        assert running.stop() == 0, running.log()
