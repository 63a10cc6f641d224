"""Which device is the fastest, and when a network is measured."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from headrace.plugins.multi import contest
from headrace.plugins.multi.contest import (
    BETWEEN_SECONDS,
    FIRST_SECONDS,
    SHOWN_REQUESTS,
    Agenda,
    DeviceSpeed,
    averaged,
    decided,
)
from headrace.runtime.execution.request_shapes import RequestShapes, Shapes
from headrace.runtime.network.network import Port

SMALL, LARGE = ((1, 8),), ((1, 64),)


def agenda_of(fixed: Shapes | None) -> Agenda:
    """The agenda of a network whose inputs have these shapes."""
    shapes = (("n",),) if fixed is None else fixed
    ports = [Port("x", ir.DataType.FLOAT, shape) for shape in shapes]
    return Agenda(RequestShapes(ports), 0.0)


def chosen(found: tuple[DeviceSpeed, ...]) -> str:
    assert sum(each.chosen for each in found) == 1
    return contest.chosen(found, "nobody")


def test_the_hint_says_what_counts() -> None:
    measured = [DeviceSpeed("A", 0.001, 100.0), DeviceSpeed("B", 0.002, 400.0)]
    assert chosen(decided(measured, "A", throughput=False)) == "A"
    assert chosen(decided(measured, "A", throughput=True)) == "B"
    assert chosen(decided(measured, "B", throughput=False)) == "A"


@pytest.mark.parametrize(("theirs", "serves"), [(0.0099, "A"), (0.0097, "B")])
def test_a_gain_that_may_be_noise_changes_nothing(theirs: float, serves: str) -> None:
    measured = [DeviceSpeed("A", 0.01, 100.0), DeviceSpeed("B", theirs, 100.0)]
    assert chosen(decided(measured, "A", throughput=False)) == serves


def test_each_device_says_why_it_is_chosen_or_not() -> None:
    measured = [DeviceSpeed("A", 0.01, 3715.6), DeviceSpeed("B", 0.02, 100.0)]
    found = decided(measured, "A", throughput=False)
    assert found[0].why == "no other one is 1.02 times as fast, by latency"
    assert found[1].why == "0.50 times as fast as A, by latency"
    assert str(found[0]) == "A 10 ms alone, 3720 requests/s"


def test_nothing_replaces_a_device_that_could_not_be_measured() -> None:
    measured = [DeviceSpeed("A", why="it failed"), DeviceSpeed("B", 0.001, 100.0)]
    found = decided(measured, "A", throughput=False)
    assert chosen(found) == "A"
    assert found[0].why == "it failed"


def test_a_device_that_failed_is_not_chosen_and_says_why() -> None:
    measured = [DeviceSpeed("A", 0.01, 100.0), DeviceSpeed("B", why="it failed")]
    found = decided(measured, "A", throughput=False)
    assert chosen(found) == "A"
    assert found[1].why == "it failed"


def test_a_network_that_says_its_shapes_is_measured_once() -> None:
    agenda = agenda_of(SMALL)
    assert agenda.due == FIRST_SECONDS
    assert agenda.wanted() == SMALL
    agenda.measured(SMALL, [DeviceSpeed("A")], 5.0)
    assert agenda.wanted() is None


def test_a_network_without_inputs_is_measured_too() -> None:
    assert agenda_of(()).wanted() == ()


def test_what_was_measured_does_not_hold_after_a_device_has_changed() -> None:
    agenda = agenda_of(SMALL)
    agenda.measured(SMALL, [DeviceSpeed("A")], 5.0)
    agenda.forget()
    assert agenda.wanted() == SMALL
    assert not agenda.known(SMALL)
    assert agenda.due == 5.0 + BETWEEN_SECONDS


def test_other_networks_are_measured_with_the_shapes_that_come_most() -> None:
    agenda = agenda_of(None)
    assert agenda.wanted() is None
    for shapes in (SMALL, LARGE, LARGE):
        agenda._shapes.add(shapes)
    assert agenda.wanted() == LARGE


def test_other_shapes_have_to_show_themselves() -> None:
    agenda = agenda_of(None)
    agenda._shapes.add(SMALL)
    agenda.measured(SMALL, [DeviceSpeed("A")], 5.0)
    for _ in range(SHOWN_REQUESTS - 1):
        agenda._shapes.add(LARGE)
    assert agenda.wanted() is None
    agenda._shapes.add(LARGE)
    assert agenda.wanted() == LARGE
    assert agenda.due == 5.0 + BETWEEN_SECONDS


def test_shapes_that_come_in_turns_do_not_change_the_choice_in_turns() -> None:
    small = [DeviceSpeed("A", 0.002, 500.0), DeviceSpeed("B", 0.001, 1000.0)]
    large = [DeviceSpeed("A", 0.010, 100.0), DeviceSpeed("B", 0.050, 20.0)]
    agenda = agenda_of(None)
    agenda._shapes.add(SMALL)
    agenda.measured(SMALL, small, 5.0)
    for shapes, found in [(LARGE, large), (SMALL, small)] * 2:
        for _ in range(SHOWN_REQUESTS):
            agenda._shapes.add(SMALL)
            agenda._shapes.add(LARGE)
        agenda._shapes.add(shapes)
        assert agenda.wanted() == shapes
        rows = averaged(agenda.traffic(shapes, found))
        for throughput in (False, True):
            assert chosen(decided(rows, "B", throughput=throughput)) == "A"
        agenda.measured(shapes, found, 5.0)


def test_shapes_count_as_often_as_requests_have_them() -> None:
    rare = [DeviceSpeed("A", 0.004, 100.0), DeviceSpeed("B", 0.008, 400.0)]
    usual = [DeviceSpeed("B", 0.004, 200.0), DeviceSpeed("A", 0.008, 50.0)]
    found = averaged([(1, rare), (3, usual)])
    assert [each.device for each in found] == ["A", "B"]
    assert [each.latency_seconds for each in found] == pytest.approx([0.007, 0.005])
    assert [each.requests_per_second for each in found] == pytest.approx([4 / 0.07, 4 / 0.0175])


def test_a_device_that_fails_for_one_of_the_shapes_is_not_compared() -> None:
    failed = [DeviceSpeed("A", 0.01, 100.0), DeviceSpeed("B", why="it failed")]
    found = averaged(
        [(1, [DeviceSpeed("A", 0.01, 100.0), DeviceSpeed("B", 0.001, 1e3)]), (1, failed)]
    )
    assert found[1] == failed[1]
    assert chosen(decided(found, "A", throughput=False)) == "A"


def test_ever_new_shapes_are_measured_ever_more_rarely() -> None:
    agenda = agenda_of(None)
    for number in range(1, 4):
        agenda.measured(((number,),), [DeviceSpeed("A")], 5.0)
        assert agenda.due == 5.0 + number * BETWEEN_SECONDS
    agenda.measured(((1,),), [DeviceSpeed("A")], 5.0)
    assert agenda.due == 5.0 + BETWEEN_SECONDS


def test_a_device_that_was_left_out_for_a_while_is_measured_later() -> None:
    agenda = agenda_of(SMALL)
    found = [DeviceSpeed("A", 0.01, 100.0), DeviceSpeed("B", why="no room")]
    agenda.measured(SMALL, found, 5.0, whole=False)
    assert agenda.wanted() == SMALL
    assert not agenda.known(SMALL)
    assert agenda.due > 5.0 + BETWEEN_SECONDS  # not as soon as after other shapes
    agenda.measured(SMALL, [DeviceSpeed("A", 0.01, 100.0)], 400.0)
    assert agenda.wanted() is None


def test_other_shapes_go_before_a_device_that_was_left_out() -> None:
    agenda = agenda_of(None)
    agenda._shapes.add(SMALL)
    agenda.measured(SMALL, [DeviceSpeed("A", why="no room")], 5.0, whole=False)
    for _ in range(SHOWN_REQUESTS):
        agenda._shapes.add(LARGE)
    assert agenda.wanted() == LARGE


def test_shapes_that_come_back_are_not_measured_again() -> None:
    agenda = agenda_of(None)
    for shapes in (SMALL, LARGE):
        agenda.measured(shapes, [DeviceSpeed(str(shapes))], 5.0)
    for _ in range(SHOWN_REQUESTS):
        agenda._shapes.add(SMALL)
    assert agenda.wanted() == SMALL
    assert agenda.known(SMALL) == (DeviceSpeed(str(SMALL)),)


def test_a_measurement_that_requests_disturb_waits_longer_each_time() -> None:
    agenda = agenda_of(SMALL)
    waits = []
    for _ in range(3):
        agenda.disturbed(100.0)
        waits.append(agenda.due - 100.0)
    assert waits == [FIRST_SECONDS, 2 * FIRST_SECONDS, 4 * FIRST_SECONDS]


def test_a_client_cannot_make_it_remember_ever_more_shapes() -> None:
    agenda = agenda_of(None)
    for size in range(1000):
        agenda._shapes.add(((size,),))
        agenda.measured(((size,),), [DeviceSpeed("A")], 0.0)
        agenda._shapes.add(((size,),))
    assert len(agenda._measured) <= 16
    for size in range(1000):
        agenda._shapes.add(((size,),))
    assert len(agenda._shapes.seen()) <= 64


def test_a_device_that_serves_and_is_not_among_the_measured_ones_stays() -> None:
    found = decided([DeviceSpeed("A", 0.01, 100.0)], "OTHER", throughput=False)
    assert contest.chosen(found, "OTHER") == "OTHER"
