"""What `make benchmark-report` writes, from figures that nobody measured."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from tools.benchmark.bench_connections import Memory, OpenLoop
from tools.benchmark.bench_networks import CASES as NETWORKS
from tools.benchmark.bench_networks import Figures as NetworkFigures
from tools.benchmark.bench_requests import CASES
from tools.benchmark.report import growth, page, peers
from tools.benchmark.report.__main__ import SECTIONS, joined, section_names
from tools.benchmark.report.requests import KSERVE, WAYS
from tools.benchmark.report.section import Goal, Pictures
from tools.benchmark.servers import Compared, compared

REPOSITORY = Path(__file__).parents[2]
TWICE = Compared(100.0, 200.0, 2.0)
PEERS = ("bare grpc.aio echo", peers.OURS, peers.OWN, "KServe SDK", peers.INFER)


def peer(name: str) -> dict[str, Any]:
    return {"used": 300.0, "rate": 1234.0, "ratios": dict.fromkeys(PEERS, 6.0)}


def figures() -> dict[str, Any]:
    """The figures of all sections, as they are after they were stored as JSON."""
    kinds = ("threads", "tasks")
    client = {f"32 {kind}: server's us": TWICE for kind in kinds}
    client |= {f"32 {kind}: {KSERVE}": Compared(100.0, 600.0, 6.0) for kind in kinds}
    client |= {f"one of {kind}s: median us": TWICE for kind in ("thread", "task")}
    sections = {
        "requests": {
            "cases": {case.name: TWICE for case in CASES},
            "client": client,
            "local": dict.fromkeys(WAYS, TWICE),
        },
        "stages": {name: {"parse": 1.5, "execute": 20.0} for name in ("tiny", "large")},
        "networks": {case.title: NetworkFigures(TWICE, TWICE, TWICE) for case in NETWORKS},
        "connections": {
            "memory": Memory(144.0, Compared(17.0, 18.0, 1.06), [109.0, 110.0, 127.0]),
            "loops": (
                OpenLoop(5000.0, 3500.0, 400.0, 1500.0, 3.75, 600.0, 80.0, 390.0, 500.0, 3.0),
                OpenLoop(4000.0, 2800.0, 500.0, 2000.0, 4.0, 700.0, 90.0, 510.0, 640.0, 3.0),
                OpenLoop(4000.0, 3500.0, 600.0, 3000.0, 5.0, 800.0, 90.0, 510.0, 620.0, 3.0),
            ),
        },
        "peers": {name: peer(name) for name in PEERS},
        "growth": {name: {"1": TWICE, "4096": TWICE} for name in growth.TITLES},
    }
    machine = page.machine()
    found = {"machine": machine, "rounds": 5, "others": 0.01, "sections": sections, "missing": {}}
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def written(found: dict[str, Any], folder: Path) -> str:
    return page.report(SECTIONS, found, Pictures(folder, folder / "page.md"))


def test_a_report_has_every_section_its_goals_and_its_pictures(tmp_path: Path) -> None:
    text = written(figures(), tmp_path)
    for section in SECTIONS.values():
        assert f"### {section.TITLE}\n" in text
    assert "| 99th percentile ÷ median | 3.8 | 4.0 | 5.0 |" in text
    assert "| processor time of a request | 500 µs | 640 µs | 620 µs |" in text
    assert "| an idle connection | ≤ 12.0 KB | 18.0 KB | missed |" in text
    assert "| tiny, unary, 32 callers | ≤ 0.25 E | 2.00 E | missed |" in text
    assert "requests a second ÷ KServe's SDK | ≥ 8.0 | 6.0 | missed |" in text
    names = {"stages", "peers", *growth.TITLES}
    assert {each.name for each in tmp_path.iterdir()} == {f"{name}.svg" for name in names}
    assert all(f"]({name}.svg)" in text for name in names)


def test_the_same_figures_give_the_same_picture(tmp_path: Path) -> None:
    pictures = Pictures(tmp_path, tmp_path / "page.md")
    paint = partial(growth.paint, {1: TWICE, 4096: TWICE}, "bytes")
    for name in ("first", "second"):
        assert pictures.draw(name, "Cost", paint) == f"![Cost]({name}.svg)\n"
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.svg").read_bytes()


def test_what_is_not_there_is_told_and_has_no_goals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pictures, "draw", lambda *_: "")
    found = figures()
    del found["sections"]["growth"]
    found["missing"]["growth"] = "no echo"
    del found["sections"]["peers"]["KServe SDK"]
    client = found["sections"]["requests"]["client"]
    for kind in ("threads", "tasks"):
        del client[f"32 {kind}: {KSERVE}"]
    found["sections"]["connections"] |= {"loops": None, "missing": "no compiler"}
    text = written(found, tmp_path)
    assert "Not measured: no echo." in text
    assert "`make benchmark-peers` would install KServe SDK and MLServer" in text.replace("\n", " ")
    assert "Latency was not measured: no compiler." in text
    assert KSERVE not in text
    assert "99th percentile" not in text


def test_an_open_loop_that_replies_too_slowly_meets_no_goal() -> None:
    found = figures()["sections"]["connections"]
    late = OpenLoop(4000.0, 2000.0, 5e6, 6e6, 1.2, 5e6, 90.0, 510.0, 640.0, 3.0)
    found["loops"][1] = late
    connections = SECTIONS["connections"]
    rows = [goal.row for goal in connections.goals(found)]
    assert [row[2:] for row in rows[:2]] == [("∞", "missed"), ("∞", "missed")]
    assert "Replies came only 2,000 times a second" in connections.text(found, ANY)


@pytest.mark.parametrize(
    ("others", "rounds", "says"),
    [
        (0.01, 5, "used 1 % of the processors' time meanwhile. They hardly disturbed the figures."),
        (0.3, 5, "They disturbed the figures, so only the ratios count"),
        (0.01, 1, "Figures are from one round, so they vary."),
        (0.01, 5, "Figures are medians of 5 rounds."),
    ],
)
def test_the_text_says_how_far_to_trust_the_figures(others: float, rounds: int, says: str) -> None:
    found = figures() | {"others": others, "rounds": rounds}
    assert says in page.introduction(found)


@pytest.mark.parametrize(
    ("goal", "row"),
    [
        (Goal("x", 1.25, 1.2549, " E"), ("x", "≤ 1.25 E", "1.25 E", "met")),
        (Goal("x", 1.25, 1.256, " E"), ("x", "≤ 1.25 E", "1.26 E", "missed")),
        (Goal("x", 5, 4.94, "", at_least=True), ("x", "≥ 5.0", "4.9", "missed")),
        (Goal("x", 150, 150.4, " MB"), ("x", "≤ 150 MB", "150 MB", "met")),
    ],
)
def test_a_goal_is_held_against_the_figure_that_is_shown(
    goal: Goal, row: tuple[str, str, str, str]
) -> None:
    assert goal.row == row


def test_a_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    assert compared([(1.0, 2.0), (10.0, 11.0), (2.0, 6.0)]) == (2.0, 6.0, 2.0)


def test_the_manual_has_the_marks_and_a_page_without_them_is_refused() -> None:
    text = (REPOSITORY / "docs" / "results" / "performance.md").read_text()
    assert text.count(page.BEGIN) == text.count(page.END) == 1
    new = page.replace(text, "new\n")
    assert page.BEGIN + "new\n" + page.END in new
    assert page.replace(new, "newer\n") == page.replace(text, "newer\n")
    with pytest.raises(ValueError, match="lacks"):
        page.replace("# Performance\n", "new\n")


def test_sections_are_chosen_by_name() -> None:
    assert section_names("growth,peers") == ["growth", "peers"]
    assert section_names("") == []
    with pytest.raises(Exception, match="no section gowth; there are requests"):
        section_names("gowth")


def test_a_section_that_is_measured_again_takes_the_place_of_its_kept_figures() -> None:
    kept = {"rounds": 5, "sections": {"growth": 1, "peers": 2}, "missing": {"stages": "no clock"}}
    new = {"rounds": 1, "sections": {"stages": 3}, "missing": {"peers": "it failed"}}
    assert joined(kept, new) == {
        "rounds": 1,
        "sections": {"growth": 1, "stages": 3},
        "missing": {"peers": "it failed"},
    }
    assert joined({}, new) == new
