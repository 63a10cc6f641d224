"""The picture of what ``headrace tune`` has measured: latency against throughput."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.client.cli.tune.figures import CallersFigures, frontier
from headrace.client.cli.tune.halving import Trial

_POINT, _LINE, _CHOSEN, _DEFAULT = "#b8c7d8", "#1f3a57", "#c0504d", "#4878a8"


def plot(trials: Sequence[Trial], choice: Trial, target: float, title: str, path: Path) -> None:
    """Writes the picture; its suffix is the format.

    Raises:
        ImportError: Matplotlib is not installed.
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure  # an extra, and slow to import

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=11)
    points = [each for trial in trials for each in _points(trial)]
    _draw(axes, points, "o", ms=4, c=_POINT, label="measured")
    _draw(axes, frontier(points), "o-", ms=4, c=_LINE, lw=1, label="frontier")
    default = trials[0]
    if default is not choice:
        _mark(axes, default, target, "default", "s", ms=9, c=_DEFAULT)
    _mark(axes, choice, target, "chosen", "*", ms=16, c=_CHOSEN)
    if math.isfinite(target):
        axes.axhline(1e3 * target, color=_LINE, lw=1, ls=":", label="target")
    axes.set_xlabel("answers per second")
    axes.set_ylabel("99th percentile of latency, milliseconds")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower left", fontsize=8, frameon=False)
    figure.savefig(path, dpi=120)


def _points(trial: Trial) -> list[CallersFigures]:
    return [each for turn in trial.turns for each in turn if math.isfinite(each.p99)]


def _mark(axes: Any, trial: Trial, target: float, what: str, style: str, **how: Any) -> None:
    best = trial.best(target)
    if math.isfinite(best.p99):
        callers = "1 caller" if best.callers == 1 else f"{best.callers} callers"
        label = f"{what}: {trial.candidate}, {callers}"
        _draw(axes, [best], style, label=label, **how)


def _draw(axes: Any, figures: Sequence[CallersFigures], style: str, **how: Any) -> None:
    axes.plot(
        [each.throughput for each in figures], [1e3 * each.p99 for each in figures], style, **how
    )
