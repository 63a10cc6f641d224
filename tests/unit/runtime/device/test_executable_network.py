"""A loaded network: what it accepts has one outcome, and every counter agrees with that."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from functools import partial

import pytest

from headrace.runtime.device.executable_network import ExecutableNetwork, Place
from headrace.runtime.errors import (
    Cancelled,
    InvalidArgument,
    NotFound,
    QueueFull,
    Unavailable,
)
from headrace.runtime.execution.job import Job, LayerProfile, Outcome, Sequence, Ticket
from headrace.runtime.metrics import families
from headrace.runtime.metrics.device_counters import DeviceCounters
from headrace.testing.counted import histogram, number, numbers
from tests.support.fake_device import (
    FakeDevice,
    Outcomes,
    fake_device,
    identity_network,
    rows,
)
from tests.support.gate import Gate, run_together
from tests.support.interleaving import frequent_switches
from tests.support.patience import PATIENCE_SECONDS


def device_requests(device: FakeDevice, *, part: bool = False) -> tuple[int, dict[str, int]]:
    """Accepted, and the outcomes that occurred."""
    counters: DeviceCounters = device.place.counters
    labels = counters.device, "part" if part else "request"
    counted = counters.snapshot()
    ended = numbers(counted, families.DEVICE_REQUESTS, *labels)
    accepted = number(counted, families.DEVICE_ACCEPTED, *labels)
    return int(accepted), {name: int(count) for (name,), count in ended.items() if count}


# -- acceptance --


def test_a_request_is_computed_and_counted() -> None:
    with fake_device() as device:
        network, outcomes = device.network(), Outcomes()
        network.submit(outcomes.job({"x": rows(3)}))
        (job,) = outcomes.wait()
        assert job.outcome is Outcome.COMPLETED
        assert job.outputs["y"] is job.inputs["x"]
        assert device_requests(device) == (1, {"completed": 1})
        assert number(device.counters.snapshot(), families.NETWORK_REQUESTS) == 1
        counted = device.counters.snapshot()
        assert histogram(counted, families.NETWORK_BATCH_SIZE, "net", "1", "FAKE").sum == 3
        assert device.admission.in_flight == 0


def test_a_network_without_states_refuses_a_request_of_a_sequence() -> None:
    with fake_device() as device:
        network, outcomes = device.network(), Outcomes()
        with pytest.raises(InvalidArgument, match=r"'net' keeps no states.*STATES") as caught:
            network.submit(outcomes.job(sequence=Sequence("s", start=True)))
        assert caught.value.field == "session"
        assert device_requests(device) == (0, {})


def test_the_stages_leave_their_times() -> None:
    with fake_device() as device:
        outcomes = Outcomes()
        device.network().submit(outcomes.job())
        (job,) = outcomes.wait()
        times = [job.queued, job.started, job.prepared, job.inferred, job.finished]
        assert times == sorted(times)
        assert times[0] > 0


def test_a_bad_tensor_is_refused_before_it_is_counted() -> None:
    with fake_device() as device:
        network, outcomes = device.network(), Outcomes()
        with pytest.raises(InvalidArgument, match="not shape"):
            network.submit(outcomes.job({"x": rows(3)[0]}))
        assert outcomes.jobs == []
        assert device_requests(device) == (0, {})
        assert device.admission.in_flight == 0


def test_a_full_queue_refuses_without_calling_done() -> None:
    gate = Gate()
    with fake_device(streams=1, capacity=1) as device:
        network, outcomes = device.network(lambda _: gate()), Outcomes()
        network.submit(outcomes.job())
        network.submit(outcomes.job())
        refused = outcomes.job()
        with pytest.raises(QueueFull):
            network.submit(refused)
        gate.open()
        outcomes.wait(2)
        assert refused.outcome is None
        assert numbers(device.place.counters.snapshot(), families.DEVICE_REFUSED, "FAKE") == {
            ("queue_full",): 1
        }
        assert device_requests(device) == (2, {"completed": 2})


def test_a_refused_request_can_be_submitted_again() -> None:
    gate = Gate()
    with fake_device(streams=1, capacity=0) as device:
        network, outcomes, again = device.network(lambda _: gate()), Outcomes(), Outcomes()
        network.submit(outcomes.job())
        job = again.job()
        with pytest.raises(QueueFull):
            network.submit(job)
        gate.open()
        outcomes.wait()
        network.submit(job)
        again.wait()
        assert device_requests(device) == (2, {"completed": 2})


def test_a_part_of_an_admitted_request_is_never_refused_and_counted_apart() -> None:
    gate = Gate()
    with fake_device(streams=1, capacity=0) as device:
        network, outcomes = device.network(lambda _: gate()), Outcomes()
        network.submit(outcomes.job())
        for _ in range(5):
            network.submit(outcomes.job(ticket=Ticket("HETERO")))
        assert device.admission.in_flight == 1
        gate.open()
        outcomes.wait(6)
        assert device_requests(device) == (1, {"completed": 1})
        assert device_requests(device, part=True) == (5, {"completed": 5})
        assert number(device.counters.snapshot(), families.NETWORK_ACCEPTED) == 1


def test_a_closed_network_takes_nothing_and_frees_its_backend_once() -> None:
    with fake_device() as device:
        network = device.network()
        network.close()
        network.close()
        assert network.closed == 1
        with pytest.raises(Unavailable, match="unloaded"):
            network.submit(Outcomes().job())


# -- how a request ends --


def test_a_stage_that_raises_fails_that_request() -> None:
    def infer(job: Job) -> None:
        raise RuntimeError("a bug of the backend")

    with fake_device() as device:
        outcomes = Outcomes()
        device.network(infer).submit(outcomes.job())
        (job,) = outcomes.wait()
        assert isinstance(job.error, RuntimeError)
        assert device_requests(device) == (1, {"failed": 1})


def test_a_deadline_that_has_passed_ends_the_request_without_computing() -> None:
    ran: list[Job] = []
    with fake_device() as device:
        outcomes = Outcomes()
        job = outcomes.job(deadline=time.monotonic() - 1)
        device.network(ran.append).submit(job)
        assert job.outcome is Outcome.EXPIRED
        assert ran == []
        assert device_requests(device) == (1, {"expired": 1})
        assert (
            histogram(
                device.place.counters.snapshot(),
                families.DEVICE_EXECUTION_SECONDS,
                "FAKE",
                "request",
            ).count
            == 0
        )


def test_a_deadline_ends_a_request_in_the_queue_when_it_passes() -> None:
    gate = Gate()
    with fake_device() as device:
        network, blocker, outcomes = device.network(lambda _: gate()), Outcomes(), Outcomes()
        network.submit(blocker.job())
        gate.await_arrivals()
        network.submit(outcomes.job(deadline=time.monotonic() + 0.01))
        # The stream is still taken.
        (job,) = outcomes.wait()
        assert (job.outcome, job.started) == (Outcome.EXPIRED, 0.0)
        assert device.executor.waiting == 0
        gate.open()
        blocker.wait()


def test_a_deadline_reaches_the_backend_of_a_running_request() -> None:
    def infer(job: Job) -> None:
        stop = threading.Event()
        job.token.attach(stop.set)
        assert stop.wait(PATIENCE_SECONDS)

    with fake_device() as device:
        outcomes = Outcomes()
        device.network(infer).submit(outcomes.job(deadline=time.monotonic() + 0.01))
        assert outcomes.wait()[0].outcome is Outcome.EXPIRED


@pytest.mark.parametrize("deadline", [1e10, 1e300, float("inf")])
def test_a_deadline_in_the_far_future_is_as_good_as_none(deadline: float) -> None:
    with fake_device() as device:
        network, outcomes = device.network(), Outcomes()
        network.submit(outcomes.job(deadline=deadline))
        outcomes.wait(1)
        network.submit(outcomes.job(deadline=time.monotonic() - 1))
        assert [job.outcome for job in outcomes.wait(2)] == [Outcome.COMPLETED, Outcome.EXPIRED]


def test_an_accepted_request_has_an_outcome_whatever_its_deadline_is() -> None:
    with fake_device() as device:
        outcomes = Outcomes()
        device.network().submit(outcomes.job(deadline=float("nan")))
        assert outcomes.wait()[0].outcome is Outcome.FAILED
        assert device.admission.in_flight == 0


def test_an_ended_request_leaves_no_deadline_behind() -> None:
    with fake_device() as device:
        network, outcomes = device.network(), Outcomes()
        for _ in range(50):
            network.submit(outcomes.job(deadline=time.monotonic() + 3600))
        outcomes.wait(50)
        # What is left is the one entry of EXECUTION_TIMEOUT.
        assert len(device.timer._wheel) <= 1


def test_a_closed_network_leaves_nothing_with_the_timer() -> None:
    """Whatever its EXECUTION_TIMEOUT is: clients load and unload as often as they like."""
    with fake_device() as device:
        for _ in range(20):
            network, outcomes = device.network(), Outcomes()
            network.submit(outcomes.job())
            outcomes.wait(1)
            network.close()
        assert len(device.timer._wheel) == 0


def test_a_request_ends_at_the_execution_timeout() -> None:
    def infer(job: Job) -> None:
        stop = threading.Event()
        job.token.attach(stop.set)
        assert stop.wait(PATIENCE_SECONDS)

    with fake_device() as device:
        network, outcomes = device.network(infer, config={"EXECUTION_TIMEOUT": "600"}), Outcomes()
        network.submit(outcomes.job())
        network.set_config({"EXECUTION_TIMEOUT": "0.01"})
        (job,) = outcomes.wait()
        assert job.outcome is Outcome.EXPIRED
        assert "EXECUTION_TIMEOUT" in str(job.error)


def test_a_device_whose_start_raises_fails_the_accepted_request() -> None:
    class Broken(ExecutableNetwork):
        def _start(self, job: Job) -> None:
            raise RuntimeError("a bug")

    with fake_device() as device:
        network = Broken(identity_network(), device.network().config)
        network.open(device.place)
        outcomes = Outcomes()
        network.submit(outcomes.job())
        assert outcomes.jobs[0].outcome is Outcome.FAILED
        assert device_requests(device) == (1, {"failed": 1})


def test_a_stopped_device_fails_what_waits_and_refuses_what_comes() -> None:
    gate = Gate()
    with fake_device() as device:
        network, outcomes = device.network(lambda _: gate()), Outcomes()
        network.submit(outcomes.job())
        gate.await_arrivals()
        network.submit(outcomes.job())
        stopper = threading.Thread(target=device.executor.stop)
        stopper.start()
        outcomes.wait(1)
        gate.open()
        stopper.join(PATIENCE_SECONDS)
        network.submit(outcomes.job())
        waited, ran, late = outcomes.wait(3)
        assert isinstance(waited.error, Unavailable)
        assert ran.outcome is Outcome.COMPLETED
        assert isinstance(late.error, Unavailable)
        assert device_requests(device) == (3, {"completed": 1, "failed": 2})


# -- running inline --


def test_a_quick_network_comes_to_run_on_the_submitting_thread() -> None:
    with fake_device() as device:
        network, outcomes = device.network(), Outcomes()
        for count in range(1, 50):
            network.submit(outcomes.job(may_run_inline=True))
            outcomes.wait(count)
        job = outcomes.job(may_run_inline=True)
        network.submit(job)
        assert job.outcome is Outcome.COMPLETED


def test_a_device_that_may_not_runs_nothing_inline() -> None:
    threads: set[threading.Thread] = set()
    with fake_device() as device:
        network = device.network(lambda _: threads.add(threading.current_thread()))
        network.inline_safe = False  # type: ignore[misc]
        network.open(device.place)
        outcomes = Outcomes()
        for count in range(1, 20):
            network.submit(outcomes.job(may_run_inline=True))
            outcomes.wait(count)
        assert {thread.name for thread in threads} == {"FAKE-stream-0"}


# -- what it says of itself --


def test_it_has_the_standard_metrics() -> None:
    with fake_device(streams=3) as device:
        network = device.network(streams=3, name="m")
        assert network.get_metric("NETWORK_NAME") == "m"
        assert network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 3
        assert network.get_metric("EXECUTION_DEVICES") == ["FAKE"]
        assert network.get_metric("LOADED_FROM_CACHE") is False
        supported = network.get_metric("SUPPORTED_METRICS")
        assert isinstance(supported, list)
        assert "SUPPORTED_METRICS" in supported
        assert "EXECUTION_TIMEOUT" in str(network.get_metric("SUPPORTED_CONFIG_KEYS"))
        with pytest.raises(NotFound, match="did you mean 'NETWORK_NAME'"):
            network.get_metric("NETWORK_NAMES")


def test_layers_are_those_of_the_network_on_the_device() -> None:
    with fake_device() as device:
        (layer,) = device.network().layers()
        assert (layer.name, layer.op_type, layer.device) == ("copy", "Identity", "FAKE")


def test_set_config_takes_only_what_may_change() -> None:
    with fake_device() as device:
        network = device.network()
        with pytest.raises(InvalidArgument):
            network.set_config({"NUM_STREAMS": "2"})
        with pytest.raises(NotFound):
            network.set_config({"NUMSTREAMS": "2"})


def test_the_last_profile_is_kept() -> None:
    profile = LayerProfile("copy", "Identity", "FAKE", "f32", 0.001)
    with fake_device() as device:
        network = device.network(
            lambda job: job.layers.append(profile) if job.profile else None,
            config={"PERF_COUNT": "YES"},
        )
        outcomes = Outcomes()
        network.submit(outcomes.job())
        assert outcomes.wait()[0].profile
        assert network.last_profile == (profile,)


def test_a_device_without_hooks_exports_nothing_and_computes_nothing() -> None:
    with fake_device() as device:
        network = ExecutableNetwork(identity_network(), device.network().config, device.executor)
        network.open(Place("FAKE", device.admission, device.place.counters, device.timer))
        assert network.export() == b""
        outcomes = Outcomes()
        network.submit(outcomes.job())
        assert isinstance(outcomes.wait()[0].error, NotImplementedError)


# -- memory --


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("deadline", [None, 1e9])
def test_the_tensors_of_an_ended_request_are_freed_without_the_garbage_collector(
    inline: bool, deadline: float | None
) -> None:
    with fake_device() as device:
        network, outcomes = device.network(), Outcomes()
        for count in range(1, 10):
            network.submit(outcomes.job(may_run_inline=True))
            outcomes.wait(count)
        gc.collect()
        gc.disable()
        try:
            tensor, done = rows(), threading.Event()
            freed = weakref.ref(tensor)
            network.submit(
                Job({"x": tensor}, lambda _: done.set(), deadline=deadline, may_run_inline=inline)
            )
            assert done.wait(PATIENCE_SECONDS)
            del tensor
            network.submit(outcomes.job())
            outcomes.wait(10)
            assert freed() is None
        finally:
            gc.enable()


# -- all at once --


@pytest.mark.parametrize("seed", range(4))
def test_every_accepted_request_has_one_outcome_in_a_storm(seed: int) -> None:
    """Refusals, cancels, deadlines, failures, parts and inline runs, all at random."""

    def infer(job: Job) -> None:
        if job.trace == "fails":
            raise RuntimeError("a bug")
        if job.trace == "leaves":
            raise SystemExit(1)

    with fake_device(streams=2, capacity=20) as device:
        networks = [device.network(infer, name=f"n{n}", streams=n + 1) for n in range(2)]
        outcomes, accepted, refused = Outcomes(), list[Job](), list[Job]()

        def submit(number: int) -> None:
            choose = random.Random(f"{seed} {number}")
            mine: list[Job] = []
            for _ in range(300):
                after = choose.choice([None, None, -1, 0.0, 0.001, 5])
                job = outcomes.job(
                    trace=choose.choice(["", "", "fails", "leaves"]),
                    deadline=None if after is None else time.monotonic() + after,
                    priority=choose.randint(-10, 10),
                    ticket=choose.choice([None, None, Ticket("MULTI")]),
                    may_run_inline=choose.random() < 0.3,
                )
                try:
                    choose.choice(networks).submit(job)
                except QueueFull:
                    refused.append(job)
                    continue
                mine.append(job)
                accepted.append(job)
                if choose.random() < 0.3:
                    choose.choice(mine).token.cancel(Cancelled("enough"))

        def resize() -> None:
            choose = random.Random(seed)
            for _ in range(100):
                device.executor.resize(choose.randint(1, 3))

        with frequent_switches():
            run_together(*[partial(submit, number) for number in range(4)], resize)
        outcomes.wait(len(accepted))
        device.executor.stop(PATIENCE_SECONDS)
        assert sorted(map(id, outcomes.jobs)) == sorted(map(id, accepted))
        assert all(job.outcome is None for job in refused)
        requests, parts = device_requests(device), device_requests(device, part=True)
        assert requests[0] == sum(requests[1].values())
        assert parts[0] == sum(parts[1].values())
        assert requests[0] + parts[0] == len(accepted)
        counted = {o.value: n for o, n in outcomes.count().items() if o is not None}
        assert counted == {
            name: requests[1].get(name, 0) + parts[1].get(name, 0)
            for name in {**requests[1], **parts[1]}
        }
        counted_by_networks = device.counters.snapshot()
        assert number(counted_by_networks, families.NETWORK_ACCEPTED) == requests[0]
        assert number(counted_by_networks, families.NETWORK_REQUESTS) == requests[0]
        assert device.admission.in_flight == 0
        assert number(device.place.counters.snapshot(), families.DEVICE_REFUSED) == len(refused)
        assert device.executor.waiting == 0
        # Of each network the one entry of EXECUTION_TIMEOUT.
        assert len(device.timer._wheel) <= 2
