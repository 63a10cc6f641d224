"""AUTO measures its devices, and the fastest one serves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from headrace.plugins.multi import contest, measuring
from headrace.plugins.multi.device_list import Policy
from headrace.plugins.multi.measuring import Measuring
from headrace.plugins.multi.members import PoolMembers
from headrace.plugins.multi.plugin import AutoPlugin
from headrace.plugins.multi.speed_meter import SettledRun, SpeedFigures, SpeedMeter
from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.config.device_name import DeviceName, resolve
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.services import Services
from headrace.runtime.errors import InvalidArgument, InvalidModel, ResourceExhausted
from headrace.runtime.execution.background import Background
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.request_shapes import RequestShapes
from headrace.runtime.network.network import Network, Port
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.transform.warm_up import WarmUp
from headrace.testing import networks
from headrace.testing.case import Case, parse
from headrace.testing.infer_request import InferRequest
from headrace.testing.occupied import eventually
from headrace.testing.services import services as real_services
from tests.support.gate import Gate, join
from tests.support.moody_device import MoodyPlugin, moody
from tests.support.patience import PATIENCE_SECONDS

_ADD = networks.add()
_NAMES = ("SLOW", "FAST", "CPU")
_LATENCY = {"SLOW": 3.0, "FAST": 1.0, "CPU": 2.0}
_RATE = {"SLOW": 9.0, "FAST": 1.0, "CPU": 2.0}


class Rig:
    """AUTO over SLOW, FAST and CPU, of which a test says how fast they are.

    Attributes:
        measured: the devices of each measurement that has run.
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        self.auto = AutoPlugin("AUTO", services, {})
        self.measured: list[list[str]] = []
        self._open: list[ExecutableNetwork] = []

    def device(self, name: str) -> MoodyPlugin:
        plugin = self.services.devices.plugin(name)
        assert isinstance(plugin, MoodyPlugin)
        return plugin

    def load(self, device: str = "AUTO:SLOW,FAST,CPU", **config: str) -> ExecutableNetwork:
        available = {"AUTO": [""], **self.services.devices.available()}
        members = resolve(DeviceName.parse(device), available).members
        options = NetworkOptions(members=members)
        network = self.auto.load_network(Load(_ADD.network, config, options))
        self._open.append(network)
        network.count_as("m", self.services.counters.network("m", "AUTO"))
        return network

    def measure(self, runs: Sequence[SettledRun], inputs: Mapping[str, Any]) -> list[SpeedFigures]:
        names = [run.executable.place.device for run in runs]
        self.measured.append(names)
        return [SpeedFigures(_LATENCY[name], _RATE[name]) for name in names]

    def close(self) -> None:
        for network in self._open:
            network.close()
        self.auto.close()


@contextmanager
def rigged(
    monkeypatch: pytest.MonkeyPatch,
    cache: NetworkCache | None = None,
    change: Callable[[Services], Services] = lambda services: services,
) -> Iterator[Rig]:
    monkeypatch.setattr(contest, "FIRST_SECONDS", 0.0)
    with real_services([moody(name) for name in (*_NAMES, "TEMPLATE")], cache) as offered:
        rig = Rig(change(offered))
        monkeypatch.setattr(SpeedMeter, "measure", lambda _, *given: rig.measure(*given))
        yield rig
        rig.close()


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    with rigged(monkeypatch) as made:
        yield made


def serves(network: ExecutableNetwork) -> Any:
    return network.get_metric("EXECUTION_DEVICES")


def rows(network: ExecutableNetwork) -> dict[str, dict[str, Any]]:
    found = network.get_metric("CANDIDATES")
    assert isinstance(found, list)
    return {row["device"]: row for row in (json.loads(str(text)) for text in found)}


def await_measured(network: ExecutableNetwork) -> None:
    eventually(
        lambda: any(note.startswith("measured: ") for note in network.notes), "a measurement"
    )


def copies(rig: Rig, name: str) -> list[int]:
    return [each.closed for each in rig.device(name).compiled]


def test_the_fastest_device_serves_whatever_its_place(rig: Rig) -> None:
    network = rig.load()
    await_measured(network)
    assert serves(network) == ["FAST"]
    assert rows(network)["FAST"] == {
        "device": "FAST",
        "latency_seconds": 1.0,
        "requests_per_second": 1.0,
        "chosen": True,
        "why": "3.00 times as fast as SLOW, by latency",
    }
    outputs = InferRequest(network).infer(_ADD.inputs)
    assert outputs.keys() == {"z"}


def test_a_device_has_to_be_faster_twice(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def lucky(*_: object) -> list[SpeedFigures]:
        rig.measured.append([])
        first = 0.5 if len(rig.measured) == 1 else 2.0
        return [SpeedFigures(1.0, 1.0), SpeedFigures(first, 1.0)]

    monkeypatch.setattr(SpeedMeter, "measure", lucky)
    network = rig.load("AUTO:CPU,FAST")
    await_measured(network)
    assert serves(network) == ["CPU"]
    assert len(rig.measured) == 2


def test_for_throughput_it_is_the_one_with_the_most_requests(rig: Rig) -> None:
    network = rig.load("AUTO:FAST,SLOW", PERFORMANCE_HINT="THROUGHPUT")
    await_measured(network)
    assert serves(network)[0] == "SLOW"


def test_a_copy_that_was_only_measured_is_closed(rig: Rig) -> None:
    network = rig.load("AUTO:FAST,CPU,SLOW")
    await_measured(network)
    assert serves(network) == ["FAST"]
    eventually(lambda: copies(rig, "SLOW") == [1], "the end of the copy")
    assert copies(rig, "FAST") == copies(rig, "CPU") == [0]  # CPU stands by, as before


def test_without_fallback_only_the_fastest_copy_stays(rig: Rig) -> None:
    network = rig.load(ENABLE_RUNTIME_FALLBACK="NO")
    await_measured(network)
    eventually(lambda: 0 not in copies(rig, "SLOW") + copies(rig, "CPU"), "the end of the copies")
    assert copies(rig, "FAST") == [0]


def test_the_table_is_that_of_the_device_that_serves_also_while_copies_are_closed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, loaded, close_all = [], threading.Event(), measuring._close_all

    def close(members: Any) -> None:
        assert loaded.wait(PATIENCE_SECONDS)
        seen.append(rows(network))
        close_all(members)

    monkeypatch.setattr(measuring, "_close_all", close)
    network = rig.load()
    loaded.set()
    await_measured(network)
    assert seen == [rows(network)]
    assert seen[0]["FAST"]["chosen"]


def test_with_priority_nothing_is_measured(rig: Rig) -> None:
    network = rig.load("AUTO:CPU,FAST", CHOICE="PRIORITY")
    assert not copies(rig, "FAST")
    assert rows(network)["FAST"]["why"] == "it is not measured"
    assert rows(network)["CPU"]["chosen"]


def test_who_puts_the_reference_device_first_keeps_it(rig: Rig) -> None:
    network = rig.load("AUTO:TEMPLATE,FAST", ENABLE_STARTUP_FALLBACK="NO")
    assert rows(network)["TEMPLATE"]["why"] == "it is not measured"
    assert serves(network) == ["TEMPLATE"]


def test_a_device_that_does_not_load_it_is_not_chosen_and_says_why(rig: Rig) -> None:
    rig.device("FAST").refuses(InvalidModel("too odd"))
    network = rig.load("AUTO:CPU,FAST,SLOW")
    await_measured(network)
    assert serves(network) == ["CPU"]
    assert rows(network)["FAST"]["why"] == "it was not measured: too odd"
    assert rig.measured == [["CPU", "SLOW"]]


def test_a_network_that_refuses_the_values_keeps_the_order(rig: Rig) -> None:
    for name in _NAMES:
        rig.device(name).breaks(InvalidArgument("no such token"))
    network = rig.load("AUTO:CPU,FAST")
    await_measured(network)
    assert serves(network) == ["CPU"]
    assert rows(network)["CPU"]["why"] == "it was not measured: no such token"
    assert not rig.measured
    assert "measured: CPU serves: CPU: it was not measured: no such token" in network.notes[-1]


def test_the_error_of_a_bug_is_in_the_log_and_not_in_the_metric(rig: Rig) -> None:
    rig.device("FAST").refuses(RuntimeError("secret"))
    network = rig.load("AUTO:CPU,FAST")
    await_measured(network)
    assert "secret" not in str(rows(network))


def test_a_device_that_fails_when_it_runs_keeps_no_other_from_serving(rig: Rig) -> None:
    rig.device("SLOW").breaks(RuntimeError("secret"))
    network = rig.load("AUTO:CPU,SLOW,FAST")
    await_measured(network)
    assert serves(network) == ["FAST"]
    assert rows(network)["SLOW"]["why"].endswith("an internal error; see the server's log")


def test_a_measurement_that_fails_changes_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(SpeedMeter, "measure", fail)
    network = rig.load("AUTO:CPU,FAST")
    await_measured(network)
    assert serves(network) == ["CPU"]
    assert "secret" not in str(rows(network))


def test_the_runs_take_the_values_of_the_warm_up(rig: Rig, tmp_path: Path) -> None:
    given = {name: np.full_like(value, 7) for name, value in _ADD.inputs.items()}
    np.savez(tmp_path / "inputs.npz", **given)  # type: ignore[arg-type]
    options = NetworkOptions(members=DeviceName.parse("AUTO:CPU,FAST").members)
    warm_up = WarmUp(file=tmp_path / "inputs.npz")
    network = rig.auto.load_network(Load(_ADD.network, options=options, warm_up=warm_up))
    rig._open.append(network)
    network.count_as("m", rig.services.counters.network("m", "AUTO"))
    await_measured(network)
    for job in rig.device("FAST").jobs:
        assert all((np.asarray(value) == 7).all() for value in job.inputs.values())


def test_a_measurement_waits_for_the_end_of_requests(rig: Rig) -> None:
    running = Gate()
    rig.device("CPU").on_infer = lambda _: running()
    network = rig.load("AUTO:CPU,FAST", CHOICE="PRIORITY")
    request = InferRequest(network)
    request.start_async(_ADD.inputs)
    running.await_arrivals()
    other = rig.load("AUTO:FAST,SLOW")
    assert not rig.measured
    running.open()
    request.result(PATIENCE_SECONDS)
    await_measured(other)
    assert rig.measured == [["FAST", "SLOW"]]


def _measuring(rig: Rig, ports: Sequence[Port]) -> Measuring:
    members: Any = SimpleNamespace(
        services=rig.services,
        policy=Policy(all_of_them=False, background=Background("measure")),
        candidates={},
        original=None,
    )
    return Measuring(members, ports, RequestShapes(ports), "", print)


def test_a_network_of_many_inputs_of_any_size_is_measured(rig: Rig) -> None:
    ports = [Port(f"x{each}", ir.DataType.FLOAT, ("n",)) for each in range(65)]
    measuring = _measuring(rig, ports)
    measuring._shapes.add(
        measuring._shapes.of({port.name: np.zeros(3, np.float32) for port in ports})
    )
    assert measuring._agenda.wanted() is not None


def test_a_network_that_takes_sequences_of_tensors_is_not_measured(rig: Rig) -> None:
    given = Case("n", parse("n (seq(float[2]) x) => (int64 y) { y = SequenceLength(x) }"), {})
    options = NetworkOptions(members=DeviceName.parse("AUTO:CPU,FAST").members)
    network = rig.auto.load_network(Load(given.network, options=options))
    rig._open.append(network)
    assert {row["why"] for row in rows(network).values()} == {"it is not measured"}


def test_a_network_that_takes_texts_is_measured_with_texts(rig: Rig) -> None:
    ports = [Port("x", ir.DataType.STRING, (2,))]
    network: Any = SimpleNamespace(inputs=ports)
    measuring = _measuring(rig, ports)
    made = measuring._made(network, measuring._shapes.of({"x": np.full(2, b"", object)}))["x"]
    assert isinstance(made, np.ndarray)
    assert made.tolist() == [b"", b""]


def test_an_unload_ends_a_measurement_and_leaves_nothing(rig: Rig) -> None:
    began = threading.Event()

    def hold(job: Job) -> None:
        ended = threading.Event()
        job.token.attach(ended.set)
        began.set()
        assert ended.wait(PATIENCE_SECONDS)

    rig.device("FAST").on_infer = hold
    network = rig.load("AUTO:CPU,FAST")
    assert began.wait(PATIENCE_SECONDS)
    network.close()
    assert copies(rig, "FAST") == copies(rig, "CPU") == [1]


def test_what_was_measured_while_a_device_came_back_does_not_count(rig: Rig) -> None:
    running = Gate()
    rig.device("FAST").on_infer = lambda _: running()
    network: Any = rig.load("AUTO:CPU,FAST")
    running.await_arrivals()
    network._members.arrivals += 1
    running.open()
    await_measured(network)
    assert serves(network) == ["FAST"]
    assert len(rig.measured) == 4  # each measurement takes two: the winner has to win twice


def test_a_measurement_that_begins_as_soon_as_a_device_has_loaded_it_counts(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = PoolMembers._ask

    def wait_then(members: PoolMembers, event: Any) -> None:
        ask(members, event)
        if event == members._choice.loaded:
            eventually(lambda: bool(rig.measured), "a measurement")

    monkeypatch.setattr(PoolMembers, "_ask", wait_then)
    network = rig.load()
    await_measured(network)
    assert serves(network) == ["FAST"]
    assert len(rig.measured) == 2


def test_a_copy_that_is_given_up_during_a_measurement_is_closed_after_it(rig: Rig) -> None:
    running = Gate()
    rig.device("FAST").on_infer = lambda _: running()
    network: Any = rig.load("AUTO:CPU,FAST")
    running.await_arrivals()
    closed = threading.Event()
    network._members._unload(SimpleNamespace(executable=SimpleNamespace(close=closed.set)))
    assert not closed.is_set()
    running.open()
    assert closed.wait(PATIENCE_SECONDS)


def test_a_measurement_whose_turns_disagree_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured: list[float] = []

    def lucky(*_: object) -> list[SpeedFigures]:
        measured.append(2.0 if len(measured) % 2 else 0.5)
        return [SpeedFigures(1.0, 1.0), SpeedFigures(measured[-1], 1.0)]

    with rigged(monkeypatch, NetworkCache(tmp_path, b"key", 2**20)) as rig:
        monkeypatch.setattr(SpeedMeter, "measure", lucky)
        for turns in (2, 4):
            await_measured(rig.load("AUTO:CPU,FAST"))
            assert len(measured) == turns


def test_what_was_measured_is_kept_by_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with rigged(monkeypatch, NetworkCache(tmp_path, b"key", 2**20)) as rig:
        for device in ("AUTO:SLOW,FAST", "AUTO:SLOW,FAST"):
            network = rig.load(device)
            await_measured(network)
            assert serves(network) == ["FAST"]
        assert len(rig.measured) == 2  # the second confirms the first
        network = rig.load("AUTO:SLOW,FAST,CPU")  # other devices: another measurement
        await_measured(network)
        assert len(rig.measured) == 4


@contextmanager
def _lends(kept: list[str], device: DeviceName) -> Iterator[Any]:
    if device.type == "SLOW":
        raise ResourceExhausted("no room")

    yield lambda: kept.append(device.type)


def test_a_copy_needs_room_in_the_memory_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[str] = []

    def lent(name: str, device: DeviceName, network: Network) -> AbstractContextManager[Any]:
        return _lends(kept, device)

    with rigged(monkeypatch, change=lambda services: replace(services, lent=lent)) as rig:
        network = rig.load("AUTO:CPU,FAST,SLOW")
        await_measured(network)
        assert serves(network) == ["FAST"]
        assert kept == ["FAST"]
        assert rows(network)["SLOW"]["why"] == "it was not measured: no room"


def test_a_device_that_had_no_room_is_measured_when_there_is_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contest, "BETWEEN_SECONDS", 0.0)
    monkeypatch.setattr(contest, "_LONGEST_PAUSE_SECONDS", 0.0)
    refusals = [ResourceExhausted("no room")] * 2

    @contextmanager
    def lent(*_: object) -> Iterator[Any]:
        if refusals:
            raise refusals.pop()
        yield lambda: None

    with rigged(monkeypatch, change=lambda services: replace(services, lent=lent)) as rig:
        network = rig.load("AUTO:CPU,FAST")
        eventually(lambda: serves(network) == ["FAST"], "the choice of the fastest device")


def test_two_loads_and_unloads_while_it_measures_end(rig: Rig) -> None:
    loaded = [rig.load("AUTO:SLOW,FAST,CPU") for _ in range(4)]
    threads = [threading.Thread(target=network.close) for network in loaded]
    for thread in threads:
        thread.start()
    join(*threads)
    for name in _NAMES:
        assert 0 not in copies(rig, name)
