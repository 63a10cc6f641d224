"""What a request takes, measured by the runtime."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.virtual import timing


def test_a_turn_takes_the_best_of_as_many_runs_as_it_has_time_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    took = iter([0.006, 0.002, 0.006, 0.001])
    monkeypatch.setattr(timing, "seconds", lambda *_, **__: next(took))
    network: Any = None
    assert timing.quickest(network, {}, CancelToken()) == 0.002
    assert next(took) == 0.001  # the fourth run had no time left
