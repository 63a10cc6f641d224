"""A request on its way through its parts, whatever becomes of them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from headrace.runtime.errors import ResourceExhausted
from headrace.runtime.execution.job import Outcome
from headrace.runtime.network.values import Value
from headrace.runtime.virtual import parts_request
from headrace.runtime.virtual.flow import flow
from headrace.runtime.virtual.parts_request import PartsRequest
from tests.support.fake_device import Outcomes


class NoParts(PartsRequest):
    """A request whose outputs are inputs."""

    def _begin(self, at: int, handed: Mapping[str, Value], *, inline: bool) -> None:
        raise AssertionError


def test_a_want_of_memory_for_the_outputs_fails_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def copied(_: Value) -> Value:
        raise MemoryError

    job = Outcomes().job(output_names=("x",))
    monkeypatch.setattr(parts_request, "copied", copied)
    NoParts(job, flow([], job.output_names), {}).start()
    assert job.outcome is Outcome.FAILED
    assert isinstance(job.error, ResourceExhausted)
