"""Pipelines of a model repository and of clients, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import grpc
import numpy as np
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from typer.testing import CliRunner, Result

from headrace.client import Client, errors
from headrace.client.aio import Client as AsyncClient
from headrace.client.cli.app import make_app
from headrace.oip import open_inference_pb2 as oip
from headrace.oip.open_inference_pb2_grpc import GRPCInferenceServiceStub
from headrace.server.settings.sources import load_settings
from headrace.testing.case import parse
from tests.integration.harness import Server, until
from tests.support.cluster import Cluster
from tests.support.manual import blocks
from tests.support.open_inference import infer_request, outputs_of

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
DEVICES = ("--devices", "CPU,BATCH,PIPELINE")
NEG = parse("neg (float[N,2] x) => (float[N,2] y) { y = Neg(x) }").SerializeToString()
FIND = parse(
    """find (float[N,2] x) => (float[N,2] rows, bool any) {
        rows = Abs(x)
        sum = ReduceSum<keepdims = 0>(rows)
        zero = Constant<value_float = 0.0>()
        any = Greater(sum, zero)
    }"""
).SerializeToString()
FIND_AND_READ = """
[[step]]
name = "find"
model = "find.onnx"
inputs = {x = "page"}
outputs = {crops = "rows", found = "any"}

[[step]]
name = "read"
network = "neg"
each = "crops"
when = "found"
inputs = {x = "crops"}
outputs = {texts = "y"}

[outputs]
texts = "texts"
"""
AROUND = """
[[step]]
name = "inner"
network = "pages"
inputs = {page = "page"}
outputs = {texts = "texts"}

[outputs]
texts = "texts"
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
ensemble_scheduling {
  step [
    { model_name: "zneg" model_version: -1
      input_map { key: "x" value: "IN" } output_map { key: "y" value: "middle" } },
    { model_name: "zneg" model_version: 1
      input_map { key: "x" value: "middle" } output_map { key: "y" value: "OUT" } }
  ]
}
"""
PAGE = np.array([[1, -2], [3, 4], [-5, 6]], np.float32)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In the order of their names, the pipelines come before what they need."""
    root = tmp_path_factory.mktemp("repository")
    for name in ("around", "ensemble/1", "pages", "zneg"):
        (root / name).mkdir(parents=True)
    (root / "ensemble" / "config.pbtxt").write_text(ENSEMBLE)
    (root / "around" / "pipeline.toml").write_text(AROUND)
    (root / "pages" / "find.onnx").write_bytes(FIND)
    (root / "pages" / "pipeline.toml").write_text(FIND_AND_READ.replace('"neg"', '"zneg"'))
    (root / "zneg" / "model.onnx").write_bytes(NEG)
    return root


@pytest.fixture(scope="module")
def pipelines(repository: Path) -> Iterator[Server]:
    with Server(*DEVICES, "--model-repository", str(repository)) as server:
        yield server
        assert server.stop() == 0, server.log()
        assert "Traceback" not in server.log(), server.log()


@pytest.fixture
def client(pipelines: Server) -> Iterator[Client]:
    with Client(pipelines.address) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as a client has it: a pipeline, and the model of a step."""
    own = tmp_path / "mine"
    own.mkdir()
    (own / "find.onnx").write_bytes(FIND)
    (own / "pipeline.toml").write_text(FIND_AND_READ.replace('"neg"', '"zneg"'))
    return own


def test_a_server_is_ready_when_the_pipelines_of_its_repository_are(client: Client) -> None:
    states = {each.name: (each.info.state, each.info.device) for each in client.networks()}
    assert states == {
        "around": ("READY", "PIPELINE"),
        "ensemble": ("READY", "PIPELINE"),
        "pages": ("READY", "PIPELINE"),
        "zneg": ("READY", "CPU"),
    }
    found = client.network("around").infer({"page": PAGE})
    np.testing.assert_array_equal(found["texts"], -np.abs(PAGE))
    nothing = client.network("pages").infer({"page": np.zeros_like(PAGE)})
    assert nothing["texts"].shape == (0, 2)


def test_an_ensemble_of_triton_s_is_served_as_it_lies(client: Client) -> None:
    ensemble = client.network("ensemble")
    np.testing.assert_array_equal(ensemble.infer({"IN": PAGE})["OUT"], PAGE)
    with pytest.raises(errors.InvalidArgument, match="4"):
        ensemble.infer({"IN": np.zeros((5, 2), np.float32)})


def test_an_ensemble_describes_itself_as_one(pipelines: Server) -> None:
    config = json.loads(pipelines.get("/v2/models/ensemble/config"))
    assert (config["platform"], config["max_batch_size"]) == ("ensemble", 4)
    steps = config["ensemble_scheduling"]["step"]
    assert [(each["model_name"], int(each["model_version"])) for each in steps] == [
        ("zneg", -1),
        ("zneg", 1),
    ]
    assert "ensemble_scheduling" not in json.loads(pipelines.get("/v2/models/pages/config"))


def test_a_client_loads_a_pipeline_with_the_models_beside_it(client: Client, folder: Path) -> None:
    loaded = client.load_pipeline(folder / "pipeline.toml")
    assert (loaded.name, loaded.info.device) == ("mine", "PIPELINE")
    assert [port.name for port in loaded.info.inputs] == ["page"]
    layers = [layer.name for layer in loaded.layers()]
    assert layers[0] == "find"
    assert {"read", "read/y"} <= set(layers)
    np.testing.assert_array_equal(loaded.infer({"page": PAGE})["texts"], -np.abs(PAGE))
    loaded.unload()


def test_a_client_of_asyncio_loads_a_text(pipelines: Server) -> None:
    async def texts() -> Any:
        async with AsyncClient(pipelines.address) as client:
            loaded = await client.load_pipeline(AROUND, name="text")
            found = await loaded.infer({"page": PAGE})
            await loaded.unload()
            return found["texts"]

    np.testing.assert_array_equal(asyncio.run(texts()), -np.abs(PAGE))


def test_a_pipeline_is_called_as_any_other_network_over_rest(pipelines: Server) -> None:
    status = json.loads(pipelines.get("/v2/models/pages"))
    assert [(each["name"], each["shape"]) for each in status["inputs"]] == [("page", [-1, 2])]


def test_what_is_wrong_with_a_pipeline_is_told_with_its_place(client: Client) -> None:
    with pytest.raises(errors.NotFound, match=r"step 'inner': unknown network 'page'.*'pages'"):
        client.load_pipeline(AROUND.replace('"pages"', '"page"'), name="wrong")
    with pytest.raises(errors.InvalidArgument, match="no input 'pag'") as caught:
        client.load_pipeline(AROUND.replace("{page =", "{pag ="), name="wrong")
    assert caught.value.details.field == "pipeline.toml: step 'inner'"
    with pytest.raises(errors.InvalidArgument, match="needs an output"):
        client.load_pipeline(AROUND.partition("[outputs]")[0], name="wrong")
    with pytest.raises(errors.InvalidArgument, match="cannot read"):
        client.load_pipeline("nothing.toml")


def test_a_model_outside_the_folder_is_not_sent(client: Client, folder: Path) -> None:
    text = (folder / "pipeline.toml").read_text().replace("find.onnx", "../find.onnx")
    (folder / "pipeline.toml").write_text(text)
    with pytest.raises(errors.InvalidArgument, match="outside the folder"):
        client.load_pipeline(folder / "pipeline.toml")


def test_the_command_line_takes_a_pipeline_for_a_model(
    pipelines: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_SERVER", pipelines.address)
    path = str(folder / "pipeline.toml")

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(make_app([*arguments]), [*arguments])

    asked = run("query", path, "--json")
    assert asked.exit_code == 0, asked.output
    supported = json.loads(asked.stdout)["supported_layers"]
    assert supported["find"] == "CPU.0"
    assert supported["read/y"] == "CPU.0"
    drawn = run("query", path, "--dot", "-")
    assert "runs zneg" in drawn.stdout
    assert "bold lines: tensors from step to step" in drawn.stdout
    assert "float32[?,2]" in drawn.stdout  # between the steps
    assert "unknown" not in drawn.stdout
    loaded = run("load", path, "--name", "cli")
    assert loaded.exit_code == 0, loaded.output
    assert run("unload", "cli").exit_code == 0


def test_the_status_shows_the_steps_and_their_times(pipelines: Server, client: Client) -> None:
    client.network("pages").infer({"page": PAGE})
    (row,) = (each for each in client.status()["networks"] if each["name"] == "pages")
    assert [(each["step"], each["first"], each["device"]) for each in row["subgraphs"]] == [
        ("find", "model find.onnx", "CPU.0"),
        ("read", "network zneg", "CPU.0"),
    ]
    times = {
        each["labels"]["subgraph"]
        for each in row["series"]
        if each["name"] == "subgraph_execution_seconds"
    }
    assert times == {"1", "2"}


def test_a_client_s_pipeline_is_there_again_after_a_restart(folder: Path, tmp_path: Path) -> None:
    state = ("--state-dir", str(tmp_path / "state"))
    with Server(*DEVICES, *state) as server, Client(server.address) as client:
        client.load_network(NEG, "CPU", name="zneg")
        client.load_pipeline(folder / "pipeline.toml", name="pages")
        client.load_pipeline(AROUND, name="a-round")
        assert server.stop() == 0
    with Server(*DEVICES, *state) as server, Client(server.address) as client:
        found = client.network("a-round").infer({"page": PAGE})
        np.testing.assert_array_equal(found["texts"], -np.abs(PAGE))
        assert server.stop() == 0


def test_steps_run_in_the_processes_of_their_devices(repository: Path) -> None:
    options = (*DEVICES, "--isolate-devices", "--model-repository", str(repository))
    with Server(*options) as server, Client(server.address) as client:
        found = client.network("around").infer({"page": PAGE})
        np.testing.assert_array_equal(found["texts"], -np.abs(PAGE))
        assert server.stop() == 0


def test_a_request_counts_once_for_quotas_however_many_runs_it_needs(repository: Path) -> None:
    options = ("--model-repository", str(repository), "--max-in-flight-per-client", "1")
    with Server(*DEVICES, *options) as server, grpc.insecure_channel(server.address) as channel:
        stub: Any = GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        reply = stub.ModelInfer(infer_request("around", {"page": PAGE}))
        np.testing.assert_array_equal(outputs_of(reply)["texts"], -np.abs(PAGE))


def test_a_replica_that_joins_a_cluster_has_its_pipelines(tmp_path: Path) -> None:
    settings = {"devices": "CPU,PIPELINE", "allow_insecure": "true", "port": "0", "http_port": "0"}
    cluster = Cluster(str(tmp_path), load_settings(settings, {}), 1)
    try:
        with Client(cluster.replicas[0].address) as client:
            client.load_network(NEG, "CPU", name="zneg")
            text = AROUND.replace('"pages"', '"zneg"').replace('page = "page"', 'x = "page"')
            client.load_pipeline(text.replace('texts = "texts"}', 'texts = "y"}'), name="before")
        with Client(cluster.join().address) as client:
            until(lambda: [each.info.state for each in client.networks()] == ["READY"] * 2)
            found = client.network("before").infer({"page": PAGE})
            np.testing.assert_array_equal(found["texts"], -PAGE)
    finally:
        cluster.close()


def status_of(server: Server, path: str) -> int:
    try:
        server.get(path)
    except HTTPError as error:
        return error.code
    return 200


def test_a_pipeline_is_ready_while_the_networks_that_it_runs_are(pipelines: Server) -> None:
    with Client(pipelines.address) as client, grpc.insecure_channel(pipelines.address) as channel:
        inner = client.load_network(NEG, "CPU", name="inner")
        text = AROUND.replace('"pages"', '"inner"').replace('page = "page"', 'x = "page"')
        middle = client.load_pipeline(
            text.replace('texts = "texts"}', 'texts = "y"}'), name="middle"
        )
        outer = client.load_pipeline(AROUND.replace('"pages"', '"middle"'), name="outer")
        health = HealthStub(channel)
        models = GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]

        def ready() -> list[tuple[int, int, bool]]:
            return [
                (
                    health.Check(HealthCheckRequest(service=name)).status,
                    status_of(pipelines, f"/v2/models/{name}/ready"),
                    models.ModelReady(oip.ModelReadyRequest(name=name)).ready,
                )
                for name in ("middle", "outer")
            ]

        watched = iter(health.Watch(HealthCheckRequest(service="outer")))
        assert next(watched).status == SERVING
        assert ready() == 2 * [(SERVING, 200, True)]
        inner.unload()
        assert next(watched).status == NOT_SERVING
        assert ready() == 2 * [(NOT_SERVING, 503, False)]
        lines = pipelines.get("/readyz").splitlines()
        assert "network middle is not ready: step 'inner': unknown network 'inner'" in lines[1]
        inner = client.load_network(NEG, "CPU", name="inner")
        assert next(watched).status == SERVING
        assert ready() == 2 * [(SERVING, 200, True)]
        for each in (outer, middle, inner):
            each.unload()


@pytest.mark.parametrize("isolation", ["NONE", "PROCESS"])
def test_a_function_of_whoever_runs_the_server_is_a_device_s_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    page = "docs/use/pipelines.md"
    (module,) = (each for each in blocks(page, "python") if "create_plugin" in each)
    (model,) = (each for each in blocks(page, "python") if "halves.onnx" in each)
    (config,) = (each for each in blocks(page, "toml") if "factory" in each)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "between.py").write_text(module)
    exec(compile(model, page, "exec"), {})
    config += f'\n[plugins.BETWEEN.config]\nISOLATION = "{isolation}"\n'
    (tmp_path / "headrace.toml").write_text(config)
    step = {"name": "cut", "model": "halves.onnx", "device": "BETWEEN"}
    facts = "".join(f'{key} = "{text}"\n' for key, text in step.items())
    ends = 'inputs = {image = "image"}\noutputs = {left = "left", right = "right"}\n'
    ends += '[outputs]\nleft = "left"\nright = "right"\n'
    (tmp_path / "pipeline.toml").write_text(f"[[step]]\n{facts}{ends}")
    options = ("--devices", "BETWEEN,PIPELINE", "--config", "headrace.toml")
    with (
        Server(*options, environment={"PYTHONPATH": str(tmp_path)}) as server,
        Client(server.address) as client,
    ):
        found = client.load_pipeline(tmp_path / "pipeline.toml", name="cut").infer({"image": PAGE})
        np.testing.assert_array_equal(found["left"], PAGE[:, :1])
        np.testing.assert_array_equal(found["right"], PAGE[:, 1:])
        assert server.stop() == 0
