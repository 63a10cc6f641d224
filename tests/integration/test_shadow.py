"""A shadow of a running server's network: requests of every protocol, clients, and metrics."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from headrace.client import Client, aio, errors
from headrace.client.cli.app import make_app
from headrace.oip import open_inference_pb2_grpc as oip_grpc
from headrace.testing.case import parse
from tests.integration.harness import BASIC, CALL_SECONDS, Server, until
from tests.support.manual import blocks, commands
from tests.support.open_inference import infer_request

X = np.array([1, 2], np.float32)
ALL = 100
DEVICES = ("--devices", "CPU,TEMPLATE,AUTO,MULTI,HETERO,BATCH,PIPELINE")


def adds(*weights: float) -> bytes:
    text = "m (float[2] x) => (float[2] y) { y = Add(x, w) }"
    model: onnx.ModelProto = parse(text, {"w": np.array(weights, np.float32)})
    return model.SerializeToString()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("repository")
    for name, weights in (
        ("m/1", (3, 4)),
        ("m/2", (3, 4.5)),
        ("classifier/2", (3, 4)),
        ("classifier/3", (3, 4)),
    ):
        folder = root / name
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(adds(*weights))
    text = 'version_policy = "all"\n[traffic]\n1 = 100\n[shadow]\nversion = 2\npercent = 100\n'
    (root / "m" / "network.toml").write_text(text)
    (_, described) = blocks("docs/run/shadow.md", "toml")
    (root / "classifier" / "network.toml").write_text(described)
    with Server(*DEVICES, "--model-repository", str(root)) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client


class Counted:
    """The shadow's outcomes from now on."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._before = self._now()

    def become(self, **counts: int) -> None:
        def are_counted() -> bool:
            more = {outcome: n - self._before.get(outcome, 0) for outcome, n in self._now().items()}
            return {outcome: n for outcome, n in more.items() if n} == counts

        until(are_counted, f"the outcomes were to be {counts}")

    def _now(self) -> dict[str, float]:
        return {
            dict(labels)["outcome"]: value
            for (name, labels), value in self._server.scrape().items()
            if name == "headrace_shadow_requests_total"
        }


def test_the_requests_of_every_protocol_are_compared_as_the_description_says(
    server: Server, client: Client
) -> None:
    counted = Counted(server)
    assert client.network("m").infer({"x": X})["y"].tolist() == [4, 6]
    counted.become(differs=1)
    stub = oip_grpc.GRPCInferenceServiceStub(server.channel)  # type: ignore[no-untyped-call]
    stub.ModelInfer(infer_request("m", {"x": X}), timeout=CALL_SECONDS)
    counted.become(differs=2)
    tensor = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}
    body = json.dumps({"inputs": [tensor]}).encode()
    url = f"http://{server.http}/v2/models/m/infer"
    with urllib.request.urlopen(url, body, timeout=CALL_SECONDS) as reply:
        assert json.load(reply)["outputs"][0]["data"] == [4, 6]
    counted.become(differs=3)
    assert list(client.network("m").infer_many([{"x": X}]))
    counted.become(differs=4)


def test_clients_and_the_command_line_set_and_end_a_shadow(server: Server, client: Client) -> None:
    counted = Counted(server)
    client.set_shadow("m", percent=0)
    client.network("m").infer({"x": X})
    client.set_shadow("m", 1, percent=ALL)
    client.network("m", "2").infer({"x": X})
    counted.become(differs=1)

    async def end() -> None:
        async with aio.Client(server.address) as client:
            await client.set_shadow("m", percent=0)

    asyncio.run(end())
    arguments = ["shadow", "m", "--device", "TEMPLATE", "--percent", "100"]
    arguments += ["--server", server.address]
    result = CliRunner().invoke(make_app(arguments), arguments)
    assert result.exit_code == 0, result.output
    assert [each.device for each in client.networks() if each.name == "m.shadow"] == ["TEMPLATE"]
    client.network("m").infer({"x": X})
    counted.become(differs=1, equal=1)
    client.set_shadow("m", 2, percent=ALL)
    gone = lambda: all(each.name != "m.shadow" for each in client.networks())  # noqa: E731
    until(gone, "it was to be unloaded")


def serves(client: Client) -> dict[str, int]:
    """The shares of the requests to `classifier`."""
    rows = (row for row in client.repository() if row.name == "classifier" and row.share)
    return {row.version: row.share for row in rows}


def test_the_manuals_commands_set_shadows_and_end_them(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_SERVER", server.address)
    said = [
        ["TEMPLATE" if word == "OPENVINO" else word for word in words]
        for words in commands("docs/run/shadow.md")
    ]
    assert len(said) == 8
    serving = [serves(client)]
    for words in said:
        result = CliRunner().invoke(make_app(words), words)
        assert result.exit_code == 0, result.output
        serving.append(serves(client))
    # Callers get version 3 by the last commands but one.
    assert serving == [{"2": 100}] * 6 + [{"2": 90, "3": 10}] + [{"3": 100}] * 2
    gone = lambda: all(each.name != "classifier.shadow" for each in client.networks())  # noqa: E731
    until(gone, "it was to be unloaded")


@pytest.mark.parametrize("device", ["AUTO:TEMPLATE", "MULTI:TEMPLATE", "HETERO:TEMPLATE"])
def test_a_shadow_may_be_on_a_device_that_uses_others(
    server: Server, client: Client, device: str
) -> None:
    counted = Counted(server)
    client.set_shadow("classifier", device=device, percent=ALL)
    try:
        client.network("classifier").infer({"x": X})
        counted.become(equal=1)
    finally:
        client.set_shadow("classifier", percent=0)


def test_a_shadow_that_cannot_be_names_its_fault(client: Client) -> None:
    with pytest.raises(errors.NotFound, match="no version '7'; it has 1, 2"):
        client.set_shadow("m", 7)
    with pytest.raises(errors.NotFound, match="did you mean 'TEMPLATE'"):
        client.set_shadow("m", device="TEMPLAT")
    with pytest.raises(errors.InvalidArgument, match="one of them"):
        client.set_shadow("m", 1, "CPU")
    with pytest.raises(errors.NotFound, match="'n'"):
        client.set_shadow("n", 1)
    with pytest.raises(errors.Error, match="not a pipeline"):
        client.set_shadow("m", device="PIPELINE")


def test_a_clients_shadow_outlives_a_restart_and_ends_with_its_network(tmp_path: Path) -> None:
    options = (*BASIC, "--state-dir", str(tmp_path / "state"))

    def shadow(client: Client) -> Any:
        (row,) = (row for row in client.status()["networks"] if row["name"] == "m")
        return row["shadow"]

    with Server(*options) as server, Client(server.address) as client:
        client.load_network(adds(3, 4), "TEMPLATE", name="m")
        client.set_shadow("m", device="TEMPLATE", percent=ALL)
        assert server.stop() == 0
    with Server(*options) as server, Client(server.address) as client:

        def compares() -> bool:
            client.network("m").infer({"x": X})  # the first one loads it, if the start did not
            return bool(shadow(client)["requests"]["equal"])

        until(compares, "it was to be loaded and to compare")
        told = shadow(client)
        counts = told.pop("requests")
        assert told == {"version": "", "device": "TEMPLATE", "percent": ALL}
        assert counts["close"] == counts["differs"] == counts["failed"] == 0
        client.network("m").unload()
        client.load_network(adds(3, 4), "TEMPLATE", name="m")
        assert shadow(client) is None
        assert server.stop() == 0
    with Server(*options) as server, Client(server.address) as client:
        assert shadow(client) is None
