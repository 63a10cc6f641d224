"""Counters: accounting of outcomes, gauges and the life of a network's series."""

from __future__ import annotations

import threading

import pytest

from headrace.runtime.execution.job import Outcome
from headrace.runtime.metrics import families
from headrace.runtime.metrics.counters import Counters, NetworkCounters
from headrace.runtime.metrics.device_counters import DeviceCounters
from headrace.runtime.metrics.histogram import HistogramSnapshot
from headrace.runtime.metrics.series import Family, Snapshot
from headrace.testing.counted import histogram, number, numbers


def executions(counted: Snapshot, kind: str) -> HistogramSnapshot:
    return histogram(counted, families.DEVICE_EXECUTION_SECONDS, "CPU", kind)


def gauges(device: DeviceCounters) -> dict[Family, object]:
    return {each.family: each.value for each in device.snapshot() if each.family.kind == "gauge"}


def test_accepted_requests_are_those_that_ended_and_those_in_flight() -> None:
    device = DeviceCounters("CPU")
    for _ in range(6):
        device.accept()
    for outcome in Outcome:
        device.observe(outcome, 0.001, 0.002)
    counted = device.snapshot()
    assert number(counted, families.DEVICE_ACCEPTED, "CPU", "request") == 6
    ended = numbers(counted, families.DEVICE_REQUESTS, "CPU", "request")
    assert ended == {(outcome,): 1 for outcome in Outcome}


def test_parts_are_counted_apart_from_requests() -> None:
    device = DeviceCounters("CPU")
    device.accept_part()
    device.observe(Outcome.COMPLETED, 0.001, 0.002, part=True)
    counted = device.snapshot()
    assert number(counted, families.DEVICE_REQUESTS, "CPU", "part", "completed") == 1
    assert executions(counted, "part").count == 1
    assert number(counted, families.DEVICE_ACCEPTED, "CPU", "request") == 0
    assert executions(counted, "request").count == 0


def test_what_a_device_completes_for_a_virtual_one_is_counted_at_both() -> None:
    counters = Counters()
    cpu, auto = counters.device("CPU"), counters.device("AUTO")
    for wait in (0.5, 0.25):
        auto.accept()
        auto.observe(Outcome.COMPLETED, wait, 2.0, elsewhere=cpu.count_parts)
    counted = counters.snapshot()
    for device, kind in (("CPU", "part"), ("AUTO", "request")):
        assert number(counted, families.DEVICE_REQUESTS, device, kind, "completed") == 2
        assert number(counted, families.DEVICE_ACCEPTED, device, kind) == 2
        assert histogram(counted, families.DEVICE_EXECUTION_SECONDS, device, kind).sum == 4.0
        assert histogram(counted, families.DEVICE_QUEUE_WAIT_SECONDS, device, kind).sum == 0.75


def test_nobody_reads_a_device_while_another_thread_counts_what_it_has_completed() -> None:
    auto = DeviceCounters("AUTO")
    is_alone: list[bool] = []

    def count(*_: object) -> None:
        is_alone.append(auto._lock.locked())  # readers have to `sort` first

    auto.accept()
    auto.observe(Outcome.COMPLETED, 0.0, 1.0, elsewhere=count)
    auto.sort()
    assert is_alone == [True]


def test_a_request_that_expired_in_the_queue_has_no_execution_time() -> None:
    device = DeviceCounters("CPU")
    device.accept()
    device.observe(Outcome.EXPIRED, 1.5, None)
    counted = device.snapshot()
    waits = histogram(counted, families.DEVICE_QUEUE_WAIT_SECONDS, "CPU", "request")
    assert waits.sum == 1.5
    assert executions(counted, "request").count == 0


def test_refused_requests_are_counted_by_reason_and_never_accepted() -> None:
    device = DeviceCounters("CPU")
    device.refuse("queue_full")
    device.refuse("queue_full")
    device.refuse("draining")
    counted = device.snapshot()
    refused = numbers(counted, families.DEVICE_REFUSED, "CPU")
    assert refused == {("queue_full",): 2, ("draining",): 1}
    assert number(counted, families.DEVICE_ACCEPTED) == 0


def test_a_snapshot_says_all_that_has_ended_however_much_that_is() -> None:
    device, network = DeviceCounters("CPU"), NetworkCounters("m", "CPU")
    for count in range(1, 200):
        device.accept()
        network.accept()
        device.observe(Outcome.COMPLETED, 0.001, 0.002)
        network.observe(Outcome.COMPLETED, 0.004, batch_size=2)
        assert executions(device.snapshot(), "request").count == count
        seconds = histogram(network.snapshot(), families.NETWORK_REQUEST_SECONDS, "m", "1", "CPU")
        assert seconds.count == count


def test_gauges_are_read_when_a_snapshot_is_taken() -> None:
    device = DeviceCounters("CPU")
    queue: list[int] = []
    device.register_gauge(families.DEVICE_QUEUE_DEPTH, lambda: len(queue))
    assert gauges(device) == {families.DEVICE_QUEUE_DEPTH: 0}
    queue += [1, 2, 3]
    assert gauges(device) == {families.DEVICE_QUEUE_DEPTH: 3}
    device.unregister_gauges(families.DEVICE_QUEUE_DEPTH, families.DEVICE_STREAMS)
    assert gauges(device) == {}


def test_all_gauges_can_be_forgotten_at_once() -> None:
    device = Counters().device("CPU")
    device.register_gauge(families.DEVICE_STREAMS, lambda: 1)
    device.register_gauge(families.DEVICE_MEMORY_BYTES, lambda: 2)
    device.unregister_gauges()
    assert gauges(device) == {}


def test_a_gauge_that_cannot_be_read_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> float:
        raise RuntimeError("the driver is gone")

    device = Counters().device("GPU.0")
    device.register_gauge(families.DEVICE_MEMORY_BYTES, fail)
    device.register_gauge(families.DEVICE_STREAMS, lambda: 1)
    assert gauges(device) == {families.DEVICE_STREAMS: 1.0}
    assert "memory_bytes of GPU.0" in caplog.text


def test_a_gauge_may_count_while_it_is_read() -> None:
    device = DeviceCounters("CPU")

    def read() -> float:
        device.accept()
        return 1.0

    device.register_gauge(families.DEVICE_STREAMS, read)
    assert gauges(device) == {families.DEVICE_STREAMS: 1.0}


def test_where_runs_are_counted_by_themselves_requests_count_no_batch() -> None:
    network = NetworkCounters("m", "BATCH:CPU(8)")
    network.observe(Outcome.COMPLETED, 0.25, batch_size=None)
    network.observe(Outcome.COMPLETED, 0.25, batch_size=None)
    network.observe_batch(2)
    labels = "m", "1", "BATCH:CPU(8)"
    batch_size = histogram(network.snapshot(), families.NETWORK_BATCH_SIZE, *labels)
    assert (batch_size.count, batch_size.sum) == (1, 2)


def test_a_network_counts_requests_seconds_batch_and_loads() -> None:
    network = NetworkCounters("m", "CPU")
    network.accept()
    network.accept()
    network.observe(Outcome.COMPLETED, 0.25, batch_size=8)
    network.observe_load(1.5)
    counted, labels = network.snapshot(), ("m", "1", "CPU")
    assert number(counted, families.NETWORK_ACCEPTED, *labels) == 2
    assert number(counted, families.NETWORK_REQUESTS, *labels, "completed") == 1
    assert number(counted, families.NETWORK_REQUESTS, *labels) == 1
    assert histogram(counted, families.NETWORK_REQUEST_SECONDS, *labels).sum == 0.25
    assert histogram(counted, families.NETWORK_BATCH_SIZE, *labels).sum == 8
    assert histogram(counted, families.NETWORK_LOAD_SECONDS, *labels).sum == 1.5


def test_the_same_name_gives_the_same_counters() -> None:
    counters = Counters()
    assert counters.device("CPU") is counters.device("CPU")
    assert counters.network("m", "CPU") is counters.network("m", "CPU")
    assert counters.network("m", "CPU") is not counters.network("m", "TEMPLATE")


def test_a_removed_network_leaves_the_snapshot() -> None:
    counters = Counters()
    counters.network("m", "CPU")
    counters.remove_network("m", "CPU")
    assert counters.snapshot() == ()


def test_a_replaced_network_keeps_counting_until_the_last_one_is_removed() -> None:
    counters = Counters()
    counters.network("m", "CPU").observe(Outcome.COMPLETED, 0.1)
    counters.network("m", "CPU").observe(Outcome.COMPLETED, 0.1)  # the replacement
    counters.remove_network("m", "CPU")  # the old one has drained
    assert number(counters.snapshot(), families.NETWORK_REQUESTS, "m", "1", "CPU", "completed") == 2


def test_removing_a_network_twice_is_harmless() -> None:
    counters = Counters()
    counters.remove_network("m", "CPU")
    counters.network("m", "CPU")
    assert len(numbers(counters.snapshot(), families.NETWORK_ACCEPTED)) == 1


def test_rpcs_are_counted_by_method_and_code() -> None:
    counters = Counters()
    counters.grpc("Infer")["OK"] = 2
    counters.grpc("Infer")["NOT_FOUND"] = 1
    counters.grpc("Export")
    calls = numbers(counters.snapshot(), families.GRPC_REQUESTS)
    assert calls == {("Infer", "OK"): 2, ("Infer", "NOT_FOUND"): 1}


def test_no_count_is_lost_between_threads() -> None:
    counters = Counters()
    threads_count, each = 8, 500
    start = threading.Barrier(threads_count)

    def work() -> None:
        start.wait()
        device = counters.device("CPU")
        for _ in range(each):
            device.accept()
            device.observe(Outcome.COMPLETED, 0.001, 0.001)

    threads = [threading.Thread(target=work) for _ in range(threads_count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counted = counters.snapshot()
    assert number(counted, families.DEVICE_ACCEPTED) == threads_count * each
    assert number(counted, families.DEVICE_REQUESTS) == threads_count * each
    assert executions(counted, "request").count == threads_count * each
