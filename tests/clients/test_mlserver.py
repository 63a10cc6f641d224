"""MLServer's gRPC stub with its codecs, and its `mlserver infer`, as they are on PyPI."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mlserver", reason="it has an environment of its own: .venv-mlserver")

import grpc
from mlserver.codecs import NumpyCodec, NumpyRequestCodec, StringCodec
from mlserver.grpc.converters import (
    ModelInferRequestConverter,
    ModelInferResponseConverter,
)
from mlserver.grpc.dataplane_pb2 import ModelMetadataRequest, ModelReadyRequest
from mlserver.grpc.dataplane_pb2_grpc import GRPCInferenceServiceStub
from mlserver.grpc.model_repository_pb2 import RepositoryIndexRequest
from mlserver.types import InferenceRequest

from tests.clients.conftest import Serving, load_over_rest

# It calls what newer versions of its own dependencies call deprecated.
pytestmark = pytest.mark.filterwarnings("default")

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def stub(serving: Serving) -> Iterator[GRPCInferenceServiceStub]:
    for name in ("add", "double", "text"):
        load_over_rest(serving, name)
    with grpc.insecure_channel(serving.grpc) as channel:
        yield GRPCInferenceServiceStub(channel)


@pytest.mark.parametrize("raw", [True, False])
def test_arrays_are_added(stub: GRPCInferenceServiceStub, raw: bool) -> None:
    request = InferenceRequest(
        id="one", inputs=[NumpyCodec.encode_input("x", X), NumpyCodec.encode_input("y", 2 * X)]
    )
    message = ModelInferRequestConverter.from_types(request, model_name="add", use_raw=raw)
    reply = ModelInferResponseConverter.to_types(stub.ModelInfer(message))
    assert (reply.id, reply.model_name) == ("one", "add")
    np.testing.assert_array_equal(NumpyRequestCodec.decode_response(reply), 3 * X)


def test_text_comes_back(stub: GRPCInferenceServiceStub) -> None:
    request = InferenceRequest(inputs=[StringCodec.encode_input("x", ["rain", "snö"])])
    request.inputs[0].shape = [2]
    message = ModelInferRequestConverter.from_types(request, model_name="text", use_raw=True)
    reply = ModelInferResponseConverter.to_types(stub.ModelInfer(message))
    assert StringCodec.decode_output(reply.outputs[0]) == ["rain", "snö"]


def test_models_are_described_and_listed(stub: GRPCInferenceServiceStub) -> None:
    assert stub.ModelReady(ModelReadyRequest(name="add")).ready
    described = stub.ModelMetadata(ModelMetadataRequest(name="add"))
    assert [each.name for each in described.inputs] == ["x", "y"]
    listed = {each.name for each in stub.RepositoryIndex(RepositoryIndexRequest()).models}
    assert {"add", "text"} <= listed


@pytest.mark.usefixtures("stub")
def test_its_command_line_infers_a_file_of_requests(
    serving: Serving, binaries: Path, tmp_path: Path
) -> None:
    asked, answered = tmp_path / "requests", tmp_path / "replies"
    lines = []
    for number in range(8):
        values = [[float(number), 2.0]]
        tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": values}
        lines.append(json.dumps({"inputs": [tensor]}))
    asked.write_text("\n".join(lines) + "\n", "utf-8")
    command = [str(binaries / "mlserver"), "infer", "-u", serving.http, "-m", "double"]
    files = ["-i", str(asked), "-o", str(answered), "-w", "4", "-s", "1"]
    ran = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    replies = [json.loads(line) for line in answered.read_text("utf-8").splitlines()]
    sums = sorted(reply["outputs"][0]["data"][0] for reply in replies)
    assert sums == [2.0 * number for number in range(8)]
