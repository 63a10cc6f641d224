"""AUTO: the choice of devices, the switch to a better one, falling back and coming back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

from headrace.plugins.cpu.config import SCHEMA as CPU_SCHEMA
from headrace.plugins.multi import loading, members
from headrace.plugins.multi.plugin import AutoPlugin
from headrace.runtime.config.device_name import DeviceName, resolve
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.device.services import Keep, Services
from headrace.runtime.device.state import DeviceState
from headrace.runtime.errors import (
    Cancelled,
    InvalidArgument,
    InvalidModel,
    NotFound,
    ResourceExhausted,
    Unavailable,
    UnsupportedLayers,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.network import Network
from headrace.runtime.system.asker import Asker, asking, current_asker
from headrace.runtime.transform.options import NetworkOptions
from headrace.testing import networks
from headrace.testing.infer_request import InferRequest
from headrace.testing.occupied import eventually
from headrace.testing.services import services as real_services
from tests.support.gate import Gate, run_together
from tests.support.moody_device import MoodyPlugin, absent, missing, moody
from tests.support.patience import PATIENCE_SECONDS

_ADD = networks.add()
_SUM = np.sum([np.asarray(value) for value in _ADD.inputs.values()], axis=0)


class Rig:
    """AUTO over moody devices: BEST and NEXT, which nobody knows and AUTO takes for accelerators,
    and CPU. CUDA has no driver."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.auto = AutoPlugin("AUTO", services, {})
        self._open: list[ExecutableNetwork] = []

    def device(self, name: str) -> MoodyPlugin:
        plugin = self.services.devices.plugin(name)
        assert isinstance(plugin, MoodyPlugin)
        return plugin

    def options(self, device: str) -> NetworkOptions:
        available = {"AUTO": [""], "MULTI": [""], **self.services.devices.available()}
        return NetworkOptions(members=resolve(DeviceName.parse(device), available).members)

    def load(self, device: str = "AUTO", **config: str) -> ExecutableNetwork:
        config = {key.replace("__", "."): text for key, text in config.items()}
        network = self.auto.load_network(Load(_ADD.network, config, self.options(device)))
        self._open.append(network)
        return network

    def close(self) -> None:
        for network in self._open:
            network.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    sources: list[PluginSource] = [moody(name) for name in ("BEST", "CPU", "NEXT")]
    with real_services([*sources, missing("CUDA"), absent("NPU")]) as offered:
        rig = Rig(offered)
        yield rig
        rig.close()


@pytest.fixture
def gate(rig: Rig) -> Iterator[Gate]:
    """Keeps BEST from compiling until it opens."""
    gate = Gate()

    def compile_later(token: CancelToken) -> None:
        token.attach(gate.open)
        gate()

    rig.device("BEST").on_compile = compile_later
    yield gate
    gate.open()


def test_a_better_device_loads_the_network_for_whoever_asked_for_it(rig: Rig) -> None:
    eve, askers = Asker("eve", trusted=False), list[Asker]()
    rig.device("BEST").on_compile = lambda *_: askers.append(current_asker())
    with asking(eve):
        rig.load("AUTO:BEST,CPU")
    eventually(lambda: bool(askers), "the better device loads it")
    assert askers == [eve]


def infer(network: ExecutableNetwork) -> None:
    outputs = InferRequest(network).infer(_ADD.inputs)
    np.testing.assert_array_equal(outputs["z"], _SUM)


def started(network: ExecutableNetwork, count: int) -> list[InferRequest]:
    requests = [InferRequest(network) for _ in range(count)]
    for request in requests:
        request.start_async(_ADD.inputs)
    return requests


def serves(network: ExecutableNetwork) -> Any:
    return network.get_metric("EXECUTION_DEVICES")


def states(network: ExecutableNetwork) -> list[str]:
    found = network.get_metric("DEVICE_STATES")
    assert isinstance(found, list)
    return found


def await_device(network: ExecutableNetwork, *devices: str) -> None:
    eventually(lambda: serves(network) == [*devices], f"the switch to {devices}")


def jobs(rig: Rig) -> dict[str, int]:
    return {name: len(rig.device(name).jobs) for name in ("BEST", "NEXT", "CPU")}


# -- start and switch --


def test_the_processor_answers_while_the_better_device_compiles(rig: Rig, gate: Gate) -> None:
    network = rig.load()
    gate.await_arrivals()
    infer(network)
    assert jobs(rig) == {"BEST": 0, "NEXT": 0, "CPU": 1}
    assert serves(network) == ["CPU"]
    assert "BEST=loading" in network.get_metric("DEVICE_STATES")  # type: ignore[operator]
    gate.open()
    await_device(network, "BEST")
    infer(network)
    assert jobs(rig) == {"BEST": 1, "NEXT": 0, "CPU": 1}


def test_what_came_before_the_switch_ends_where_it_is_and_once(rig: Rig, gate: Gate) -> None:
    network = rig.load()
    gate.await_arrivals()
    running = Gate()
    rig.device("CPU").on_infer = lambda _: running()
    requests = started(network, 6)
    running.await_arrivals()
    gate.open()
    await_device(network, "BEST")
    infer(network)
    running.open()
    for request in requests:
        request.result(PATIENCE_SECONDS)
    assert jobs(rig) == {"BEST": 1, "NEXT": 0, "CPU": 6}


def test_a_better_device_that_does_not_load_is_reported_and_the_next_one_tried(rig: Rig) -> None:
    rig.device("BEST").refuses(InvalidModel("too odd"))
    network = rig.load()
    await_device(network, "NEXT")
    assert "BEST was left out: too odd" in network.notes
    assert "BEST=failed: too odd" in network.get_metric("DEVICE_STATES")  # type: ignore[operator]


def test_if_no_better_device_loads_the_processor_stays(rig: Rig) -> None:
    for name in ("BEST", "NEXT"):
        rig.device(name).refuses(RuntimeError("secret"))
    network = rig.load()
    eventually(lambda: any("NEXT" in note for note in network.notes), "the last failure")
    assert serves(network) == ["CPU"]
    assert "secret" not in "".join(network.notes)
    infer(network)


def test_without_the_processor_the_load_waits_for_the_best_device(rig: Rig) -> None:
    network = rig.load("AUTO:-CPU")
    assert serves(network) == ["BEST"]
    assert not rig.device("CPU").compiled


def test_the_load_may_wait_for_the_best_device(rig: Rig) -> None:
    network = rig.load(ENABLE_STARTUP_FALLBACK="NO")
    assert serves(network) == ["BEST"]
    assert not rig.device("CPU").compiled


def test_if_the_processor_does_not_load_the_network_the_best_one_that_does_serves(rig: Rig) -> None:
    rig.device("CPU").refuses(Unavailable("out of order"))
    rig.device("BEST").refuses(Unavailable("out of order"))
    network = rig.load()
    assert serves(network) == ["NEXT"]
    assert "CPU was left out: out of order" in network.notes


def test_closing_ends_a_load_under_way(rig: Rig, gate: Gate) -> None:
    network = rig.load()
    gate.await_arrivals()
    network.close()
    assert not rig.device("BEST").compiled
    assert [each.closed for each in rig.device("CPU").compiled] == [1]


def test_a_network_may_be_closed_while_it_begins_a_load(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = rig.load("AUTO:BEST,NEXT")
    begun: list[Future[Any]] = []

    def submit(*load: Any) -> Future[Any]:
        run_together(network.close)
        begun.append(real(*load))
        return begun[-1]

    assert rig.services.loads is not None
    real = rig.services.loads.submit
    monkeypatch.setattr(rig.services.loads, "submit", submit)
    rig.services.states.set("BEST", DeviceState.DOWN, "unplugged")
    (load,) = begun
    load.exception(PATIENCE_SECONDS)
    assert not rig.device("NEXT").compiled


def test_a_load_that_ends_as_its_network_is_closed_leaves_nothing_loaded(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = rig.load("AUTO:BEST,NEXT")
    loaded = Gate()
    begun: list[Future[Any]] = []

    def load_member(*arguments: Any) -> Any:
        member = real_load_member(*arguments)
        loaded()
        return member

    def submit(*load: Any) -> Future[Any]:
        begun.append(real(*load))
        loaded.await_arrivals()
        run_together(network.close)  # it does not know yet of this load
        loaded.open()
        return begun[-1]

    real_load_member = loading.load_member
    monkeypatch.setattr(members, "load_member", load_member)
    assert rig.services.loads is not None
    real = rig.services.loads.submit
    monkeypatch.setattr(rig.services.loads, "submit", submit)
    rig.services.states.set("BEST", DeviceState.DOWN, "unplugged")
    (load,) = begun
    assert load.exception(PATIENCE_SECONDS) is None
    assert [each.closed for each in rig.device("NEXT").compiled] == [1]


def test_closing_closes_every_copy(rig: Rig) -> None:
    network = rig.load()
    await_device(network, "BEST")
    network.close()
    for name in ("BEST", "CPU"):
        assert [each.closed for each in rig.device(name).compiled] == [1]


def test_the_other_copy_may_be_given_up_after_the_switch(rig: Rig) -> None:
    network = rig.load(ENABLE_RUNTIME_FALLBACK="NO")
    await_device(network, "BEST")
    eventually(lambda: rig.device("CPU").compiled[0].closed == 1, "the end of the copy")
    infer(network)


def test_a_better_device_takes_room_in_the_memory_budget_and_the_one_before_gives_it_back(
    rig: Rig,
) -> None:
    account = list[str]()
    refusals = [ResourceExhausted("no room")]

    @contextmanager
    def lent(name: str, device: DeviceName, _: Network) -> Iterator[Keep]:
        if refusals:
            raise refusals.pop()
        account.append(f"lent to {device}")
        yield lambda: partial(account.append, "given back")

    object.__setattr__(rig.services, "lent", lent)
    network = rig.load("AUTO:BEST,CPU", ENABLE_RUNTIME_FALLBACK="NO")
    await_device(network, "BEST")  # it is tried again
    eventually(lambda: len(account) == 2, "the end of the first copy")
    assert account == ["lent to BEST", "given back"]


def test_a_copy_is_given_up_once_its_last_request_has_ended(rig: Rig, gate: Gate) -> None:
    network = rig.load(ENABLE_RUNTIME_FALLBACK="NO")
    gate.await_arrivals()
    running = Gate()
    rig.device("CPU").on_infer = lambda _: running()
    request = InferRequest(network)
    request.start_async(_ADD.inputs)
    running.await_arrivals()
    gate.open()
    await_device(network, "BEST")
    assert not rig.device("CPU").compiled[0].closed
    running.open()
    request.result(PATIENCE_SECONDS)
    eventually(lambda: rig.device("CPU").compiled[0].closed == 1, "the end of the copy")


def test_what_was_set_meanwhile_counts_on_the_better_device_too(rig: Rig, gate: Gate) -> None:
    network = rig.load()
    gate.await_arrivals()
    network.set_config({"EXECUTION_TIMEOUT": "7"})
    gate.open()
    await_device(network, "BEST")
    assert rig.device("BEST").compiled[0].config.get_parameter("EXECUTION_TIMEOUT") == 7.0


def test_what_is_set_while_the_better_device_is_set_counts_in_the_end(rig: Rig, gate: Gate) -> None:
    network = rig.load()
    gate.await_arrivals()
    network.set_config({"EXECUTION_TIMEOUT": "7"})
    setting = Gate()

    def hold(changes: Mapping[str, str]) -> None:
        if changes["EXECUTION_TIMEOUT"] == "7":
            setting()

    rig.device("BEST").on_set_config = hold
    gate.open()
    setting.await_arrivals()
    network.set_config({"EXECUTION_TIMEOUT": "8"})
    setting.open()
    await_device(network, "BEST")
    assert rig.device("BEST").compiled[0].config.get_parameter("EXECUTION_TIMEOUT") == 8.0


# -- falling back and coming back --


def test_requests_fall_back_when_the_device_fails_and_come_back_when_it_works(rig: Rig) -> None:
    network = rig.load()
    await_device(network, "BEST")
    rig.device("BEST").breaks(Unavailable("gone"))
    infer(network)
    assert jobs(rig)["CPU"] == 1
    rig.device("BEST").mends()

    def is_back() -> bool:
        infer(network)
        return bool(serves(network) == ["BEST"])

    eventually(is_back, "the device's return")


def test_the_devices_own_word_counts_at_once(rig: Rig) -> None:
    network = rig.load()
    await_device(network, "BEST")
    rig.services.states.set("BEST", DeviceState.RESTARTING, "it crashed")
    assert serves(network) == ["CPU"]
    infer(network)
    rig.services.states.set("BEST", DeviceState.UP)
    assert serves(network) == ["BEST"]
    infer(network)
    assert jobs(rig) == {"BEST": 1, "NEXT": 0, "CPU": 1}


def test_if_nothing_serves_a_further_device_is_loaded(rig: Rig) -> None:
    network = rig.load("AUTO:BEST,NEXT")
    assert serves(network) == ["BEST"]
    rig.services.states.set("BEST", DeviceState.DOWN, "unplugged")
    infer(network)  # waits for it
    assert serves(network) == ["NEXT"]


def test_a_device_that_was_down_at_the_load_is_tried_again_when_it_is_up(rig: Rig) -> None:
    rig.services.states.set("BEST", DeviceState.RESTARTING, "it crashed")
    rig.device("BEST").refuses(Unavailable("it is being started again"))
    network = rig.load("AUTO:BEST,CPU")
    failure = "BEST=failed: it is being started again"
    eventually(lambda: failure in network.get_metric("DEVICE_STATES"), failure)  # type: ignore[operator]
    rig.device("BEST").mends()
    rig.services.states.set("BEST", DeviceState.UP)
    await_device(network, "BEST")
    assert network.get_metric("DEVICE_STATES") == ["BEST=serving", "CPU=serving"]


def test_a_device_whose_load_failed_is_tried_again_after_a_while(rig: Rig) -> None:
    rig.device("BEST").refuses(Unavailable("it is out of memory"))
    network = rig.load("AUTO:BEST,CPU")
    failure = "BEST was left out: it is out of memory"
    eventually(lambda: failure in network.notes, failure)
    rig.device("BEST").mends()
    await_device(network, "BEST")
    assert network.notes == ()


# -- the hint --


def test_one_device_serves_at_a_time(rig: Rig) -> None:
    network = rig.load()
    await_device(network, "BEST")
    running = Gate()
    rig.device("BEST").on_infer = lambda _: running()
    requests = started(network, 3)
    running.await_arrivals()
    running.open()
    for request in requests:
        request.result(PATIENCE_SECONDS)
    assert jobs(rig) == {"BEST": 3, "NEXT": 0, "CPU": 0}
    assert network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 1


def test_it_shows_the_streams_of_the_device_that_serves(rig: Rig) -> None:
    rig.device("BEST").set_config({"NUM_STREAMS": "3"})
    network = rig.load(NEXT__NUM_STREAMS="2", CPU__NUM_STREAMS="1", BEST__NUM_STREAMS="3")
    await_device(network, "BEST")
    eventually(lambda: network.config.to_strings()["NUM_STREAMS"] == "3", "its streams")
    rig.services.states.set("BEST", DeviceState.DOWN, "unplugged")
    assert network.config.to_strings()["NUM_STREAMS"] == "1"


def test_for_throughput_the_processor_takes_what_the_best_one_has_no_room_for(rig: Rig) -> None:
    network = rig.load(PERFORMANCE_HINT="THROUGHPUT")
    await_device(network, "BEST", "CPU")
    assert network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 2
    running = Gate()
    rig.device("BEST").on_infer = lambda _: running()
    stuck, other = InferRequest(network), InferRequest(network)
    stuck.start_async(_ADD.inputs)
    running.await_arrivals()
    other.infer(_ADD.inputs)
    running.open()
    stuck.result(PATIENCE_SECONDS)
    assert jobs(rig) == {"BEST": 1, "NEXT": 0, "CPU": 1}


@pytest.mark.parametrize("hint", ["LATENCY", "THROUGHPUT"])
def test_a_processor_has_all_requests_in_its_own_queue(rig: Rig, hint: str) -> None:
    network = rig.load("AUTO:CPU", PERFORMANCE_HINT=hint)
    assert network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 1
    running = Gate()
    rig.device("CPU").on_infer = lambda _: running()
    requests = started(network, 6)
    running.await_arrivals()
    assert network.get_metric("NUMBER_OF_WAITING_INFER_REQUESTS") == 0
    assert network.get_metric("NUMBER_OF_EXEC_INFER_REQUESTS") == 6
    running.open()
    for request in requests:
        request.result(PATIENCE_SECONDS)


# -- a reference device --


@pytest.fixture
def beside_a_reference() -> Iterator[Rig]:
    with real_services([moody("CPU"), moody("TEMPLATE")]) as offered:
        rig = Rig(offered)
        yield rig
        rig.close()


_SLOW = "TEMPLATE is a reference device"


def test_a_reference_device_that_serves_for_want_of_a_better_one_is_told_loudly(
    beside_a_reference: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    beside_a_reference.device("CPU").refuses(InvalidModel("no", field="model"))
    network = beside_a_reference.load()
    assert serves(network) == ["TEMPLATE"]
    assert [note for note in network.notes if note.startswith(_SLOW)]
    assert [
        each for each in caplog.records if _SLOW in each.message and each.levelname == "WARNING"
    ]


def test_a_reference_device_that_serves_because_a_better_one_fell_out_is_told_in_the_log(
    beside_a_reference: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    network = beside_a_reference.load()
    assert _SLOW not in "".join(network.notes)
    beside_a_reference.services.states.set("CPU", DeviceState.DOWN, "unplugged")
    infer(network)
    assert serves(network) == ["TEMPLATE"]
    assert [
        each for each in caplog.records if _SLOW in each.message and each.levelname == "WARNING"
    ]


@pytest.mark.parametrize("device", ["AUTO:TEMPLATE", "AUTO:TEMPLATE,CPU"])
def test_a_reference_device_that_the_caller_wants_is_not(
    beside_a_reference: Rig, caplog: pytest.LogCaptureFixture, device: str
) -> None:
    network = beside_a_reference.load(device, ENABLE_STARTUP_FALLBACK="NO")
    assert serves(network) == ["TEMPLATE"]
    assert _SLOW not in "".join((*network.notes, caplog.text))


# -- the list --


def test_devices_that_did_not_start_are_passed_over_and_reported(rig: Rig) -> None:
    (note,) = (note for note in rig.load().notes if "CUDA" in note)
    assert "device CUDA did not start: an internal error" in note
    assert rig.load("AUTO:CUDA,CPU").get_metric("EXECUTION_DEVICES") == ["CPU"]


def test_a_device_that_nobody_has_installed_is_expected_by_nobody_unless_it_is_named(
    rig: Rig,
) -> None:
    assert not [note for note in rig.load().notes if "NPU" in note]
    assert "NPU was left out: device NPU did not start: install its extra" in (
        rig.load("AUTO:NPU,CPU").notes
    )


def test_a_list_is_in_order_of_preference(rig: Rig) -> None:
    assert serves(rig.load("AUTO:CPU,BEST")) == ["CPU"]
    assert not rig.device("BEST").compiled


def test_a_device_that_lacks_the_networks_precision_comes_after_the_others(rig: Rig) -> None:
    rig.device("NEXT").capabilities = ("FP32", "FP64")
    case = networks.typed(np.float64, "double")
    network = rig.auto.load_network(Load(case.network, options=NetworkOptions()))
    await_device(network, "NEXT")
    network.close()


def test_a_device_that_does_not_take_the_precision_asked_for_is_passed_over(rig: Rig) -> None:
    rig.device("BEST").schema = CPU_SCHEMA  # which knows no bf16
    network = rig.load(INFERENCE_PRECISION_HINT="bf16")
    await_device(network, "NEXT")
    assert any("BEST" in note and "bf16" in note for note in network.notes)


def test_what_is_for_one_device_has_to_be_right(rig: Rig) -> None:
    network = rig.load(CPU__NUM_STREAMS="1", BEST__NUM_STREAMS="1")
    await_device(network, "BEST")
    with pytest.raises(InvalidArgument, match="NUM_STREAMS"):
        rig.load(BEST__NUM_STREAMS="many")
    with pytest.raises(NotFound, match="NUM_STREAMZ"):
        rig.load(NUM_STREAMZ="1")
    with pytest.raises(NotFound, match="NOBODY"):
        rig.load(NOBODY__NUM_STREAMS="1")


@pytest.mark.parametrize("inner", ["MULTI:BEST,CPU", "AUTO:BEST,CPU"])
def test_a_list_in_the_list_that_makes_no_sense_is_refused_by_name(rig: Rig, inner: str) -> None:
    members = DeviceName.parse(f"AUTO:[{inner}],CPU").members
    with pytest.raises(InvalidArgument, match=f"{inner} cannot be in a list of AUTO's"):
        rig.auto.load_network(Load(_ADD.network, options=NetworkOptions(members=members)))


def test_excluding_everything_is_refused(rig: Rig) -> None:
    with pytest.raises(InvalidArgument, match="no device left"):
        rig.load("AUTO:-BEST,-CPU,-CUDA,-NEXT")


def test_a_query_gives_the_answer_of_the_device_that_would_be_chosen(rig: Rig) -> None:
    result = rig.auto.query_network(_ADD.network, {}, rig.options("AUTO"))
    assert result.supported_layers == {"sum": "BEST"}


def test_a_network_that_no_device_runs_is_refused_with_every_layer(rig: Rig) -> None:
    with pytest.raises(UnsupportedLayers) as caught:
        rig.auto.load_network(
            Load(networks.unknown_operators().network, options=rig.options("AUTO:-CUDA"))
        )
    assert [layer.layer for layer in caught.value.layers] == ["strange"]


def test_a_load_that_is_cancelled_leaves_nothing(rig: Rig) -> None:
    token = CancelToken()
    token.cancel(Cancelled("not wanted"))
    with pytest.raises(Cancelled):
        rig.auto.load_network(Load(_ADD.network, options=NetworkOptions(), token=token))


# -- export and import --


def test_it_exports_what_it_chose_and_starts_on_that_again(rig: Rig) -> None:
    network = rig.load()
    await_device(network, "BEST")
    native = network.export()
    imported = rig.auto.load_network(Load(_ADD.network, options=NetworkOptions(), native=native))
    assert serves(imported) == ["BEST"]
    assert rig.device("BEST").imported == [b"BEST"]
    assert len(rig.device("CPU").compiled) == 1  # of the first load
    imported.close()


def test_bytes_that_are_damaged_are_not_used_and_a_note_says_so(rig: Rig) -> None:
    imported = rig.auto.load_network(
        Load(_ADD.network, options=NetworkOptions(), native=b"damaged")
    )
    assert any("compiled anew" in note for note in imported.notes)
    imported.close()
