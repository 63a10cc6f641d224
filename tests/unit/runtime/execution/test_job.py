"""A job: one outcome, told once, whoever else says otherwise."""

from __future__ import annotations

import gc
import time
import weakref
from functools import partial

import pytest

from headrace.runtime.errors import Cancelled, DeadlineExceeded, Internal, QueueFull
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job, LayerProfile, Outcome
from tests.support.fake_device import Outcomes, rows
from tests.support.gate import run_together
from tests.support.interleaving import frequent_switches


def test_a_completed_job_keeps_its_outputs_and_has_no_error() -> None:
    outcomes = Outcomes()
    job = outcomes.job()
    job.outputs["y"] = value = rows()
    assert job.complete() is True
    assert outcomes.jobs == [job]
    assert job.outcome is Outcome.COMPLETED
    assert job.error is None
    assert job.outputs["y"] is value


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RuntimeError("a bug"), Outcome.FAILED),
        (Internal("a bug"), Outcome.FAILED),
        (QueueFull("full", retry_delay_seconds=1), Outcome.FAILED),
        (SystemExit(1), Outcome.FAILED),
        (Cancelled("enough"), Outcome.CANCELLED),
        (DeadlineExceeded("late"), Outcome.EXPIRED),
    ],
)
def test_the_error_decides_the_outcome(error: BaseException, outcome: Outcome) -> None:
    job = Outcomes().job()
    job.outputs["y"] = rows()
    assert job.fail(error) is True
    assert (job.outcome, job.error, job.outputs) == (outcome, error, {})


@pytest.mark.parametrize("reason", [Cancelled("enough"), DeadlineExceeded("late")])
@pytest.mark.parametrize("end", [Job.complete, partial(Job.fail, error=RuntimeError("broken off"))])
def test_a_cancelled_token_decides_whatever_the_device_says(
    reason: Cancelled | DeadlineExceeded, end: object
) -> None:
    job = Outcomes().job()
    job.outputs["y"] = rows()
    job.token.cancel(reason)
    assert callable(end)
    end(job)
    assert (job.error, job.outputs) == (reason, {})


def test_a_job_without_an_output_that_it_was_asked_for_fails() -> None:
    job = Outcomes().job(output_names=("y", "z"))
    job.outputs["y"] = rows()
    assert job.complete() is True
    assert (job.outcome, job.outputs) == (Outcome.FAILED, {})
    assert str(job.error) == "the device gave ['y'], not ('y', 'z')"


def test_only_the_first_end_counts() -> None:
    outcomes = Outcomes()
    job = outcomes.job()
    assert job.complete() is True
    assert job.fail(RuntimeError("late")) is False
    assert job.complete() is False
    assert (job.outcome, job.error, len(outcomes.jobs)) == (Outcome.COMPLETED, None, 1)


def test_threads_that_race_to_end_a_job_end_it_once() -> None:
    outcomes, won = Outcomes(), list[bool]()
    with frequent_switches():
        for _ in range(200):
            job = outcomes.job()
            run_together(
                lambda: won.append(job.complete()),  # noqa: B023 - called in this iteration
                lambda: won.append(job.fail(RuntimeError("lost"))),  # noqa: B023
                lambda: won.append(job.fail(Cancelled("lost"))),  # noqa: B023
            )
    assert (won.count(True), won.count(False)) == (200, 400)
    assert len(outcomes.jobs) == 200
    assert len(set(map(id, outcomes.jobs))) == 200


def test_observers_hear_before_done_the_latest_first() -> None:
    heard: list[str] = []
    job = Job({}, lambda _: heard.append("done"))
    job.observe(lambda _: heard.append("first"))
    job.observe(lambda _: heard.append("second"))
    job.complete()
    assert heard == ["second", "first", "done"]


def test_observers_find_everything_in_place() -> None:
    seen: list[tuple[object, bool]] = []
    job = Job({}, lambda job: seen.append((job.outcome, job.finished > 0)))
    job.complete()
    assert seen == [(Outcome.COMPLETED, True)]


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_an_observer_that_raises_keeps_nobody_from_hearing(error: type[BaseException]) -> None:
    def broken(job: Job) -> None:
        raise error("a bug")

    heard: list[str] = []
    job = Job({}, lambda _: heard.append("done"))
    job.observe(lambda _: heard.append("first"))
    job.observe(broken)
    assert job.complete() is True
    assert heard == ["first", "done"]


def test_a_forgotten_observer_hears_nothing() -> None:
    heard: list[str] = []

    def observer(job: Job) -> None:
        heard.append("observer")

    job = Job({}, lambda _: heard.append("done"))
    job.observe(observer)
    job.forget(observer)
    job.complete()
    assert heard == ["done"]


def test_observers_that_refer_to_their_job_do_not_keep_its_tensors() -> None:
    gc.disable()
    try:
        tensor = rows()
        freed = weakref.ref(tensor)
        job = Job({"x": tensor}, lambda _: None)
        job.observe(lambda _, job=job: job.queue_seconds)  # type: ignore[misc]
        del tensor
        job.complete()
        del job
        assert freed() is None
    finally:
        gc.enable()


def test_a_failed_job_does_not_keep_the_tensors_of_the_frames_that_failed() -> None:
    gc.disable()
    try:
        tensor = rows()
        freed = weakref.ref(tensor)

        def backend(job: Job) -> None:
            scratch = job.inputs["x"]
            try:
                raise OSError(f"{scratch!r}")
            except OSError as error:
                raise Internal("the backend failed") from error

        def run(job: Job) -> None:
            try:
                backend(job)
            except Internal as error:
                job.fail(error)

        job = Job({"x": tensor}, lambda _: None)
        del tensor
        run(job)
        with pytest.raises(Internal, match="the backend failed") as caught:
            raise job.take_error()
        del job, caught
        assert freed() is None
    finally:
        gc.enable()


def test_times_are_those_of_the_queue_and_of_the_device() -> None:
    job = Outcomes().job()
    now = time.monotonic()
    job.queued, job.started = now - 3, now - 1
    job.complete()
    assert job.queue_seconds == pytest.approx(2)
    assert job.execution_seconds == pytest.approx(1, abs=0.5)


def test_a_job_that_never_started_has_only_waited() -> None:
    job = Outcomes().job()
    job.queued = time.monotonic() - 3
    job.fail(DeadlineExceeded("late"))
    assert job.queue_seconds == pytest.approx(3, abs=0.5)
    assert job.execution_seconds == 0.0


def test_a_job_takes_the_token_it_is_given_or_one_of_its_own() -> None:
    token = CancelToken()
    assert Outcomes().job(token=token).token is token
    assert Outcomes().job().token is not Outcomes().job().token


def test_a_layers_profile_names_layers_of_the_network_as_loaded() -> None:
    profile = LayerProfile("fused", "Conv", "CPU", "f32", 0.001, ("conv", "relu"))
    assert (profile.origins, profile.subgraph) == (("conv", "relu"), 0)


def test_who_concludes_a_job_may_change_its_outputs_before_anybody_sees_them() -> None:
    outcomes = Outcomes()
    job = outcomes.job()
    job.outputs = {"y": rows(), "state": rows()}

    def conclude(ended: Job) -> None:
        del ended.outputs["state"]

    job.conclude = conclude
    assert job.complete() is True
    assert job.outcome is Outcome.COMPLETED
    assert list(job.outputs) == ["y"]


def test_who_concludes_a_job_may_fail_it() -> None:
    job, refusal = Outcomes().job(), Internal("the state has another shape")
    job.outputs = {"y": rows()}
    job.conclude = lambda _: refusal
    job.complete()
    assert (job.outcome, job.error, job.outputs) == (Outcome.FAILED, refusal, {})


def test_a_bug_in_what_concludes_a_job_fails_it() -> None:
    job = Outcomes().job()

    def conclude(_: Job) -> None:
        raise KeyError("state")

    job.conclude = conclude
    job.complete()
    assert (job.outcome, repr(job.error)) == (Outcome.FAILED, "KeyError('state')")


@pytest.mark.parametrize("error", [Internal("a bug"), Cancelled("enough")])
def test_nobody_concludes_a_job_that_has_failed(error: Internal | Cancelled) -> None:
    job, concluded = Outcomes().job(), list[Job]()
    job.conclude = concluded.append
    job.fail(error)
    assert (job.error, concluded) == (error, [])


def test_a_job_that_an_observer_reopens_has_its_next_outcome() -> None:
    heard: list[tuple[str, Outcome | None]] = []
    job = Job({}, lambda job: heard.append(("done", job.outcome)))

    def network(job: Job) -> None:
        heard.append(("network", job.outcome))
        if job.error is not None:
            job.reopen()
            job.observe(network)

    job.observe(lambda job: heard.append(("caller", job.outcome)))
    job.observe(network)
    job.fail(Internal("a bug"))
    assert (job.error, job.outcome, job.finished) == (None, None, 0.0)
    assert heard == [("network", Outcome.FAILED)]
    assert job.complete() is True
    assert heard[1:] == [(who, Outcome.COMPLETED) for who in ("network", "caller", "done")]
    assert job.complete() is False


def test_who_follows_a_job_is_called_after_everybody_else() -> None:
    calls: list[str] = []
    job = Job({}, lambda _: calls.append("done"))
    job.follow(lambda _: calls.append("after"))
    job.observe(lambda _: calls.append("observer"))
    job.complete()
    assert calls == ["observer", "done", "after"]
