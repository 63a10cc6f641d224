"""Requests that run on a network before it takes anybody's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.errors import FailedPrecondition, InvalidArgument, NotFound
from headrace.runtime.execution.job import Job
from headrace.runtime.loading import warm_up as module
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import LoadRequest
from headrace.runtime.transform.warm_up import WarmUp
from headrace.testing.case import parse
from tests.support.hook_plugin import Copies, HookPlugin
from tests.support.patience import PATIENCE_SECONDS

MODEL = "m (float[N,3] x, int8[64] i, string[2] s) => (float[N,3] y) { y = Identity(x) }"


@pytest.fixture
def core() -> Iterator[Core]:
    source = PluginSource("HOOK", lambda: plugin_api(1)(HookPlugin))
    core = Core([source], blob_key=b"key")
    yield core
    core.stop()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The inputs of each request that the device has run."""
    seen: list[dict[str, Any]] = []
    infer = Copies._infer

    def noted(self: Copies, job: Job) -> None:
        seen.append(dict(job.inputs))
        infer(self, job)

    monkeypatch.setattr(Copies, "_infer", noted)
    return seen


def load(core: Core, *warm_ups: WarmUp, **config: str) -> None:
    request = LoadRequest("m", DeviceName.parse("HOOK"), config, warm_ups=warm_ups)
    model = parse(MODEL).SerializeToString()
    core.load_network(request, lambda: Network.from_bytes(model)).result(PATIENCE_SECONDS)


def test_requests_are_made_from_the_shapes(core: Core, seen: list[dict[str, Any]]) -> None:
    load(core, WarmUp(count=3))
    assert len(seen) == 3
    assert seen[0]["x"].tolist() == [[0.0, 0.0, 0.0]]
    assert seen[0]["x"].dtype == np.float32
    assert list(seen[0]["s"]) == [b"", b""]
    assert core.networks.find("m").executable is not None


def test_sizes_that_are_not_fixed_may_be_said(core: Core, seen: list[dict[str, Any]]) -> None:
    load(core, WarmUp(shapes={"x": (5, 3)}))
    assert seen[0]["x"].shape == (5, 3)


def test_values_may_come_from_a_file(
    core: Core, seen: list[dict[str, Any]], tmp_path: Path
) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(tmp_path / "warmup.npz", x=values)
    load(core, WarmUp(file=tmp_path / "warmup.npz"))
    assert np.array_equal(seen[0]["x"], values)


def test_values_may_be_random_and_lie_between_0_and_1(
    core: Core, seen: list[dict[str, Any]]
) -> None:
    load(core, WarmUp(shapes={"x": (5, 3)}, random=frozenset(["x", "i"])))
    assert seen[0]["i"].dtype == np.int8
    assert set(seen[0]["i"].tolist()) == {0, 1}
    values = seen[0]["x"]
    assert values.dtype == np.float32
    assert len(set(values.flat)) > 1
    assert 0 <= values.min() <= values.max() < 1


def test_the_bytes_of_an_input_may_come_from_a_file(
    core: Core, seen: list[dict[str, Any]], tmp_path: Path
) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    file = tmp_path / "x"
    file.write_bytes(values.tobytes())
    refused(core, WarmUp(shapes={"x": (3, 3)}, raw={"x": file}), "does not hold the")
    refused(core, WarmUp(shapes={"s": (2,)}, raw={"s": file}), "no raw form")
    load(core, WarmUp(shapes={"x": (2, 3)}, raw={"x": file}))
    assert np.array_equal(seen[0]["x"], values)


def test_several_warm_ups_run_one_after_the_other(core: Core, seen: list[dict[str, Any]]) -> None:
    load(core, WarmUp(shapes={"x": (5, 3)}), WarmUp(count=2))
    assert [each["x"].shape for each in seen] == [(5, 3), (1, 3), (1, 3)]


def test_the_device_is_told_of_the_first_warm_up_before_it_runs(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[WarmUp | None] = []
    load_network = HookPlugin.load_network

    def note(self: HookPlugin, load: Load) -> ExecutableNetwork:
        told.append(load.warm_up)
        return load_network(self, load)

    monkeypatch.setattr(HookPlugin, "load_network", note)
    first = WarmUp(shapes={"x": (5, 3)})
    load(core, first, WarmUp(count=2))
    assert told == [first]


def test_a_network_without_a_warm_up_runs_nothing(core: Core, seen: list[dict[str, Any]]) -> None:
    load(core)
    assert seen == []


def test_a_warm_up_is_not_among_the_networks_requests(core: Core) -> None:
    load(core, WarmUp(count=2))
    counted = {
        each.family.name: each.value
        for each in core.counters.snapshot()
        if each.family.name == "network_accepted_total"
    }
    assert counted == {"network_accepted_total": 0}


def refused(core: Core, warm_up: WarmUp, match: str) -> None:
    with pytest.raises(FailedPrecondition, match=match):
        load(core, warm_up)
    with pytest.raises(NotFound):
        core.networks.acquire("m")


def test_a_request_that_fails_is_a_failed_load(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Copies, job: Job) -> None:
        raise InvalidArgument("no such position")

    monkeypatch.setattr(Copies, "_infer", fail)
    refused(core, WarmUp(), "its warm-up failed: no such position")


def test_a_shape_that_does_not_fit_is_a_failed_load(core: Core) -> None:
    refused(core, WarmUp(shapes={"x": (5,)}), "its warm-up failed")


@pytest.mark.parametrize("kind", ["shape", "file"])
def test_an_input_that_the_network_does_not_have_is_named(
    core: Core, tmp_path: Path, kind: str
) -> None:
    np.savez(tmp_path / "warmup.npz", z=np.zeros(1))
    wrong = WarmUp(shapes={"z": (1,)}) if kind == "shape" else WarmUp(file=tmp_path / "warmup.npz")
    refused(core, wrong, "no input 'z'")


def test_pickles_are_not_read(core: Core, tmp_path: Path) -> None:
    np.savez(tmp_path / "warmup.npz", x=np.array([{}], object))
    refused(core, WarmUp(file=tmp_path / "warmup.npz"), "not a file of arrays")


@pytest.mark.parametrize("data", [b"", b"no archive", b"PK\x03\x04 cut"])
def test_a_file_that_is_no_archive_is_refused(core: Core, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "warmup.npz").write_bytes(data)
    refused(core, WarmUp(file=tmp_path / "warmup.npz"), "not a file of arrays")


def test_a_damaged_archive_is_read_or_refused_whatever_byte_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "warmup.npz"
    np.savez_compressed(path, x=np.arange(30.0))
    whole = path.read_bytes()
    refusals = 0
    for place in range(len(whole)):
        for mask in (0x01, 0xFF):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ mask]) + whole[place + 1 :])
            try:
                module._read(path)
            except FailedPrecondition:
                refusals += 1
    assert refusals > len(whole)


def test_what_a_warm_up_may_take_is_bounded(
    core: Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(core, WarmUp(shapes={"x": (2**40, 3)}), "takes more than")
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    np.savez_compressed(tmp_path / "warmup.npz", x=np.zeros((1000, 3), np.float32))
    refused(core, WarmUp(file=tmp_path / "warmup.npz"), "more than 1000 bytes")


def test_a_request_that_does_not_end_is_ended_by_the_execution_timeout(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(_: Copies, job: Job) -> None:
        cancelled = threading.Event()
        job.token.attach(cancelled.set)
        assert cancelled.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(Copies, "_infer", wait)
    with pytest.raises(FailedPrecondition, match="its warm-up failed"):
        load(core, WarmUp(), EXECUTION_TIMEOUT="0.01")
