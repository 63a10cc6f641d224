"""MULTI: loading on a list of devices, and requests on whichever of them is free."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from headrace.plugins import hetero, multi
from headrace.plugins.multi.plugin import MultiPlugin
from headrace.plugins.multi.running import availability
from headrace.runtime.config.device_name import DeviceName, resolve
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.device.services import Services
from headrace.runtime.device.state import DeviceState
from headrace.runtime.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    InvalidModel,
    NotFound,
    Unavailable,
    UnsupportedLayers,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job, Outcome
from headrace.runtime.execution.trace import Span, Trace
from headrace.runtime.metrics import families
from headrace.runtime.system.backoff import Backoff
from headrace.runtime.transform.options import NetworkOptions
from headrace.testing import networks
from headrace.testing.counted import number
from headrace.testing.infer_request import InferRequest, RequestState
from headrace.testing.occupied import eventually
from headrace.testing.services import services as real_services
from tests.support.fake_device import Outcomes
from tests.support.gate import Gate
from tests.support.moody_device import MoodyNetwork, MoodyPlugin, missing, moody
from tests.support.patience import PATIENCE_SECONDS

_ADD = networks.add()
_SUM = np.sum([np.asarray(value) for value in _ADD.inputs.values()], axis=0)


class Rig:
    """MULTI over moody devices A, B and C; D has no driver."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.multi = MultiPlugin("MULTI", services, {})
        self.outcomes = Outcomes()
        self._open: list[ExecutableNetwork] = []

    def device(self, name: str) -> MoodyPlugin:
        plugin = self.services.devices.plugin(name)
        assert isinstance(plugin, MoodyPlugin)
        return plugin

    def options(self, device: str) -> NetworkOptions:
        available = {"MULTI": [""], "AUTO": [""], **self.services.devices.available()}
        return NetworkOptions(members=resolve(DeviceName.parse(device), available).members)

    def load(self, device: str = "MULTI:A,B", **config: str) -> ExecutableNetwork:
        config = {key.replace("__", "."): text for key, text in config.items()}
        network = self.multi.load_network(Load(_ADD.network, config, self.options(device)))
        self._open.append(network)
        network.count_as("n", self.services.counters.network("n", "MULTI"))
        return network

    def submit(self, network: ExecutableNetwork, **conditions: Any) -> Job:
        job = self.outcomes.job(dict(_ADD.inputs), **conditions)
        network.submit(job)
        return job

    def counted(self, name: str) -> dict[tuple[str, ...], float]:
        """The network's series of that name that have counted something, by their labels."""
        return {
            each.labels[2:]: each.value
            for each in self.services.counters.snapshot()
            if each.family.name == name and isinstance(each.value, float) and each.value
        }

    def close(self) -> None:
        for network in self._open:
            network.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    sources: list[PluginSource] = [moody(name) for name in "ABC"]
    splits = PluginSource("HETERO", lambda: hetero.create_plugin)
    with real_services([*sources, missing("D"), splits]) as offered:
        rig = Rig(offered)
        yield rig
        rig.close()


def hold(rig: Rig, *names: str) -> Gate:
    """Keeps requests on these devices until the gate opens."""
    gate = Gate()
    for name in names:
        rig.device(name).on_infer = lambda _: gate()
    return gate


def states(network: ExecutableNetwork) -> list[str]:
    found = network.get_metric("DEVICE_STATES")
    assert isinstance(found, list)
    return found


def await_state(network: ExecutableNetwork, state: str) -> None:
    eventually(lambda: state in states(network), state)


# -- the list --


def test_without_a_list_the_remedy_is_said(rig: Rig) -> None:
    with pytest.raises(InvalidArgument, match=r"MULTI:CPU\(4\).*MULTI_DEVICE_PRIORITIES") as caught:
        rig.load("MULTI")
    assert caught.value.field == "device"


def test_the_list_may_be_set_on_the_device(rig: Rig) -> None:
    rig.multi.set_config({"MULTI_DEVICE_PRIORITIES": "B(2),A"})
    network = rig.load("MULTI")
    assert network.config.get_parameter("MULTI_DEVICE_PRIORITIES") == "B(2),A(1)"


def test_it_works_as_long_as_one_device_does(rig: Rig) -> None:
    network = rig.load()
    assert network.works({"A": False})
    assert not network.works({"A": False, "B": False})


def test_the_list_may_be_given_at_load(rig: Rig) -> None:
    network = rig.load("MULTI", MULTI_DEVICE_PRIORITIES="C")
    assert network.get_metric("EXECUTION_DEVICES") == ["C"]


@pytest.mark.parametrize(
    ("text", "error"), [("A,,B", InvalidArgument), ("A(0)", InvalidArgument), ("A,Z", NotFound)]
)
def test_what_is_no_list_of_devices_is_refused(rig: Rig, text: str, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        rig.load("MULTI", MULTI_DEVICE_PRIORITIES=text)
    assert caught.value.field == "config['MULTI_DEVICE_PRIORITIES']"  # type: ignore[attr-defined]
    with pytest.raises(error):
        rig.multi.set_config({"MULTI_DEVICE_PRIORITIES": text})


@pytest.mark.parametrize("inner", ["MULTI:B,C", "AUTO:B,C", "HETERO:[AUTO:B,C],A"])
def test_a_list_in_the_list_that_makes_no_sense_is_refused_by_name(rig: Rig, inner: str) -> None:
    members = DeviceName.parse(f"MULTI:A,[{inner}]").members
    with pytest.raises(InvalidArgument, match=re.escape(f"{inner} cannot be in a list")):
        rig.multi.load_network(Load(_ADD.network, options=NetworkOptions(members=members)))


# -- configuration --


def test_a_key_goes_to_every_device_and_with_a_prefix_to_one(rig: Rig) -> None:
    rig.device("A").set_config({"NUM_STREAMS": "8"})
    rig.device("B").set_config({"NUM_STREAMS": "8"})
    rig.load(NUM_STREAMS="3", B__NUM_STREAMS="5")
    assert rig.device("A").compiled[0].config.get_parameter("NUM_STREAMS") == 3
    assert rig.device("B").compiled[0].config.get_parameter("NUM_STREAMS") == 5


def test_what_only_the_list_has_goes_to_no_device(rig: Rig) -> None:
    rig.load(STRICT="YES")
    assert "STRICT" not in rig.device("A").compiled[0].config.schema


@pytest.mark.parametrize("device", ["MULTI:A,B", "MULTI:A,D"])
def test_a_bad_key_is_refused_although_a_device_may_fail(rig: Rig, device: str) -> None:
    with pytest.raises(NotFound, match="NUM_STREAM"):
        rig.load(device, NUM_STREAM="3")
    with pytest.raises(InvalidArgument, match="NUM_STREAMS"):
        rig.load(device, A__NUM_STREAMS="many")
    with pytest.raises(NotFound, match="'C'"):
        rig.load(device, C__NUM_STREAMS="3")
    with pytest.raises(InvalidArgument, match="QUEUE_CAPACITY"):
        rig.load(device, A__QUEUE_CAPACITY="3")


def test_the_devices_take_what_may_change_on_a_loaded_network(rig: Rig) -> None:
    network = rig.load()
    network.set_config({"EXECUTION_TIMEOUT": "7"})
    for name in "AB":
        assert rig.device(name).compiled[0].config.get_parameter("EXECUTION_TIMEOUT") == 7.0


def test_affinities_go_to_the_devices_that_split_networks(rig: Rig) -> None:
    options = NetworkOptions(
        affinities={"sum": "B"}, members=DeviceName.parse("MULTI:[HETERO:A,B],C").members
    )
    network = rig.multi.load_network(Load(_ADD.network, options=options))
    assert network.get_metric("EXECUTION_DEVICES") == ["B", "C"]
    assert not network.notes
    network.close()
    whole = NetworkOptions(affinities={"sum": "B"}, members=DeviceName.parse("MULTI:A,B").members)
    with pytest.raises(InvalidArgument, match="affinities"):
        rig.multi.load_network(Load(_ADD.network, options=whole))


# -- devices that do not load --


def test_a_device_that_does_not_load_is_reported_and_the_others_serve(rig: Rig) -> None:
    rig.device("A").refuses(Unavailable("out of order"))
    network = rig.load()
    assert network.notes == ("A was left out: out of order",)
    assert network.get_metric("EXECUTION_DEVICES") == ["B"]
    assert rig.submit(network).outcome in (None, Outcome.COMPLETED)
    assert rig.outcomes.wait()[0].outcome is Outcome.COMPLETED


def test_a_device_that_did_not_start_is_reported_with_its_reason(rig: Rig) -> None:
    network = rig.load("MULTI:D,A")
    (note,) = network.notes
    assert note == "D was left out: device D did not start: an internal error; see the server's log"


def test_a_bug_of_a_device_is_reported_without_its_text(rig: Rig) -> None:
    rig.device("A").refuses(RuntimeError("secret"))
    assert "secret" not in "".join(rig.load().notes)


@pytest.mark.parametrize("device", ["MULTI:A,B", "MULTI:A,D"])
def test_a_strict_load_fails_with_the_devices_error(rig: Rig, device: str) -> None:
    rig.device("B").refuses(Unavailable("out of order"))
    with pytest.raises(Unavailable):
        rig.load(device, STRICT="YES")
    assert all(each.closed for each in rig.device("A").compiled)


def test_if_no_device_loads_all_their_reasons_are_said(rig: Rig) -> None:
    rig.device("A").refuses(InvalidModel("too odd"))
    rig.device("B").refuses(Unavailable("out of order"))
    with pytest.raises(FailedPrecondition, match=r"A: too odd; B: out of order"):
        rig.load()


def test_the_class_that_their_errors_share_stays(rig: Rig) -> None:
    for name in "AB":
        rig.device(name).refuses(Unavailable("out of order"))
    with pytest.raises(Unavailable, match=r"A: .*B: "):
        rig.load()


def test_a_layer_that_no_device_runs_is_listed_once_with_each_reason(rig: Rig) -> None:
    network = networks.unknown_operators().network
    with pytest.raises(UnsupportedLayers) as caught:
        rig.multi.load_network(Load(network, options=rig.options("MULTI:A,B")))
    assert [layer.layer for layer in caught.value.layers] == ["strange"]
    assert caught.value.layers[0].reason == "A, B: no kernel"


def test_a_load_that_is_cancelled_closes_what_was_loaded(rig: Rig) -> None:
    def cancel(token: Any) -> None:
        token.cancel(Cancelled("not wanted"))

    rig.device("B").on_compile = cancel
    with pytest.raises(Cancelled):
        rig.load()
    assert [each.closed for each in rig.device("A").compiled] == [1]


def test_closing_the_network_closes_it_on_every_device(rig: Rig) -> None:
    rig.load().close()
    assert [rig.device(name).compiled[0].closed for name in "AB"] == [1, 1]


def test_a_device_that_failed_to_load_is_asked_again_and_takes_its_place(rig: Rig) -> None:
    rig.device("A").refuses(Unavailable("out of order"))
    network = rig.load("MULTI:A(2),B")
    assert states(network) == ["B=serving", "A=failed: out of order"]
    assert network.config.get_parameter("MULTI_DEVICE_PRIORITIES") == "A(2),B(1)"
    assert rig.counted("member_load_failures_total") == {("A",): 1}
    rig.device("A").mends()
    await_state(network, "A=serving")
    assert states(network) == ["A=serving", "B=serving"]
    assert network.notes == ()
    InferRequest(network).infer(_ADD.inputs)
    assert len(rig.device("A").jobs) == 1


def test_it_is_asked_at_once_when_it_says_that_it_is_up(rig: Rig) -> None:
    rig.services.states.set("A", DeviceState.DOWN, "unplugged")
    rig.device("A").refuses(Unavailable("unplugged"))
    network = rig.load()
    for count in (2, 3):  # by then the next time is seconds away
        wanted = {("A",): float(count)}
        eventually(lambda: rig.counted("member_load_failures_total") == wanted, "failures")  # noqa: B023
    rig.device("A").mends()
    rig.services.states.set("A", DeviceState.UP)
    await_state(network, "A=serving")


def test_a_bug_and_a_lack_of_memory_may_pass_but_a_network_stays_unsupported(rig: Rig) -> None:
    rig.device("A").refuses(RuntimeError("secret"))
    rig.device("C").refuses(InvalidModel("too odd"))
    network = rig.load("MULTI:A,B,C")
    for name in "AC":
        rig.device(name).mends()
    await_state(network, "A=serving")
    assert states(network)[-1] == "C=failed: too odd"
    assert network.config.get_parameter("MULTI_DEVICE_PRIORITIES") == "A(1),B(1)"
    assert network.notes == ("C was left out: too odd",)


def test_what_was_set_meanwhile_counts_on_a_device_that_loads_late(rig: Rig) -> None:
    rig.device("A").refuses(Unavailable("out of order"))
    network = rig.load()
    network.set_config({"EXECUTION_TIMEOUT": "7", "MULTI_DEVICE_PRIORITIES": "B(3),A(2)"})
    rig.device("A").mends()
    await_state(network, "A=serving")
    assert rig.device("A").compiled[0].config.get_parameter("EXECUTION_TIMEOUT") == 7.0
    assert network.config.get_parameter("MULTI_DEVICE_PRIORITIES") == "B(3),A(2)"
    assert states(network) == ["B=serving", "A=serving"]


def test_one_that_is_left_out_is_not_asked_until_it_is_wanted_again(rig: Rig) -> None:
    rig.device("A").refuses(Unavailable("out of order"))
    network = rig.load()
    network.set_config({"MULTI_DEVICE_PRIORITIES": "B"})
    rig.device("A").mends()
    network.set_config({"MULTI_DEVICE_PRIORITIES": "B,A"})
    await_state(network, "A=serving")


def test_one_that_is_wanted_again_while_it_loads_is_loaded_once(rig: Rig) -> None:
    rig.device("A").refuses(Unavailable("out of order"))
    network, gate = rig.load(), Gate()
    rig.device("A").on_compile = lambda _: gate()
    gate.await_arrivals()
    network.set_config({"MULTI_DEVICE_PRIORITIES": "B,A"})
    gate.open()
    await_state(network, "A=serving")
    network.close()
    assert [each.closed for each in rig.device("A").compiled] == [1]


def test_one_that_cannot_be_set_as_the_others_serves_as_it_is(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise Unavailable("it is starting")

    rig.device("A").refuses(Unavailable("out of order"))
    network = rig.load()
    network.set_config({"EXECUTION_TIMEOUT": "7"})
    monkeypatch.setattr(MoodyNetwork, "set_config", refuse)
    rig.device("A").mends()
    await_state(network, "A=serving")
    InferRequest(network).infer(_ADD.inputs)
    assert len(rig.device("A").jobs) == 1


def test_an_order_of_devices_that_have_not_loaded_is_refused(rig: Rig) -> None:
    rig.device("A").refuses(Unavailable("out of order"))
    network = rig.load()
    with pytest.raises(FailedPrecondition, match="A was left out: out of order"):
        network.set_config({"MULTI_DEVICE_PRIORITIES": "A"})


def test_closing_ends_a_load_that_was_tried_again(rig: Rig) -> None:
    rig.device("A").refuses(Unavailable("out of order"))
    network, gate = rig.load(), Gate()

    def compile_later(token: CancelToken) -> None:
        token.attach(gate.open)
        gate()

    rig.device("A").on_compile = compile_later
    gate.await_arrivals()
    network.close()
    assert not rig.device("A").compiled


# -- requests --


def test_each_device_gets_as_many_requests_as_fill_it(rig: Rig) -> None:
    rig.device("B").set_config({"NUM_STREAMS": "3"})
    network = rig.load()
    assert network.config.get_parameter("MULTI_DEVICE_PRIORITIES") == "A(1),B(3)"
    assert network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 4
    gate = hold(rig, "A", "B")
    for _ in range(9):
        rig.submit(network)
    gate.await_arrivals(4)
    assert network.get_metric("NUMBER_OF_EXEC_INFER_REQUESTS") == 4
    assert network.get_metric("NUMBER_OF_WAITING_INFER_REQUESTS") == 5
    assert rig.multi.get_metric("NUMBER_OF_WAITING_INFER_REQUESTS") == 5
    gate.open()
    assert {job.outcome for job in rig.outcomes.wait(9)} == {Outcome.COMPLETED}


def test_it_gets_fewer_when_it_runs_fewer_and_no_more_than_at_the_load(rig: Rig) -> None:
    for name in "AB":
        rig.device(name).set_config({"NUM_STREAMS": "3"})
    network = rig.load("MULTI:A,B(3)")
    rig.device("A").set_config({"NUM_STREAMS": "2"})
    rig.device("B").set_config({"NUM_STREAMS": "2"})
    assert network.config.get_parameter("MULTI_DEVICE_PRIORITIES") == "A(2),B(3)"
    assert network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 5
    gate = hold(rig, "A")
    for _ in range(6):
        rig.submit(network)
    gate.await_arrivals(2)
    assert len(rig.device("A").jobs) == 2
    gate.open()
    rig.outcomes.wait(6)
    rig.device("A").set_config({"NUM_STREAMS": "8"})
    assert network.config.get_parameter("MULTI_DEVICE_PRIORITIES") == "A(3),B(3)"


def test_a_number_behind_a_device_is_its_limit(rig: Rig) -> None:
    rig.device("A").set_config({"NUM_STREAMS": "4"})
    network = rig.load("MULTI:A(2)")
    gate = hold(rig, "A")
    for _ in range(5):
        rig.submit(network)
    gate.await_arrivals(2)
    assert network.get_metric("NUMBER_OF_WAITING_INFER_REQUESTS") == 3
    gate.open()
    rig.outcomes.wait(5)
    assert gate.most_inside == 2


def test_no_request_waits_behind_a_slow_device_while_another_is_free(rig: Rig) -> None:
    network = rig.load()
    gate = hold(rig, "A")
    stuck = rig.submit(network)
    gate.await_arrivals()
    for _ in range(50):
        rig.submit(network)
    rig.outcomes.wait(50)
    assert stuck.outcome is None
    assert len(rig.device("B").jobs) == 50
    gate.open()
    rig.outcomes.wait(51)


def test_outputs_are_those_of_the_device(rig: Rig) -> None:
    network = rig.load()
    outputs = InferRequest(network).infer(_ADD.inputs)
    np.testing.assert_array_equal(outputs["z"], _SUM)


def test_the_order_may_change_while_the_network_runs(rig: Rig) -> None:
    network = rig.load()
    network.set_config({"MULTI_DEVICE_PRIORITIES": "B(2),A(1)"})
    assert network.config.get_parameter("MULTI_DEVICE_PRIORITIES") == "B(2),A(1)"
    InferRequest(network).infer(_ADD.inputs)
    assert [len(rig.device(name).jobs) for name in "AB"] == [0, 1]
    network.set_config({"MULTI_DEVICE_PRIORITIES": "A"})
    InferRequest(network).infer(_ADD.inputs)
    assert [len(rig.device(name).jobs) for name in "AB"] == [1, 1]
    assert network.get_metric("EXECUTION_DEVICES") == ["A"]


@pytest.mark.parametrize("text", ["A,C", "C", "A(0)", ""])
def test_an_order_of_other_devices_is_refused_and_changes_nothing(rig: Rig, text: str) -> None:
    network = rig.load()
    with pytest.raises((NotFound, InvalidArgument)):
        network.set_config({"MULTI_DEVICE_PRIORITIES": text})
    assert network.config.get_parameter("MULTI_DEVICE_PRIORITIES") == "A(1),B(1)"


def test_a_cancelled_request_leaves_the_queue_though_no_device_is_free(rig: Rig) -> None:
    network = rig.load("MULTI:A")
    gate = hold(rig, "A")
    rig.submit(network)
    gate.await_arrivals()
    waiting = rig.submit(network)
    waiting.token.cancel(Cancelled("not wanted"))
    assert waiting.outcome is Outcome.CANCELLED
    gate.open()
    rig.outcomes.wait(2)
    assert len(rig.device("A").jobs) == 1


def test_a_deadline_passes_in_the_queue(rig: Rig) -> None:
    network = rig.load("MULTI:A")
    gate = hold(rig, "A")
    rig.submit(network)
    gate.await_arrivals()
    late = rig.submit(network, deadline=time.monotonic() + 0.02)
    rig.outcomes.wait(1)
    assert late.outcome is Outcome.EXPIRED
    assert isinstance(late.error, DeadlineExceeded)
    gate.open()
    rig.outcomes.wait(2)


def test_cancelling_reaches_the_device(rig: Rig) -> None:
    network = rig.load()
    gate = Gate()

    def run(job: Job) -> None:
        job.token.attach(gate.open)
        gate()

    rig.device("A").on_infer = run
    job = rig.submit(network)
    gate.await_arrivals()
    job.token.cancel(Cancelled("not wanted"))
    rig.outcomes.wait()
    assert job.outcome is Outcome.CANCELLED
    assert not rig.device("B").jobs


def test_parts_carry_the_ticket_and_are_counted_apart(rig: Rig) -> None:
    network = rig.load()
    rig.submit(network)
    rig.outcomes.wait()
    counted = rig.services.counters.snapshot()
    assert number(counted, families.DEVICE_REQUESTS, "A", "part", "completed") == 1
    assert number(counted, families.DEVICE_ACCEPTED, "A", "request") == 0
    assert rig.counted("member_requests_total") == {("A", "completed"): 1.0}
    assert network.get_metric("DEVICE_REQUESTS") == ["A=1", "B=0"]


# -- devices that fail --


@pytest.mark.parametrize(
    "error", [Unavailable("gone"), RuntimeError("bug"), Internal("bug")], ids=lambda e: str(type(e))
)
def test_what_a_device_fails_another_one_runs(
    rig: Rig, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(availability, "Backoff", partial(Backoff, first=3600.0, longest=3600.0))
    network = rig.load()
    rig.device("A").breaks(error)
    request = InferRequest(network)
    np.testing.assert_array_equal(request.infer(_ADD.inputs)["z"], _SUM)
    assert any(state.startswith("A=out") for state in states(network))
    assert network.get_metric("EXECUTION_DEVICES") == ["B"]
    assert rig.counted("member_requests_total") == {("A", "rerun"): 1, ("B", "completed"): 1}
    assert rig.counted("member_outages_total") == {("A",): 1}


def test_a_device_that_gives_no_output_has_failed(rig: Rig) -> None:
    network = rig.load()
    rig.device("A").gives_nothing = True
    np.testing.assert_array_equal(InferRequest(network).infer(_ADD.inputs)["z"], _SUM)
    rig.device("B").gives_nothing = True
    with pytest.raises(Internal):
        InferRequest(network).infer(_ADD.inputs)


def test_a_device_runs_the_callers_own_job(rig: Rig) -> None:
    network = rig.load()
    job = rig.submit(network)
    rig.outcomes.wait()
    assert rig.device("A").jobs == [job]
    assert job.outcome is Outcome.COMPLETED


def test_the_times_of_a_request_that_ran_twice_are_those_of_both_runs(rig: Rig) -> None:
    network = rig.load()
    runs: list[float] = []
    rig.device("A").breaks(RuntimeError("bug"))
    rig.device("B").on_infer = lambda job: runs.append(job.started)
    accepted = time.monotonic()
    job = rig.submit(network)
    rig.outcomes.wait()
    assert rig.device("A").jobs == rig.device("B").jobs == [job]
    assert accepted <= job.queued <= job.started < runs[0] <= job.prepared <= job.finished
    assert job.queue_seconds + job.execution_seconds == pytest.approx(job.finished - job.queued)


def test_a_deadline_ends_a_request_that_runs_again(rig: Rig) -> None:
    network = rig.load()
    rig.device("A").breaks(RuntimeError("bug"))
    late = threading.Event()

    def run(job: Job) -> None:
        job.token.attach(late.set)
        assert late.wait(PATIENCE_SECONDS)

    rig.device("B").on_infer = run
    job = rig.submit(network, deadline=time.monotonic() + 0.5)
    rig.outcomes.wait()
    assert rig.device("A").jobs == rig.device("B").jobs == [job]
    assert job.outcome is Outcome.EXPIRED
    assert rig.counted("member_requests_total") == {("A", "rerun"): 1, ("B", "expired"): 1}


def test_each_run_of_a_request_has_a_span(rig: Rig) -> None:
    network = rig.load()
    rig.device("A").breaks(RuntimeError("bug"))
    ended: list[Span] = []
    span = Span(Trace(1, ended.extend), "request", 0, 1.0)
    job = rig.submit(network, span=span)
    rig.outcomes.wait()
    assert job.span is span
    assert span.facts["headrace.device"] == "MULTI"
    span.finish(9e9)
    span.trace.end()
    parts = [each for each in ended if each.parent == span.id]
    assert [each.name for each in parts] == ["part A", "part B"]
    assert [each.facts["headrace.outcome"] for each in parts] == ["failed", "completed"]


def test_values_that_every_device_refuses_take_none_out(rig: Rig) -> None:
    network = rig.load()
    for name in "AB":
        rig.device(name).breaks(InvalidArgument("not these values", field="inputs"))
    with pytest.raises(InvalidArgument, match="not these values"):
        InferRequest(network).infer(_ADD.inputs)
    assert states(network) == ["A=serving", "B=serving"]


def test_values_that_one_device_refuses_are_run_by_another_and_take_none_out(rig: Rig) -> None:
    network = rig.load()
    rig.device("A").breaks(InvalidArgument("not these values", field="inputs"))
    np.testing.assert_array_equal(InferRequest(network).infer(_ADD.inputs)["z"], _SUM)
    assert states(network) == ["A=serving", "B=serving"]
    assert rig.counted("member_requests_total") == {("A", "rerun"): 1, ("B", "completed"): 1}


def test_a_request_that_fails_everywhere_takes_no_device_out(rig: Rig) -> None:
    network = rig.load()
    for name in "AB":
        rig.device(name).breaks(RuntimeError("bug"))
    with pytest.raises(RuntimeError):
        InferRequest(network).infer(_ADD.inputs)
    assert states(network) == ["A=serving", "B=serving"]


def test_a_request_that_failed_and_waits_for_another_device_can_be_cancelled(rig: Rig) -> None:
    rig.device("A").breaks(RuntimeError("broken"))
    gate = hold(rig, "B")
    network = rig.load()
    rig.submit(network)
    gate.await_arrivals()
    job = rig.submit(network)
    eventually(
        lambda: (
            len(rig.device("A").jobs) == 2
            and network.get_metric("NUMBER_OF_WAITING_INFER_REQUESTS") == 1
        ),
        "a request that waits for B",
    )
    job.token.cancel(Cancelled("nobody waits"))
    eventually(lambda: job.outcome is Outcome.CANCELLED, "its outcome")
    assert network.get_metric("NUMBER_OF_EXEC_INFER_REQUESTS") == 1  # B is busy as before
    gate.open()


def test_a_device_that_failed_is_tried_again_and_put_back(rig: Rig) -> None:
    network = rig.load()
    rig.device("A").breaks(Unavailable("gone"))
    InferRequest(network).infer(_ADD.inputs)
    rig.device("A").mends()
    await_state(network, "A=on trial: gone")
    InferRequest(network).infer(_ADD.inputs)
    assert states(network) == ["A=serving", "B=serving"]


def test_a_device_that_says_that_it_is_down_gets_nothing_until_it_is_up(rig: Rig) -> None:
    network = rig.load()
    rig.services.states.set("A", DeviceState.RESTARTING, "it crashed")
    assert states(network) == ["A=out: it crashed", "B=serving"]
    InferRequest(network).infer(_ADD.inputs)
    assert not rig.device("A").jobs
    rig.services.states.set("A", DeviceState.UP)
    InferRequest(network).infer(_ADD.inputs)
    assert len(rig.device("A").jobs) == 1


def test_a_device_that_is_down_already_is_out_from_the_start(rig: Rig) -> None:
    rig.services.states.set("A", DeviceState.DOWN, "unplugged")
    assert states(rig.load())[0] == "A=out: unplugged"


def test_if_no_device_serves_for_long_requests_are_told(rig: Rig) -> None:
    network = rig.load()
    for name in "AB":
        rig.services.states.set(name, DeviceState.DOWN, "unplugged")
    with pytest.raises(Unavailable, match="A: unplugged; B: unplugged"):
        InferRequest(network).infer(_ADD.inputs)


def test_a_closed_network_hears_of_no_device(rig: Rig) -> None:
    network = rig.load()
    network.close()
    rig.services.states.set("A", DeviceState.DOWN, "unplugged")
    assert "A=serving" in states(network)


def test_no_request_is_lost_while_devices_come_and_go(rig: Rig) -> None:
    network = rig.load("MULTI:A,B,C")
    ended: list[RequestState] = []
    requests = [
        InferRequest(network, lambda request: ended.append(request.state)) for _ in range(8)
    ]
    for turn in range(60):
        device = rig.device("AB"[turn % 2])
        if turn % 4 < 2:
            device.breaks(Unavailable("gone"))
        else:
            device.mends()
        for request in requests:
            request.start_async(_ADD.inputs)
        for request in requests:
            np.testing.assert_array_equal(request.result(PATIENCE_SECONDS)["z"], _SUM)
    assert len(ended) == 60 * len(requests)
    assert network.place.admission.in_flight == 0


# -- queries --


def test_a_query_gives_the_answer_of_the_first_device_that_runs_all(rig: Rig) -> None:
    result = rig.multi.query_network(_ADD.network, {}, rig.options("MULTI:B,A"))
    assert result.supported_layers == {"sum": "B"}


def test_a_query_says_what_is_in_the_way(rig: Rig) -> None:
    network = networks.unknown_operators().network
    result = rig.multi.query_network(network, {}, rig.options("MULTI:A,D"))
    assert [(each.layer, each.device) for each in result.unsupported] == [("strange", "A")]


# -- export and import --


def test_each_device_gets_its_own_bytes_back(rig: Rig) -> None:
    native = rig.load().export()
    imported = rig.multi.load_network(
        Load(_ADD.network, options=rig.options("MULTI:B,A"), native=native)
    )
    assert [rig.device(name).imported for name in "AB"] == [[b"A"], [b"B"]]
    assert not imported.notes
    imported.close()


def test_bytes_of_another_version_are_not_used_and_a_note_says_so(rig: Rig) -> None:
    network = rig.load()
    rig.device("A").backend_version = "2"
    imported = rig.multi.load_network(
        Load(_ADD.network, options=rig.options("MULTI:A,B"), native=network.export())
    )
    assert imported.notes == ("A: compiled anew: backend version '', here '2'",)
    assert not rig.device("A").imported
    imported.close()


@pytest.mark.parametrize("spoil", [lambda b: b"x" + b, lambda b: b[:-1], lambda b: b[:-1] + b"x"])
def test_bytes_that_are_damaged_are_not_used(rig: Rig, spoil: Callable[[bytes], bytes]) -> None:
    native = spoil(rig.load().export())
    imported = rig.multi.load_network(
        Load(_ADD.network, options=rig.options("MULTI:A,B"), native=native)
    )
    assert "compiled anew" in imported.notes[0]
    assert not rig.device("A").imported
    imported.close()


def test_it_takes_no_extensions(rig: Rig) -> None:
    made = multi.create_plugin("MULTI", rig.services, {})
    functions = list(networks.local_function().network.model.functions.values())
    with pytest.raises(Exception, match="devices of its list"):
        made.add_extension(functions)
