"""onnx infers types in a process of its own, which may end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import onnx
import pytest

from headrace.ipc.link import Link, links, packed
from headrace.ipc.segments import write_file
from headrace.runtime.errors import Cancelled
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network import onnx_inference, type_inference
from headrace.runtime.network.onnx_inference import (
    InferenceEnded,
    InferenceProcess,
    InferenceProcesses,
    infer_apart,
    stop_apart,
)
from headrace.runtime.network.type_inference import infer_types
from headrace.runtime.system.interruption import interruptible
from headrace.testing.case import network_of
from headrace.testing.leaks import no_leaks
from headrace.testing.occupied import eventually
from tests.support.patience import PATIENCE_SECONDS

GOOD = (
    "g (float[2,N] x) => (float[2,N] y)"
    ' { t = Einsum<equation = "ij->ij">(x) y = Abs(t) }'  # which no rule of ours knows
)

KILLERS = {
    "batches": (
        "g (float[2,2] x, int64[2,1] i) => (float[a] y)"
        " { t = GatherND<batch_dims = -2147483648>(x, i) y = Neg(t) }"
    ),
}


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[InferenceProcesses]:
    monkeypatch.setattr(onnx_inference, "_apart", None)  # for the other tests, afterwards
    # Stands for layers that end onnx and that nobody knows yet.
    monkeypatch.setattr(type_inference, "is_askable", lambda _: True)
    infer_apart()
    assert onnx_inference._apart is not None
    yield onnx_inference._apart
    stop_apart()


def rank_of(text: str, name: str) -> int | None:
    model = network_of(text).model
    infer_types(model)
    values = {value.name: value for node in model.graph for value in node.outputs}
    shape = values[name].shape
    return None if shape is None else shape.rank()


@pytest.mark.parametrize("text", KILLERS.values(), ids=KILLERS)
def test_layers_that_are_known_to_end_onnx_are_not_asked_about(text: str) -> None:
    infer_types(network_of(text).model)


def test_types_that_another_process_infers_are_the_same(apart: InferenceProcesses) -> None:
    assert rank_of(GOOD, "t") == 2


@pytest.mark.parametrize("name", KILLERS)
def test_layers_that_end_onnx_stay_without_types_and_later_ones_get_theirs(
    apart: InferenceProcesses, name: str
) -> None:
    assert rank_of(KILLERS[name], "t") is None
    assert rank_of(GOOD, "t") == 2


def test_what_onnx_refuses_raises_as_in_this_process(apart: InferenceProcesses) -> None:
    model = onnx.ModelProto(ir_version=10)  # without operator sets
    model.graph.node.add(op_type="Neg", input=["x"], output=["y"])
    with pytest.raises(Exception, match="opset"):
        onnx_inference.infer(model)


def test_a_process_that_does_not_answer_in_time_is_ended(
    apart: InferenceProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rank_of(GOOD, "t") == 2
    (process,) = apart._idle
    os.kill(process.pid, signal.SIGSTOP)
    monkeypatch.setattr(onnx_inference, "_SECONDS", 0.05)
    with pytest.raises(InferenceEnded):
        apart.ask(b"")
    assert process.status == -signal.SIGKILL
    monkeypatch.setattr(onnx_inference, "_SECONDS", 60.0)
    assert rank_of(GOOD, "t") == 2


@pytest.mark.long
def test_a_network_that_ends_onnx_again_and_again_is_given_up(
    apart: InferenceProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = []

    class Counted(InferenceProcess):
        def __init__(self) -> None:
            super().__init__()
            starts.append(self)

    monkeypatch.setattr(onnx_inference, "InferenceProcess", Counted)
    layers = " ".join(f"t{at} = GatherND<batch_dims = -2147483648>(x, i)" for at in range(40))
    rank_of(f"g (float[2,2] x, int64[2,1] i) => (float[a] y) {{ {layers} y = Neg(t0) }}", "t0")
    assert 2 <= len(starts) <= 10


def test_a_process_that_nobody_waits_for_any_more_is_ended(apart: InferenceProcesses) -> None:
    apart.ask(b"")
    (process,) = apart._idle
    os.kill(process.pid, signal.SIGSTOP)
    token = CancelToken()
    token.cancel(Cancelled("the caller left"))
    with pytest.raises(Cancelled, match="the caller left"), interruptible(token):
        apart.ask(b"")
    assert process.status == -signal.SIGKILL


def test_nobody_waits_for_the_types_of_anothers_network(apart: InferenceProcesses) -> None:
    apart.ask(b"")
    (process,) = apart._idle
    os.kill(process.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(apart.ask, b"")
        eventually(lambda: not apart._idle, "at work")
        assert apart.ask(b"") == b""
        os.kill(process.pid, signal.SIGCONT)
        assert stuck.result(PATIENCE_SECONDS) == b""


def test_onnx_is_asked_about_one_network_for_so_long_and_no_longer(
    apart: InferenceProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type_inference, "_MOST_SECONDS", 0.0)
    assert rank_of(GOOD, "t") is None


@pytest.mark.parametrize("answer", ["too long", "a file that may change", "two files", "none"])
def test_an_answer_without_sense_ends_its_process_and_leaves_nothing_open(
    apart: InferenceProcesses, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    apart.ask(b"")
    (process,) = apart._idle
    os.kill(process.pid, signal.SIGSTOP)
    theirs, end = links()
    process._link.close()
    process._link = Link(end)
    loose = os.memfd_create("headrace-loose", os.MFD_ALLOW_SEALING)
    with write_file((b"x" * 100,)) as file:
        monkeypatch.setattr(onnx_inference, "_MOST_BYTES", 50 if answer == "too long" else 1000)
        files = {"a file that may change": [loose], "two files": [file] * 2, "none": []}
        given = files.get(answer, [file])
        theirs.send(packed({}, (), len(given)), given)
        with no_leaks(), pytest.raises(InferenceEnded):
            apart.ask(b"")
    os.close(loose)
    theirs.close()
    assert process.status == -signal.SIGKILL


def test_a_stop_ends_the_processes() -> None:
    processes = InferenceProcesses()
    processes.ask(b"")
    (started,) = processes._idle
    processes.stop()
    assert started.status is not None
