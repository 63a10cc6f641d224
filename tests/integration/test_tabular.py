"""Classifiers as skl2onnx writes them by default, with a ZipMap at the end, by every protocol."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from headrace.client import Client
from headrace.oip import open_inference_pb2 as oip
from headrace.oip import open_inference_pb2_grpc as oip_rpc
from tests.integration.harness import CALL_SECONDS, Server
from tests.integration.test_rest import ask, told
from tests.support.manual import blocks

_FOLDER = Path(__file__).parent / "tabular"
_CASES = json.loads((_FOLDER / "cases.json").read_text("utf-8"))


class Pipeline(NamedTuple):
    """What the library says of some rows, and the network that was made of it."""

    name: str
    inputs: dict[str, Any]
    classes: tuple[Any, ...]
    labels: list[Any]
    scores: list[list[float]]

    @property
    def model(self) -> bytes:
        return (_FOLDER / f"{self.name}.onnx").read_bytes()


@pytest.fixture(params=[*_CASES])
def pipeline(request: pytest.FixtureRequest) -> Pipeline:
    case = _CASES[request.param]
    arrays = {name: np.array(rows) for name, rows in case["inputs"].items()}
    inputs = {
        name: each.astype(np.float32 if each.dtype.kind == "f" else object)
        for name, each in arrays.items()
    }
    return Pipeline(request.param, inputs, tuple(case["classes"]), case["labels"], case["scores"])


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client
    server.unload(*{"tabular", "iris"} & {*server.networks()})


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE", "AUTO", "MULTI:CPU", "HETERO:OPENVINO,CPU"])
def test_a_classifier_answers_as_its_library_on_every_device(
    client: Client, server: Server, pipeline: Pipeline, device: str
) -> None:
    if not {*device.replace(":", ",").split(",")} <= {*server.devices()}:
        pytest.skip(f"{device} is not up on this server")
    if (pipeline.name, device) == ("texts", "TEMPLATE"):
        pytest.skip("the converter splits texts by an operator of ONNX Runtime's own")
    network = client.load_network(pipeline.model, device=device, name="tabular")
    found = network.infer(pipeline.inputs)
    assert found["output_label"].tolist() == pipeline.labels
    np.testing.assert_allclose(found["output_probability"], pipeline.scores, atol=1e-5)
    assert network.outputs["output_probability"].classes == pipeline.classes
    assert network.outputs["output_label"].classes == ()
    assert "'output_probability' is a matrix of scores" in network.notes[0]


def test_a_query_notes_the_matrix_too(client: Client) -> None:
    found = client.query_network((_FOLDER / "iris.onnx").read_bytes(), device="CPU")
    assert "'output_probability' is a matrix of scores" in found.notes[0]
    assert not found.unsupported


def test_the_classes_are_told_after_export_and_import(client: Client) -> None:
    model = (_FOLDER / "iris.onnx").read_bytes()
    network = client.load_network(model, device="CPU", name="tabular")
    blob = network.export()
    network.unload()
    again = client.import_network(blob, name="tabular")
    assert again.outputs["output_probability"].classes == tuple(_CASES["iris"]["classes"])


def test_the_open_inference_protocol_tells_the_classes(client: Client, server: Server) -> None:
    client.load_network((_FOLDER / "passengers.onnx").read_bytes(), device="CPU", name="tabular")
    stub: Any = oip_rpc.GRPCInferenceServiceStub(server.channel)  # type: ignore[no-untyped-call]
    request = oip.ModelMetadataRequest(name="tabular")
    label, scores = stub.ModelMetadata(request, timeout=CALL_SECONDS).outputs
    assert json.loads(scores.parameters["classes"].string_param) == [0, 1]
    assert not label.parameters
    label, scores = told(server, "/v2/models/tabular")["outputs"]
    assert scores["parameters"] == {"classes": "[0, 1]"}
    assert "parameters" not in label


def test_the_classification_extension_names_the_classes(client: Client, server: Server) -> None:
    client.load_network((_FOLDER / "iris.onnx").read_bytes(), device="CPU", name="tabular")
    rows = _CASES["iris"]["inputs"]["X"]
    body = {
        "inputs": [{"name": "X", "datatype": "FP32", "shape": [len(rows), 4], "data": rows}],
        "outputs": [{"name": "output_probability", "parameters": {"classification": 1}}],
    }
    status, _, reply = ask(server, "POST", "/v2/models/tabular/infer", body)
    assert status == 200, reply
    (output,) = json.loads(reply)["outputs"]
    assert output["data"][0].endswith(":0:setosa")


def test_the_page_s_program_prints_what_the_page_shows(
    client: Client, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the network that the page's first program made."""
    (tmp_path / "iris.onnx").write_bytes((_FOLDER / "iris.onnx").read_bytes())
    monkeypatch.chdir(tmp_path)
    (program,) = (each for each in blocks("docs/use/tabular.md", "python") if "Client(" in each)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program.replace("localhost:9000", server.address), {})
    assert [printed.getvalue()] == blocks("docs/use/tabular.md", "text")
