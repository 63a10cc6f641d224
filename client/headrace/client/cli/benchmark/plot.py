"""The picture of a benchmark: a histogram of latencies, and throughput over time."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from headrace.client.cli.benchmark.results import Results

SUFFIXES: Final = (".png", ".svg")
_LATENCY, _LINE, _ERROR = "#4878a8", "#1f3a57", "#c0504d"
_MOST_PIECES = 60


def plot(results: Results, title: str, path: Path) -> None:
    """Writes the picture; its suffix is the format.

    Raises:
        ImportError: Matplotlib is not installed.
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure  # an extra, and slow to import

    figure = Figure(figsize=(9, 7), layout="constrained")
    figure.suptitle(title, fontsize=11)
    above, below = figure.subplots(2, 1)

    latencies = [1e3 * answer.latency for answer in results.completed]
    above.set_title("latency", loc="left", fontsize=10)
    above.set_xlabel("milliseconds")
    above.set_ylabel("requests")
    if latencies:
        above.hist(latencies, bins=_edges(latencies), color=_LATENCY, edgecolor="white", lw=0.3)
        _mark_percentiles(above, results)
        above.set_xlim(left=0)
        hidden = sum(latency > above.get_xlim()[1] for latency in latencies)
        if hidden:
            above.annotate(
                f"{hidden} slower, up to {max(latencies):.3g} ms →",
                (0.995, 0.05),
                xycoords="axes fraction",
                ha="right",
                fontsize=8,
                color=_LINE,
            )

    else:
        above.text(0.5, 0.5, "no answers", ha="center", transform=above.transAxes)

    pieces = max(5, min(_MOST_PIECES, int(results.seconds * 4)))
    per_second, ends = results.over_time(pieces)
    below.set_title("throughput", loc="left", fontsize=10)
    below.stairs(per_second, [0.0, *ends], color=_LATENCY, fill=True, alpha=0.35)
    below.stairs(per_second, [0.0, *ends], color=_LATENCY)
    below.axhline(results.throughput, color=_LINE, lw=1, ls="--")
    below.annotate(
        f"{results.throughput:.4g}/s",
        (results.seconds, results.throughput),
        xytext=(-4, 4),
        textcoords="offset points",
        ha="right",
        color=_LINE,
        fontsize=9,
    )
    failed = [answer.end for answer in results.answers if answer.error]
    if failed:
        below.plot(
            failed, np.zeros(len(failed)), "|", color=_ERROR, ms=12, label=f"{len(failed)} failed"
        )
        below.legend(loc="upper left", fontsize=8)
    below.set_xlabel("seconds")
    below.set_ylabel("answers per second")
    below.set_xlim(0, results.seconds)
    below.set_ylim(0, 1.08 * max([*per_second, 1.0]))
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def _edges(latencies: list[float]) -> list[float]:
    """The edges of the histogram's bars. They end a little above the 99th percentile, so that one
    slow request does not push all others into one bar."""
    least, most = min(latencies), max(latencies)
    p99 = float(np.percentile(latencies, 99))
    end = min(most, p99 + 0.5 * (p99 - least)) if p99 > least else most
    return list(np.linspace(least, end if end > least else least + 1e-3, 61))


def _mark_percentiles(axes: object, results: Results) -> None:
    spread = results.spreads()["latency"]
    for level, (percent, seconds) in enumerate(spread.percentiles.items()):
        axes.axvline(1e3 * seconds, color=_LINE, lw=1, ls=":")  # type: ignore[attr-defined]
        axes.annotate(  # type: ignore[attr-defined]
            f"p{percent} {1e3 * seconds:.3g}",
            (1e3 * seconds, 1.0 - 0.07 * level),
            xycoords=("data", "axes fraction"),
            xytext=(3, -10),
            textcoords="offset points",
            fontsize=8,
            color=_LINE,
        )
