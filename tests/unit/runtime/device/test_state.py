from __future__ import annotations

import threading

import pytest

from headrace.runtime.device.state import DeviceEvent, DeviceState, DeviceStates

UP, DOWN, RESTARTING = DeviceState.UP, DeviceState.DOWN, DeviceState.RESTARTING


def test_the_last_event_of_each_device_is_its_state() -> None:
    states = DeviceStates()
    states.set("CPU", UP)
    states.set("OPENCL", DOWN, "no driver")
    states.set("OPENCL", RESTARTING)
    assert states.get("OPENCL") == DeviceEvent("OPENCL", RESTARTING)
    assert states.get("CUDA") is None
    assert states.current() == {
        "CPU": DeviceEvent("CPU", UP),
        "OPENCL": DeviceEvent("OPENCL", RESTARTING),
    }


def test_a_listener_hears_the_current_states_and_then_every_change() -> None:
    states, heard = DeviceStates(), list[DeviceEvent]()
    states.set("CPU", UP)
    states.subscribe(heard.append)
    states.set("CPU", DOWN, "worker died")
    assert heard == [DeviceEvent("CPU", UP), DeviceEvent("CPU", DOWN, "worker died")]


def test_a_state_that_a_device_already_has_is_no_event_but_a_new_reason_is() -> None:
    states, heard = DeviceStates(), list[DeviceEvent]()
    states.subscribe(heard.append)
    states.set("CPU", DOWN, "one")
    states.set("CPU", DOWN, "one")
    states.set("CPU", DOWN, "two")
    assert [event.reason for event in heard] == ["one", "two"]


def test_after_unsubscribing_nothing_is_heard() -> None:
    states, heard = DeviceStates(), list[DeviceEvent]()
    unsubscribe = states.subscribe(heard.append)
    unsubscribe()
    unsubscribe()
    states.set("CPU", UP)
    assert heard == []


def test_a_listener_that_raises_is_logged_and_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(event: DeviceEvent) -> None:
        raise RuntimeError("bug")

    states, heard = DeviceStates(), list[DeviceEvent]()
    states.subscribe(broken)
    states.subscribe(heard.append)
    states.set("CPU", UP)
    assert heard == [DeviceEvent("CPU", UP)]
    assert "bug" in caplog.text


def test_a_listener_may_set_a_state_and_all_hear_both_in_order() -> None:
    states, heard = DeviceStates(), list[DeviceState]()

    def restart(event: DeviceEvent) -> None:
        if event.state is DOWN:
            states.set(event.device, RESTARTING)

    states.subscribe(restart)
    states.subscribe(lambda event: heard.append(event.state))
    states.set("CPU", DOWN)
    assert heard == [DOWN, RESTARTING]


def test_a_listener_may_unsubscribe_itself() -> None:
    states, heard = DeviceStates(), list[DeviceEvent]()

    def once(event: DeviceEvent) -> None:
        heard.append(event)
        unsubscribe()

    unsubscribe = states.subscribe(once)
    states.set("CPU", UP)
    states.set("CPU", DOWN)
    assert heard == [DeviceEvent("CPU", UP)]


def test_events_from_many_threads_are_heard_one_at_a_time_and_end_in_the_current_state() -> None:
    states, heard = DeviceStates(), list[DeviceEvent]()
    states.subscribe(heard.append)

    def flap(thread: int) -> None:
        for k in range(200):
            states.set("CPU", DOWN, f"{thread}.{k}")

    threads = [threading.Thread(target=flap, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(heard) == 800
    assert heard[-1] == states.get("CPU")
    for thread_number in range(4):
        own = [e.reason for e in heard if e.reason.startswith(f"{thread_number}.")]
        assert own == [f"{thread_number}.{k}" for k in range(200)]
