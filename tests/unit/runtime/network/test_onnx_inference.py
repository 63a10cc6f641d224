"""onnx infers types in a process of its own, which may end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import onnx
import pytest

from headrace.runtime.network import onnx_inference, type_inference
from headrace.runtime.network.network import Network
from headrace.runtime.network.onnx_inference import (
    InferenceEnded,
    InferenceProcess,
    infer_apart,
    stop_apart,
)
from headrace.runtime.network.type_inference import infer_types
from headrace.testing.case import parse

GOOD = "g (float[2,N] x) => (float[2,N] y) { t = Neg(x) y = Abs(t) }"
KILLERS = {
    "batches": (
        "g (float[2,2] x, int64[n,1] i) => (float[a] y)"
        " { t = GatherND<batch_dims = -2147483648>(x, i) y = Neg(t) }"
    ),
}


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[InferenceProcess]:
    monkeypatch.setattr(onnx_inference, "_apart", None)  # for the other tests, afterwards
    # Stands for layers that end onnx and that nobody knows yet.
    monkeypatch.setattr(type_inference, "is_askable", lambda _: True)
    infer_apart()
    assert onnx_inference._apart is not None
    yield onnx_inference._apart
    stop_apart()


def rank_of(text: str, name: str) -> int | None:
    model = Network.from_bytes(parse(text).SerializeToString()).model
    infer_types(model)
    values = {value.name: value for node in model.graph for value in node.outputs}
    shape = values[name].shape
    return None if shape is None else shape.rank()


@pytest.mark.parametrize("text", KILLERS.values(), ids=KILLERS)
def test_layers_that_are_known_to_end_onnx_are_not_asked_about(text: str) -> None:
    infer_types(Network.from_bytes(parse(text).SerializeToString()).model)


def test_types_that_another_process_infers_are_the_same(apart: InferenceProcess) -> None:
    assert rank_of(GOOD, "t") == 2


@pytest.mark.parametrize("name", KILLERS)
def test_layers_that_end_onnx_stay_without_types_and_later_ones_get_theirs(
    apart: InferenceProcess, name: str
) -> None:
    assert rank_of(KILLERS[name], "t") is None
    assert rank_of(GOOD, "t") == 2


def test_what_onnx_refuses_raises_as_in_this_process(apart: InferenceProcess) -> None:
    model = onnx.ModelProto(ir_version=10)  # without operator sets
    model.graph.node.add(op_type="Neg", input=["x"], output=["y"])
    with pytest.raises(Exception, match="opset"):
        onnx_inference.infer(model)


def test_a_process_that_does_not_answer_in_time_is_ended(
    apart: InferenceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rank_of(GOOD, "t") == 2
    process = apart._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    monkeypatch.setattr(onnx_inference, "_SECONDS", 0.05)
    with pytest.raises(InferenceEnded):
        apart.ask(b"")
    assert process.returncode == -signal.SIGKILL
    monkeypatch.setattr(onnx_inference, "_SECONDS", 60.0)
    assert rank_of(GOOD, "t") == 2


def test_a_network_that_ends_onnx_again_and_again_is_given_up(
    apart: InferenceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, start = [], onnx_inference._start

    def count() -> subprocess.Popen[bytes]:
        starts.append(start())
        return starts[-1]

    monkeypatch.setattr(onnx_inference, "_start", count)
    layers = " ".join(f"t{at} = GatherND<batch_dims = -2147483648>(x, i)" for at in range(40))
    rank_of(f"g (float[2,2] x, int64[n,1] i) => (float[a] y) {{ {layers} y = Neg(t0) }}", "t0")
    assert 2 <= len(starts) <= 10


def test_a_stop_ends_the_process() -> None:
    process = InferenceProcess()
    process.ask(b"")
    started = process._process
    assert started is not None
    process.stop()
    assert started.returncode is not None
