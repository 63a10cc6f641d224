"""The stages of a load add up to the load."""

from __future__ import annotations

import pytest

from headrace.runtime.system.load_stages import LoadStages, current_stages, load_stage, told


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only the test moves."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_a_stage_within_another_is_not_counted_twice(clock: list[float]) -> None:
    stages = LoadStages()
    with stages.within(), load_stage("compile"):
        clock[0] += 1
        with load_stage("transform"):
            clock[0] += 2
            with load_stage("check"):
                clock[0] += 4
        with load_stage("check"):
            clock[0] += 8
        clock[0] += 16
    assert stages.seconds == {"check": 12, "transform": 2, "compile": 17}
    assert sum(stages.seconds.values()) == clock[0]


def test_a_stage_that_fails_is_counted_and_told_with_its_error(clock: list[float]) -> None:
    ended: list[tuple[object, ...]] = []
    stages = LoadStages(lambda *stage: ended.append(stage))
    error = ValueError("no")

    def read() -> None:
        with stages.timed("read"):
            clock[0] += 1
            raise error

    with pytest.raises(ValueError, match="no"):
        read()
    assert ended == [("read", 0.0, 1.0, error)]
    assert stages.seconds == {"read": 1}


def test_stages_of_another_process_are_taken_from_the_stage_that_waited(
    clock: list[float],
) -> None:
    stages = LoadStages()
    with stages.timed("compile"):
        clock[0] += 10
        stages.add({"transform": 4, "check": 1})
    assert stages.seconds == {"check": 1, "transform": 4, "compile": 5}


def test_work_that_is_no_load_has_no_stages() -> None:
    with load_stage("read"):
        assert current_stages() is None


def test_a_load_s_stages_are_told_in_their_order(clock: list[float]) -> None:
    stages = LoadStages()
    for name in ("publish", "read"):
        with stages.timed(name):
            clock[0] += 0.25
    assert told(stages.seconds) == "read 0.250 s, publish 0.250 s"
