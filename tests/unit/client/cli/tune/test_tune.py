"""``headrace tune``: what it tries, for how long, what it asks, and what it chooses."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from headrace.client.cli.app import make_app
from headrace.client.cli.tune import command
from headrace.client.cli.tune.candidates import Variant, candidates
from headrace.client.cli.tune.difference import largest_difference
from headrace.client.cli.tune.feeds import VARIETY, SeenShapes, make_feeds
from headrace.client.cli.tune.figures import NOTHING, CallersFigures, frontier, next_callers
from headrace.client.cli.tune.halving import Trial, chosen, rounds
from headrace.client.cli.tune.others import requests_of_others
from headrace.client.cli.tune.plot import plot
from headrace.client.info import Port, Ports

TARGET = 0.02


def trials(*names: str) -> list[Trial]:
    return [Trial(Variant(name, {})) for name in names]


def tuned(
    found: Mapping[str, CallersFigures | str], target: float = TARGET
) -> tuple[list[Trial], str]:
    """The trials after all rounds, in each of which a candidate does the same; and the choice."""
    tried = trials(*found)
    for trial, _ in rounds(tried, 100.0, target):
        figures = found[trial.candidate.device]
        if isinstance(figures, str):
            trial.reason = figures
        else:
            trial.turns.append([figures])
    return tried, chosen(tried, target).candidate.device


def test_a_network_is_tried_as_it_is_and_with_streams_threads_hints_and_batches() -> None:
    default, *others = candidates("CPU", {"CPU": 4})
    assert default == Variant("CPU", {})
    assert {str(each) for each in others} == {
        "CPU PERFORMANCE_HINT=LATENCY",
        "CPU PERFORMANCE_HINT=THROUGHPUT",
        "CPU NUM_STREAMS=1",
        "CPU NUM_STREAMS=1, INFERENCE_NUM_THREADS=1",
        "CPU NUM_STREAMS=2",
        "CPU NUM_STREAMS=2, INFERENCE_NUM_THREADS=2",
        "CPU NUM_STREAMS=4",
        "BATCH:CPU(4)",
        "BATCH:CPU(16)",
    }
    assert Variant("OPENVINO", {}) in candidates("CPU", {"CPU": 1, "OPENVINO": 1})
    assert not any("BATCH" in str(each) for each in candidates("CPU", {"CPU": 4}, batches=()))
    listed = "HETERO:OPENVINO,CPU"
    batches = {each.device for each in candidates(listed, {listed: 1})} - {listed}
    assert batches == {f"BATCH:[{listed}](4)", f"BATCH:[{listed}](16)"}
    coarse = {"INFERENCE_PRECISION_HINT": "bf16", "PERFORMANCE_HINT": "LATENCY"}
    assert Variant("CPU", coarse) in candidates("CPU", {"CPU": 1}, coarse=True)


def levels(start: int, target: float, *seen: tuple[float, float]) -> list[int]:
    """The numbers of callers that are tried, each of which sees this throughput and latency."""
    found: list[CallersFigures] = []
    tried: list[int] = []
    while (callers := next_callers(found, start, target)) is not None:
        tried.append(callers)
        if len(found) == len(seen):
            break
        found.append(CallersFigures(callers, *seen[len(found)]))
    return tried


def test_more_callers_are_tried_while_they_bring_something_and_are_answered_in_time() -> None:
    assert levels(2, TARGET, (100, 0.01), (200, 0.01), (400, 0.03)) == [2, 4, 8]
    assert levels(2, TARGET, (100, 0.01), (104, 0.01)) == [2, 4]
    assert levels(1000, math.inf, (100, 0.01)) == [256]


def test_of_the_numbers_of_callers_of_the_turn_before_only_the_best_is_tried_again() -> None:
    before = [CallersFigures(2, 100, 0.01), CallersFigures(4, 200, 0.01)]
    assert next_callers([], 2, TARGET, before) == 2
    assert next_callers(before[:1], 2, TARGET, before) is None
    assert next_callers(before[1:], 4, TARGET, before) == 8


def test_a_number_of_the_turn_before_is_tried_again_if_more_callers_miss_the_target() -> None:
    before = [CallersFigures(4, 100, 0.01), CallersFigures(8, 200, 0.01)]
    assert next_callers([CallersFigures(8, 200, 0.03)], 8, TARGET, before) == 4


def test_fewer_callers_are_tried_until_they_are_answered_in_time() -> None:
    assert levels(8, TARGET, (100, 0.03), (90, 0.025), (80, 0.01)) == [8, 4, 2]
    assert levels(2, TARGET, (100, 0.03), (90, 0.025)) == [2, 1]
    assert levels(2, TARGET, (0, math.inf), (0, math.inf)) == [2, 1]
    assert levels(2, math.inf, (90, math.inf), (80, 0.01)) == [2, 1]


def test_the_better_third_is_measured_three_times_as_long_and_all_rounds_take_the_time() -> None:
    tried = trials(*"abcdefghi")
    given: dict[str, list[float]] = {}
    for trial, seconds in rounds(tried, 36.0, TARGET):
        name = trial.candidate.device
        given.setdefault(name, []).append(seconds)
        trial.turns.append([CallersFigures(1, float(ord(name)), 0.01)])
    assert sum(map(sum, given.values())) == pytest.approx(36.0)
    assert {name: len(each) for name, each in given.items() if len(each) > 1} == {
        "a": 4,
        "i": 4,
        "h": 2,
    }
    assert given["i"] == [1.0, 3.0, 4.5, 4.5]


@pytest.mark.parametrize("count", [1, 2, 3, 17])
def test_all_rounds_take_the_time_whatever_the_number(count: int) -> None:
    tried = trials(*map(str, range(count)))
    spent = 0.0
    for trial, seconds in rounds(tried, 10.0, TARGET):
        spent += seconds
        trial.turns.append([CallersFigures(1, 1.0, 0.01)])
    assert spent == pytest.approx(10.0)
    assert len(tried[0].turns) >= 2


def test_what_cannot_be_loaded_leaves_fewer_rounds() -> None:
    found: dict[str, CallersFigures | str] = dict.fromkeys(map(str, range(9)), "refused")
    tried, _ = tuned({**found, "0": NOTHING, "1": CallersFigures(1, 100.0, 0.01)})
    assert [len(each.turns) for each in tried[:2]] == [3, 3]


def test_the_most_answers_within_the_target_win() -> None:
    found: dict[str, CallersFigures | str] = {
        "default": CallersFigures(1, 100.0, 0.01),
        "more": CallersFigures(4, 150.0, 0.015),
        "late": CallersFigures(8, 300.0, 0.05),
        "absent": "no such device",
    }
    tried, choice = tuned(found)
    assert choice == "more"
    assert [len(each.turns) for each in tried] == [3, 3, 1, 0]
    assert tuned(found, math.inf)[1] == "late"


def test_what_fails_some_requests_is_not_chosen_without_a_target_either() -> None:
    failing, whole = CallersFigures(1, 300.0, math.inf), CallersFigures(1, 100.0, 0.01)
    assert tuned({"default": whole, "b": failing}, math.inf)[1] == "default"
    assert tuned({"default": failing, "b": whole}, math.inf)[1] == "b"


def test_the_default_stays_unless_another_is_clearly_better() -> None:
    default = CallersFigures(1, 100.0, 0.01)
    assert tuned({"default": default, "other": CallersFigures(1, 102.0, 0.01)})[1] == "default"
    assert tuned({"default": default, "other": CallersFigures(1, 104.0, 0.01)})[1] == "other"
    assert tuned({"default": default, "other": "no such device"})[1] == "default"
    assert tuned({"default": default})[1] == "default"
    late = CallersFigures(1, 100.0, 0.05)
    assert tuned({"default": late, "other": CallersFigures(1, 50.0, 0.03)})[1] == "other"
    assert tuned({"default": late, "other": CallersFigures(1, 500.0, 0.06)})[1] == "default"
    assert tuned({"default": default, "other": late})[1] == "default"
    assert tuned({"default": NOTHING, "other": NOTHING})[1] == "default"


@pytest.mark.parametrize(
    ("turns", "choice"), [([104.0, 104.0], "other"), ([104.0, 102.0], "a"), ([90.0, 400.0], "a")]
)
def test_it_has_to_win_twice(turns: Sequence[float], choice: str) -> None:
    tried = trials("a", "other")
    tried[0].turns += [[CallersFigures(1, 100.0, 0.01)]] * 2
    tried[1].turns += [[CallersFigures(1, each, 0.01)] for each in turns]
    assert chosen(tried, TARGET).candidate.device == choice


def test_under_noise_the_choice_is_near_the_best_and_no_worse_than_the_default() -> None:
    of_best, of_default = [], []
    for seed in range(200):
        random = np.random.default_rng(seed)
        able = dict(zip(map(str, range(16)), 100 * random.uniform(0.5, 1.6, 16), strict=True))
        tried = trials(*able)
        for trial, seconds in rounds(tried, 60.0, math.inf):
            noise = random.normal(0.0, 0.05 / math.sqrt(seconds))  # 5 % of what a second shows
            throughput = able[trial.candidate.device] * (1 + noise)
            trial.turns.append([CallersFigures(1, throughput, 0.01)])
        choice = able[chosen(tried, math.inf).candidate.device]
        of_best.append(choice / max(able.values()))
        of_default.append(choice / able["0"])
    assert min(of_default) > 0.97
    assert min(of_best) > 0.9
    assert np.median(of_best) > 0.99


@pytest.mark.parametrize(
    ("found", "right", "off"),
    [
        ([1.0, 4.0], [1.0, 4.0], 0.0),
        ([1.5, 4.0], [1.0, 4.0], 0.125),
        ([1.0, np.nan], [1.0, np.nan], 0.0),
        ([1.0, 2.0], [1.0, np.nan], np.inf),
        ([1.0, np.nan], [1.0, 2.0], np.inf),
        ([1.0], [1.0, 2.0], np.inf),
        ([0.5, 0.0], [0.0, 0.0], np.inf),
        ([0.0], [0.0], 0.0),
    ],
)
def test_the_largest_difference_is_in_units_of_an_outputs_largest_number(
    found: list[float], right: list[float], off: float
) -> None:
    answers = {"y": np.array(found, np.float32)}, {"y": np.array(right, np.float32)}
    assert largest_difference(*answers) == off


def test_other_texts_and_absent_values_are_wholly_different() -> None:
    a, b = np.array(["a"], object), np.array(["b"], object)
    assert largest_difference({"y": a}, {"y": a}) == 0
    assert largest_difference({"y": a}, {"y": b}) == np.inf
    assert largest_difference({"y": None}, {"y": None}) == 0
    assert largest_difference({"y": None}, {"y": np.ones(1)}) == np.inf
    assert largest_difference({"y": [a, a]}, {"y": [a, b]}) == np.inf
    assert largest_difference({"y": [a]}, {"y": [a, a]}) == np.inf


def test_the_frontier_has_what_nothing_beats() -> None:
    slow, fast, beaten, much = (
        CallersFigures(1, throughput, p99)
        for throughput, p99 in ((10.0, 0.02), (20.0, 0.01), (15.0, 0.03), (30.0, 0.04))
    )
    assert frontier([slow, fast, beaten, much]) == [fast, much]
    assert frontier([]) == []


def port(name: str, *shape: int | str) -> Port:
    return Port(name, "float32", shape)


def shapes_of(feeds: Sequence[Mapping[str, Any]], name: str) -> set[tuple[int, ...]]:
    assert len(feeds) == VARIETY
    return {each[name].shape for each in feeds}


def test_requests_have_the_shapes_that_the_network_has_had() -> None:
    ports = Ports([port("x", "n", 4), port("m", 2)])
    seen = [
        SeenShapes.parse('{"requests": 9, "shapes": {"x": [3, 4], "state": [7]}}'),
        SeenShapes.parse('{"requests": 8, "shapes": {"x": [5, 4]}}'),
    ]
    assert shapes_of(make_feeds(ports, {}, {}, seen), "x") == {(3, 4), (5, 4)}
    assert shapes_of(make_feeds(ports, {"x": (2, 4)}, {}, seen), "x") == {(2, 4)}
    given = {"x": np.zeros((9, 4), np.float32)}
    assert shapes_of(make_feeds(ports, {}, given, seen), "x") == {(9, 4)}
    assert shapes_of(make_feeds(ports, {}, {}, []), "x") == {(1, 4)}
    assert shapes_of(make_feeds(ports, {}, {}, seen), "m") == {(2,)}


class Statuses:
    """A client whose server says one thing after the other."""

    def __init__(self, *documents: Sequence[tuple[str, int, int]]) -> None:
        self._documents = iter(documents)
        self.asked = 0

    async def status(self) -> dict[str, Any]:
        self.asked += 1
        rows = next(self._documents)
        return {
            "networks": [
                {"name": name, "accepted": accepted, "in_flight": in_flight}
                for name, accepted, in_flight in rows
            ]
        }


def others(*documents: Sequence[tuple[str, int, int]]) -> tuple[str, int]:
    """Who had requests, and how often the server was asked."""
    client: Any = Statuses(*documents)
    return asyncio.run(requests_of_others(client, "own")), client.asked


def test_requests_of_others_are_seen_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.client.cli.tune.others._LOOK_SECONDS", 0)
    quiet = [("m", 5, 0), ("own", 1, 1)]
    assert others(quiet, [("m", 5, 0), ("own", 9, 1)], [("m", 6, 0)]) == ("m", 3)
    assert others(quiet, [*quiet, ("new", 1, 0)]) == ("new", 2)
    assert others(quiet, [("m", 0, 0)], [("m", 6, 0)]) == ("m", 3), "it was loaded again"


def test_requests_of_others_that_run_already_are_seen_at_once() -> None:
    assert others([("a", 5, 2), ("b", 5, 1), ("c", 5, 0)]) == ("a, b", 1)


def test_the_picture_is_drawn_even_of_nothing(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    tried = trials("default", "other")
    plot(tried, tried[0], math.inf, "m", tmp_path / "none.svg")
    for trial in tried:
        trial.turns.append([CallersFigures(1, 10.0, 0.01), CallersFigures(2, 15.0, 0.02)])
    plot(tried, tried[1], TARGET, "m", tmp_path / "some.svg")
    drawn = (tmp_path / "some.svg").read_text()
    assert all(each in drawn for each in ("frontier", "chosen: other", "default: default"))


def run(*arguments: Any) -> Result:
    words = ["tune", "m", *map(str, arguments)]
    return CliRunner().invoke(make_app(words), words)


@pytest.mark.parametrize("text", ["20", "fast", "0ms", "-1ms", "1.2.3s", "20 min"])
def test_a_target_is_a_duration(text: str) -> None:
    assert run("--p99", text).exit_code == 2


@pytest.mark.parametrize("text", ["inf", "nan", "0", "-1", "1e9"])
def test_a_measurement_takes_some_time_and_ends(text: str) -> None:
    result = run("--seconds", text)
    assert result.exit_code == 2
    assert "--seconds" in result.stderr


def test_durations_have_three_units() -> None:
    assert [command._seconds(text) for text in ("20ms", "0.5s", "300 us")] == pytest.approx(
        [0.02, 0.5, 0.0003]
    )


def test_a_device_with_a_list_comes_last() -> None:
    assert command._DEVICES.findall("CPU,HETERO:OPENVINO,CPU") == ["CPU", "HETERO:OPENVINO,CPU"]
    assert command._DEVICES.findall("CPU,OPENVINO") == ["CPU", "OPENVINO"]
