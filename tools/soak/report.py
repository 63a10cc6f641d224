"""The report: a picture of the whole soak, and a page of figures and reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Patch

from tools.soak.ledger import Counts, End
from tools.soak.timeline import Window
from tools.soak.verdict import Reading, Sample, compared

MIB = 1 << 20
_BIN_SECONDS = 5.0


@dataclass
class Story:
    """All that the report tells.

    Attributes:
        begin, end: in seconds since 1970.
        readings: the quiet moments, from the end of the warm-up on.
        quiet_at: the times of all quiet moments.
        notes: what clients have noted, each with its process.
        reasons: why the soak has failed; empty if it has not.
    """

    begin: float
    end: float = 0.0
    samples: Sequence[Sample] = ()
    readings: list[Reading] = field(default_factory=list)
    quiet_at: list[float] = field(default_factory=list)
    windows: Sequence[Window] = ()
    notes: Sequence[tuple[str, Mapping[str, Any]]] = ()
    counts: Counts = field(default_factory=dict)
    facts: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


def write(story: Story, folder: Path) -> None:
    """Writes ``soak.png`` and ``report.md``."""
    folder.mkdir(parents=True, exist_ok=True)
    _draw(story, folder / "soak.png")
    (folder / "report.md").write_text(_page(story), "utf-8")


def _draw(story: Story, path: Path) -> None:
    figure, axes = plt.subplots(
        5, 1, figsize=(15, 19), sharex=True, height_ratios=(3, 2, 3, 3, 2), layout="constrained"
    )
    memory, handles, rate, latency, errors = axes
    names = sorted({each.process for each in story.samples}, key=lambda n: (n != "server", n))
    for number, name in enumerate(names):
        mine = [each for each in story.samples if each.process == name]
        minutes = [(each.at - story.begin) / 60 for each in mine]
        colour = f"C{number}"
        memory.plot(minutes, [each.bytes / MIB for each in mine], color=colour, label=name)
        handles.plot(
            minutes, [each.descriptors for each in mine], color=colour, label=f"{name}: descriptors"
        )
        handles.plot(
            minutes,
[each.threads for each in mine],
            color=colour, linestyle=":", label=f"{name}: threads",
        )  # fmt: skip
        quiet = [reading[name] for reading in story.readings if name in reading]
        memory.plot(
            [(each.at - story.begin) / 60 for each in quiet],
            [each.bytes / MIB for each in quiet],
            "o", color=colour, markersize=6,
        )  # fmt: skip
    memory.set_ylabel("resident memory, MiB\n(dots: quiet moments)")
    handles.set_ylabel("descriptors, threads")
    _draw_requests(story, rate, latency)
    _draw_errors(story, errors)
    _draw_windows(story, axes)
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.set_ylim(bottom=0 if axis is not latency else None)
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9, frameon=False)
    errors.set_xlabel("minutes")
    errors.set_xlim(0, (story.end - story.begin) / 60)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _bins(story: Story) -> Any:
    return np.arange(0, story.end - story.begin + _BIN_SECONDS, _BIN_SECONDS)


def _draw_requests(story: Story, rate: Any, latency: Any) -> None:
    kinds: dict[str, list[tuple[float, int, list[float]]]] = {}
    for _, each in story.notes:
        if "requests" in each:
            at = float(each["at"]) - story.begin
            kinds.setdefault(each["kind"], []).append((at, each["requests"], each["seconds"]))
    edges = _bins(story)
    middles = (edges[:-1] + edges[1:]) / 120
    names = sorted(kinds)
    stacks = [
        np.histogram(
            [at for at, *_ in kinds[name]], edges, weights=[count for _, count, _ in kinds[name]]
        )[0]
        / _BIN_SECONDS
        for name in names
    ]
    colours = [plt.get_cmap("tab20")(number) for number in range(len(names))]
    if names:
        rate.stackplot(middles, stacks, labels=names, colors=colours, zorder=2)
    rate.set_ylabel("rounds of calls a second, by kind")
    for name, colour in zip(names, colours, strict=True):
        mine = sorted(kinds[name])
        places = np.digitize([at for at, *_ in mine], edges) - 1
        worst: dict[int, float] = {}
        for place, (_, _, seconds) in zip(places, mine, strict=True):
            worst[int(place)] = max(worst.get(int(place), 0), seconds[2])
        found = [(middles[p], v) for p, v in sorted(worst.items()) if p < len(middles)]
        latency.plot([m for m, _ in found], [v for _, v in found], color=colour, label=name, lw=1)
    latency.set_yscale("log")
    latency.set_ylabel("99 % of calls end within, seconds")


def _draw_errors(story: Story, axis: Any) -> None:
    errors = [(name, each) for name, each in story.notes if "code" in each]
    edges = _bins(story)
    codes = sorted({str(each["code"]) for _, each in errors})
    bottom = np.zeros(len(edges) - 1)
    for number, code in enumerate(codes):
        mine = [float(each["at"]) - story.begin for _, each in errors if each["code"] == code]
        heights = np.histogram(mine, edges)[0]
        axis.bar(
            edges[:-1] / 60, heights, _BIN_SECONDS / 60, bottom, align="edge",
            color=f"C{number}", label=code, zorder=2,
        )  # fmt: skip
        bottom += heights
    axis.set_ylabel(f"errors in {_BIN_SECONDS:g} seconds")


def _draw_windows(story: Story, axes: Sequence[Any]) -> None:
    names = sorted({each.name for each in story.windows})
    colours = {name: plt.get_cmap("Set3")(number % 12) for number, name in enumerate(names)}
    last = story.end - story.begin
    for axis in axes:
        for each in story.windows:
            begin, end = (min(at - story.begin, last) / 60 for at in (each.begin, each.end))
            axis.axvspan(begin, end, color=colours[each.name], alpha=0.6, lw=0, zorder=0)
        for at in story.quiet_at:
            axis.axvline((at - story.begin) / 60, color="black", lw=0.8, linestyle="--")
    patches = [Patch(color=colour, label=name) for name, colour in colours.items()]
    axes[0].figure.legend(handles=patches, loc="outside upper center", ncols=5, title="provoked")


def _page(story: Story) -> str:
    minutes = (story.end - story.begin) / 60
    said = "failed" if story.reasons else "passed"
    lines = [
        f"# Soak: {said} after {minutes:.1f} minutes", "", "![the soak](soak.png)", "",
        "Dashed lines are quiet moments, in which clients pause and counters are compared.", "",
    ]  # fmt: skip
    if story.reasons:
        lines += ["## Reasons", "", *(f"- {each}" for each in story.reasons[:100]), ""]
    lines += ["## Facts", "", *(f"- {each}" for each in story.facts), ""]
    lines += ["## Memory, descriptors and threads in quiet moments", ""]
    lines += ["| process | what | begin | end | change |", "| --- | --- | ---: | ---: | ---: |"]
    for process in sorted({name for each in story.readings for name in each}):
        for what in ("bytes", "descriptors", "threads"):
            before, after = compared(story.readings, process, what)
            change = f"{after / before - 1:+.1%}" if before else "-"
            lines.append(f"| {process} | {what} | {before:,.0f} | {after:,.0f} | {change} |")
    lines += ["", "## Requests", "", _table(story.counts), "", "## Errors by provocation", ""]
    found = Counter(
        (_provocation(story, float(each["at"])), str(each["code"]))
        for _, each in story.notes
        if "code" in each
    )
    lines += ["| during | error | count |", "| --- | --- | ---: |"]
    lines += [f"| {name} | {code} | {count} |" for (name, code), count in sorted(found.items())]
    return "\n".join(lines) + "\n"


def _provocation(story: Story, at: float) -> str:
    names = sorted({each.name for each in story.windows if each.holds(at)})
    return ", ".join(names) or "nothing"


def _table(counts: Counts) -> str:
    head = ["kind", "network", *(end.name.lower() for end in End)]
    rows = [
        [row.kind, row.network, *(f"{each[end]:,}" for end in End)]
        for row, each in sorted(counts.items())
    ]
    lines = [" | ".join(["", *row, ""]).strip() for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)
