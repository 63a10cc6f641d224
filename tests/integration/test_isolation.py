"""Devices in processes of their own, in a server: crashes and kills under load."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import grpc
import numpy as np
import psutil
import pytest

from headrace.testing.case import Case, parse
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.child_processes import children
from tests.integration.harness import (
    CALL_SECONDS,
    Server,
    assert_settled,
    details_of,
    infer_request,
    until,
)
from tests.integration.listed_devices import held
from tests.support.crashing_device import CRASH

CRASHES = int(os.environ.get("CRASHES", "2"))
"""Of these there were 50 for the record, and ten kills."""
KILLS = int(os.environ.get("KILLS", "1"))
_CALLERS = 2
_CONFIG = """
[plugins.FRAGILE]
factory = "tests.support.crashing_device:create_plugin"
[plugins.FRAGILE.config]
ISOLATION = "PROCESS"
NUM_STREAMS = 2

[plugins.APART]
device = "CPU"
[plugins.APART.config]
ISOLATION = "PROCESS"
"""


def relu(name: str) -> Case:
    return Case(name, parse(f"{name} (float[n] x) => (float[n] y) {{ y = Relu(x) }}"), {})


def deadly(turn: int) -> Case:
    """Each is a model of its own."""
    text = (
        "deadly (float[n] x) => (float[n] y) { c = Constant<value = float {%d}>() y = Add(x, c) }"
    )
    return Case(f"deadly{turn}", parse(text % turn), {})


def config_file(folder: Path) -> Path:
    path = folder / "headrace.toml"
    path.write_text(_CONFIG)
    return path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    options = ("--config", str(config_file(tmp_path)), "--devices", "APART,CPU,FRAGILE")
    with Server(*options) as running:
        yield running


def fragile(server: Server) -> int:
    """The process that FRAGILE lives in."""
    return int(re.findall(r"lives in process (\d+)", server.log())[-1])


def wait_for(server: Server, device: str, *, up: bool) -> None:
    """Until the device is up, or is not; asks seldom, for there is other work to do."""
    clock = threading.Event()
    for _ in range(int(CALL_SECONDS / 0.02)):
        reply = server.stub.ListDevices(pb.ListDevicesRequest(), timeout=CALL_SECONDS)
        states = {each.name: each.state for each in reply.devices}
        assert states["CPU"] == pb.UP
        if (states[device] == pb.UP) is up:
            return
        clock.wait(0.02)
    raise AssertionError(f"{device} is {'not' if up else 'still'} up")


def await_next(server: Server, device: str, known: set[int]) -> psutil.Process:
    """The worker that has come in the place of one of the known ones, once the device is up.

    That the device is down in between may be over before anybody has looked.
    """

    def new() -> list[psutil.Process]:
        return [each for each in children(server) if each.pid not in known]

    until(lambda: bool(new()), f"{device}'s next worker")
    wait_for(server, device, up=True)
    (worker,) = new()
    return worker


class Load:
    """Callers that infer with a short pause between; each checks each of its answers."""

    def __init__(
        self,
        server: Server,
        network: str,
        sizes: tuple[int, ...] = (4,),
        callers: int = _CALLERS,
    ) -> None:
        self._server = server
        self._network = network
        self._sizes = sizes
        self._stop = threading.Event()
        self.outcomes: Counter[str] = Counter()
        self.wrong = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(callers)
        self._ends = [self._pool.submit(self._call, at) for at in range(callers)]

    def _call(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not self._stop.is_set():
            size = int(rng.choice(self._sizes))
            x = rng.standard_normal(size).astype(np.float32)
            try:
                y = self._server.infer(self._network, {"x": x})["y"]
            except grpc.RpcError as error:
                outcome, wrong = str(error.code().name), False
            else:
                outcome, wrong = "OK", not np.array_equal(np.maximum(x, 0), y)  # type: ignore[arg-type]
            with self._lock:
                self.outcomes[outcome] += 1
                self.wrong += wrong
            self._stop.wait(0.005)

    def wait_for(self, outcome: str, more: int) -> None:
        """Until there are `more` such outcomes than now."""
        before = self.outcomes[outcome]
        until(lambda: self.outcomes[outcome] >= before + more, f"{more} {outcome}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for end in self._ends:
            end.result(CALL_SECONDS)
        self._pool.shutdown()


def test_a_backend_that_segfaults_costs_no_other_device_a_request(server: Server) -> None:
    server.load(relu("calm"), "CPU")
    server.load(relu("fragile"), "FRAGILE")
    server.load(relu("apart"), "APART")
    x = {"x": np.array([CRASH], np.float32)}
    assert len(children(server)) == 2
    # Two callers of APART have one connection to its worker, and two once their calls have met.
    with Load(server, "calm") as calm, Load(server, "apart", callers=1) as apart:
        calm.wait_for("OK", 50)
        apart.wait_for("OK", 50)
        descriptors = psutil.Process(server.process.pid).num_fds()
        for turn in range(CRASHES):
            server.load(deadly(turn), "FRAGILE")
            known = {each.pid for each in children(server)}
            with pytest.raises(grpc.RpcError) as caught:
                server.infer(f"deadly{turn}", x)
            details = details_of(caught.value)
            assert details.code is grpc.StatusCode.FAILED_PRECONDITION
            assert details.reason == "ENDED_WORKER"
            await_next(server, "FRAGILE", known)
            server.unload(f"deadly{turn}")
            answer = server.infer("fragile", {"x": np.array([-1, 1], np.float32)})["y"]
            assert answer.tolist() == [0, 1]  # type: ignore[union-attr]
    for load in (calm, apart):
        assert set(load.outcomes) == {"OK"}
        assert not load.wrong
    assert_settled(server)
    assert len(children(server)) == 2
    # FRAGILE's first connection, and those for the metrics, came after the count.
    now = psutil.Process(server.process.pid).num_fds
    until(lambda: now() <= descriptors + 2, "descriptors are given back")
    log = server.log()
    assert log.count("SIGSEGV") >= CRASHES
    assert "Fatal Python error: Segmentation fault" in log
    server.unload("calm", "fragile", "apart")
    before = children(server)
    assert server.stop() == 0
    psutil.wait_procs(before, timeout=CALL_SECONDS)
    assert not any(process.is_running() for process in before)


def test_a_worker_that_is_killed_under_load_loses_no_reply_and_gives_no_wrong_one(
    server: Server,
) -> None:
    server.load(relu("apart"), "APART")
    server.load(relu("second"), "APART")
    (worker,) = (each for each in children(server) if each.pid != fragile(server))
    with Load(server, "apart", sizes=(4, 3000, 150_000)) as load:
        load.wait_for("OK", 50)
        for _ in range(KILLS):
            known = {each.pid for each in children(server)}
            os.kill(worker.pid, signal.SIGKILL)
            worker.wait(CALL_SECONDS)
            worker = await_next(server, "APART", known)
            load.wait_for("OK", 20)
    assert set(load.outcomes) <= {"OK", "UNAVAILABLE"}
    assert not load.wrong
    answer = server.infer("second", {"x": np.array([-1, 1], np.float32)})["y"]
    assert answer.tolist() == [0, 1]  # type: ignore[union-attr]
    assert_settled(server)
    server.unload("apart", "second")
    maps = Path(f"/proc/{server.process.pid}/maps")
    until(lambda: "headrace-tensors" not in maps.read_text(), "shared memory is given back")
    assert len(children(server)) == 2


def test_a_network_tells_what_its_device_has_chosen_and_is_loaded_again_as_it_was_asked_for(
    server: Server,
) -> None:
    keys = ("NUM_STREAMS", "INFERENCE_NUM_THREADS", "EXECUTION_TIMEOUT")

    def told(name: str) -> list[str]:
        reply = server.stub.GetNetwork(pb.GetNetworkRequest(name=name), timeout=CALL_SECONDS)
        config = reply.info.config
        return [config[key] for key in keys]

    server.load(relu("within"), "CPU", "within", {"NUM_STREAMS": "1"})
    server.load(relu("apart"), "APART", "apart", {"NUM_STREAMS": "1"})
    assert told("apart") == told("within")
    assert "AUTO" not in told("apart")
    request = pb.SetConfigRequest(
        target=pb.Target(network="apart"), config={"EXECUTION_TIMEOUT": "7"}
    )
    server.stub.SetConfig(request, timeout=CALL_SECONDS)
    before = told("apart")
    assert before[-1] == "7"
    known = {each.pid for each in children(server)}
    (worker,) = (each for each in children(server) if each.pid != fragile(server))
    worker.kill()
    await_next(server, "APART", known)
    assert told("apart") == before
    (y,) = server.infer("apart", {"x": np.array([-1, 2], np.float32)}).values()
    assert np.asarray(y).tolist() == [0, 2]


def test_the_server_drains_through_its_workers(server: Server) -> None:
    server.load(relu("apart"), "APART")
    x = np.array([1.0], np.float32)
    request = infer_request("apart", {"x": x})
    calls = [server.stub.Infer.future(request, timeout=CALL_SECONDS) for _ in range(50)]
    calls[0].result()
    processes = children(server)
    for process in processes:  # as a service manager does: all of them hear of the end
        process.send_signal(signal.SIGTERM)
    assert server.stop() == 0
    outcomes = Counter(call.exception(CALL_SECONDS) is None for call in calls)
    assert outcomes[True] >= 1
    psutil.wait_procs(processes, timeout=CALL_SECONDS)
    assert not any(process.is_running() for process in processes)
    assert "did not close" not in server.log()


def test_a_worker_that_stands_still_keeps_no_server_from_stopping(tmp_path: Path) -> None:
    options = ("--config", str(config_file(tmp_path)), "--devices", "APART,FRAGILE")
    with Server(*options, "--grace-seconds", "1") as server:
        server.load(relu("r"), "APART")
        server.load(relu("f"), "FRAGILE")
        standing = children(server)
        for each in standing:
            each.suspend()
        assert server.stop() == 0, server.log()
        assert server.log().count("did not stop in time; its worker is killed") == len(standing)
        psutil.wait_procs(standing, CALL_SECONDS)


def test_the_metric_and_the_list_of_devices_tell_of_one_that_is_started_again(
    server: Server, tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    server.load(held(hold), "FRAGILE")
    hold.touch()
    os.kill(fragile(server), signal.SIGKILL)
    wait_for(server, "FRAGILE", up=False)
    assert server.total("headrace_device_up", device="FRAGILE.0") == 0.0
    assert server.total("headrace_device_up", device="CPU.0") == 1.0
    hold.unlink()
    wait_for(server, "FRAGILE", up=True)
    assert server.total("headrace_device_up", device="FRAGILE.0") == 1.0
