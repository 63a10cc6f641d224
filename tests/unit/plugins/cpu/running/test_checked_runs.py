"""What does not run on a provider, and what follows when a run there fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.plugins.cpu.running.checked_runs import CheckedRuns
from headrace.runtime.errors import Cancelled, InvalidArgument
from headrace.runtime.network.index_bounds import IndexBounds
from headrace.testing import networks

ASIDE, DEVICE = {"by": np.array(0)}, {"by": np.array(1)}


def job(inputs: dict[str, Any], cancelled: Exception | None = None) -> Any:
    return SimpleNamespace(inputs=inputs, token=SimpleNamespace(error=cancelled))


class Runs:
    """Runs that are counted, of a network that picks one element of an input."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.opened = self.failed = 0
        self.run = CheckedRuns(
            IndexBounds(networks.fragile().network.model),
            self._on_device,
            self._open_aside,
            self._fail,
        )

    def __call__(self, cancelled: Exception | None = None, **inputs: Any) -> Any:
        return self.run(job(inputs, cancelled), None)

    def _on_device(self, job: Any, options: Any) -> Any:
        if self.error is not None:
            raise self.error
        return DEVICE

    def _open_aside(self) -> Any:
        self.opened += 1
        return lambda job, options: ASIDE

    def _fail(self) -> None:
        self.failed += 1


def picked(index: int) -> dict[str, Any]:
    return {"x": np.zeros(5, np.float32), "at": np.array([index], np.int64)}


def test_a_request_runs_on_the_provider() -> None:
    runs = Runs()
    assert runs(**picked(4)) is DEVICE
    assert runs.opened == runs.failed == 0


def test_an_index_out_of_bounds_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="out of bounds"):
        Runs()(**picked(5))


def test_a_request_that_runs_elsewhere_on_the_provider_is_checked_as_well() -> None:
    def run(job: Any, options: Any) -> Any:
        return DEVICE

    elsewhere = Runs(RuntimeError("the network's own session ran")).run.instead(run)
    assert elsewhere(job(picked(4)), None) is DEVICE
    assert elsewhere(job({"x": np.zeros(0, np.float32)}), None) is ASIDE
    with pytest.raises(InvalidArgument, match="out of bounds"):
        elsewhere(job(picked(5)), None)


def test_requests_with_an_empty_tensor_run_in_one_session_on_processors() -> None:
    runs = Runs()
    for _ in range(2):
        assert runs(x=np.zeros(0, np.float32)) is ASIDE
    assert runs.opened == 1


def test_after_a_failed_run_the_device_is_looked_at() -> None:
    runs = Runs(RuntimeError("device lost"))
    with pytest.raises(RuntimeError):
        runs(**picked(0))
    assert runs.failed == 1


def test_a_cancelled_run_is_no_sign_of_a_lost_device() -> None:
    runs = Runs(RuntimeError("terminated"))
    with pytest.raises(RuntimeError):
        runs(Cancelled("nobody waits"), **picked(0))
    assert runs.failed == 0
