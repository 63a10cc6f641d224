"""Networks with operators of ONNX Runtime's own that are not checked: on CPU like any other, and in
a process beside the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

from headrace.testing.case import Case, parse
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.child_processes import children
from tests.integration.harness import CALL_SECONDS, Server, assert_settled, until

_DEVICES = ("--devices", "CPU,TEMPLATE,HETERO,MULTI,AUTO,BATCH")
_X = np.array([[[2, 0], [0, -4]]], np.float32)
_WANTED = [[[0.5, 0], [0, 0]]]


def network(name: str, batch: str = "1") -> Case:
    """The inverse of each matrix, where it is positive."""
    model = parse(
        f"{name} (float[{batch},2,2] x) => (float[{batch},2,2] y) {{"
        "[inner] s = com.microsoft.Inverse(x) [outer] y = Relu(s) }"
    )
    return Case(name, model, {"x": _X})


def relu() -> Case:
    return Case("relu", parse("relu (float[n] x) => (float[n] y) { y = Relu(x) }"), {})


@pytest.fixture(scope="module")
def apart() -> Iterator[Server]:
    with Server(*_DEVICES) as running:
        running.load(relu(), "CPU")
        assert not children(running)
        yield running
        assert_settled(running)
        workers = children(running)
        assert running.stop() == 0
        psutil.wait_procs(workers, CALL_SECONDS)
        assert not any(each.is_running() for each in workers)


def answers(server: Server, name: str) -> bool:
    """Whether the network answers, and rightly. It may not while its process starts again."""
    try:
        (y,) = server.infer(name, {"x": _X}).values()
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return False
        raise
    np.testing.assert_array_equal(np.asarray(y), _WANTED)
    return True


def only_child(server: Server) -> psutil.Process:
    """The process of the only network that has one. Those of unloaded networks may be ending."""
    until(lambda: len(children(server)) == 1, "one process was to be there")
    return children(server)[0]


def query(server: Server, case: Case, device: str) -> pb.QueryNetworkReply:
    model = pb.ModelSource(data=case.model.SerializeToString())
    request = pb.QueryNetworkRequest(model=model, device=device)
    reply: pb.QueryNetworkReply = server.stub.QueryNetwork(request, timeout=CALL_SECONDS)
    return reply


@pytest.mark.parametrize(
    "device",
    ["CPU", "AUTO", "AUTO:CPU", "MULTI:CPU,TEMPLATE", "HETERO:TEMPLATE,CPU", "HETERO:CPU,TEMPLATE"],
)
def test_a_query_says_what_a_load_does_on_every_device(apart: Server, device: str) -> None:
    case = network("inverse")
    asked = query(apart, case, device)
    assert {*asked.supported_layers} == {"inner", "outer"}
    assert "HETERO" in device or "it runs in a process of its own" in asked.notes[0]
    info = apart.load(case, device)
    assert [note for note in info.notes if "it runs in a process of its own" in note], info.notes
    assert answers(apart, "inverse")
    only_child(apart)
    apart.unload("inverse")


def test_its_requests_may_run_together(apart: Server) -> None:
    apart.load(network("rows", batch="N"), "BATCH:CPU")
    assert answers(apart, "rows")
    apart.unload("rows")


def test_queue_and_counters_are_the_device_s(apart: Server) -> None:
    apart.load(network("counted"), "CPU")
    done = apart.total("headrace_device_requests_total", device="CPU.0", outcome="completed")
    assert answers(apart, "counted")
    assert apart.total("headrace_device_requests_total", device="CPU.0") == done + 1
    assert apart.total("headrace_device_streams") >= 1
    info = apart.stub.GetNetwork(pb.GetNetworkRequest(name="counted"), timeout=CALL_SECONDS).info
    assert [*info.execution_devices] == ["CPU.0"]
    apart.unload("counted")


def test_it_is_exported_and_imported(apart: Server) -> None:
    apart.load(network("first"), "CPU")
    apart.import_blob(apart.export("first"), "second")
    apart.unload("first")
    assert answers(apart, "second")
    apart.unload("second")


def test_its_process_starts_again_with_it_and_other_networks_notice_nothing(apart: Server) -> None:
    apart.load(network("victim"), "CPU")
    worker = only_child(apart)
    worker.kill()
    assert apart.infer("relu", {"x": np.array([-1, 2], np.float32)})["y"].tolist() == [0, 2]  # type: ignore[union-attr]
    assert "CPU" in apart.devices()
    until(lambda: answers(apart, "victim"), "the network was to come back")
    assert children(apart) != [worker]
    apart.unload("victim")


def test_it_is_there_again_after_a_restart(tmp_path: Path) -> None:
    state = ("--state-dir", str(tmp_path))
    with Server(*_DEVICES, *state) as server:
        server.load(network("kept"), "CPU")
        assert server.stop() == 0
    with Server(*_DEVICES, *state) as server:
        assert server.networks() == ["kept"]
        assert answers(server, "kept")


def test_an_operator_may_forbid_the_process(tmp_path: Path) -> None:
    path = tmp_path / "headrace.toml"
    path.write_text('[plugins.CPU.config]\nISOLATION = "NONE"\n')
    with Server(*_DEVICES, "--config", str(path)) as server:
        assert not query(server, network("no"), "CPU").supported_layers.get("inner")
        with pytest.raises(grpc.RpcError, match="ISOLATION=NONE"):
            server.load(network("no"), "CPU")
        assert not children(server)
