"""Draws what the panels' queries answer, with matplotlib and not with Grafana."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, Formatter, FuncFormatter
from PIL import Image

from tests.dashboards.prometheus import Prometheus
from tests.support.queries import BOARDS, PanelQuery

_UNITS: Final[dict[str, Formatter]] = {
    "s": EngFormatter("s"),
    "bytes": EngFormatter("B"),
    "Bps": EngFormatter("B/s"),
    "reqps": EngFormatter("/s"),
    "percentunit": FuncFormatter(lambda share, _: f"{100 * share:.3g} %"),
}
_CELL: Final = (0.62, 0.42)
"""Inches of a column and a row of Grafana's grid."""
_SHOWN: Final = 12
_NAMED: Final = 6
"""Lines of a graph, and those that its legend names."""


def draw(prometheus: Prometheus, begin: float, end: float, folder: Path) -> None:
    """Writes ``NAME.png`` for each dashboard.

    Args:
        begin, end: the time to show, in seconds since 1970.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for board in BOARDS:
        parsed = json.loads(board.read_text("utf-8"))
        panels = parsed["panels"]
        rows = max(each["gridPos"]["y"] + each["gridPos"]["h"] for each in panels)
        width, height = 24 * _CELL[0], rows * _CELL[1]
        figure = plt.figure(figsize=(width, height), dpi=80)
        for each in panels:
            at = each["gridPos"]
            left, top = at["x"] / 24, 1 - at["y"] / rows
            if each["type"] == "row":
                figure.text(0.004, top - 0.5 / rows, each["title"], weight="bold", va="center")
                continue
            axes = figure.add_axes(
                (
                    left + 0.045 * (at["w"] > 6) + 0.008,
                    top - (at["h"] - 1.2) / rows,
                    at["w"] / 24 - 0.016 - 0.045 * (at["w"] > 6),
                    (at["h"] - 2.6) / rows,
                )
            )
            axes.set_title(each["title"], fontsize=9, loc="left")
            _panel(axes, each, prometheus, begin, end)
        drawn = io.BytesIO()
        figure.savefig(drawn)
        plt.close(figure)
        Image.open(drawn).convert("RGB").quantize(128).save(
            folder / f"{board.stem}.png", optimize=True
        )


def _panel(
    axes: Axes, panel: dict[str, Any], prometheus: Prometheus, begin: float, end: float
) -> None:
    unit = panel["fieldConfig"]["defaults"].get("unit", "short")
    queries = [
        PanelQuery("", panel["title"], panel["type"], unit, each["expr"], each["legendFormat"])
        for each in panel["targets"]
    ]
    axes.tick_params(labelsize=7)
    if panel["type"] in ("stat", "table"):
        _values(axes, panel, queries, prometheus, end)
        return
    found = [
        (_name(query, series["metric"]), series["metric"], series["values"])
        for query in queries
        for series in prometheus.ask(
            "/api/v1/query_range", query=query.shown, start=begin, end=end, step=2
        )["result"]
    ]
    if panel["type"] == "heatmap":
        _heat(axes, found, unit, begin)
        return
    defaults = panel["fieldConfig"]["defaults"]
    stacked = defaults.get("custom", {}).get("stacking", {}).get("mode") == "normal"
    # The largest of many, as the legend of Grafana scrolls and a picture does not.
    found.sort(key=lambda each: -_last(each[2]))
    if stacked and found:
        times = sorted({time for _, _, values in found for time, _ in values})
        lines = [[_number(dict(values).get(time, "0")) for time in times] for _, _, values in found]
        axes.stackplot([time - begin for time in times], lines, labels=[name for name, *_ in found])
    else:
        for name, _, values in found[:_SHOWN]:
            axes.plot(
                [time - begin for time, _ in values],
                [float(value) for _, value in values],
                label=name,
                linewidth=1,
            )
    if defaults.get("custom", {}).get("scaleDistribution", {}).get("type") == "log":
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(_UNITS.get(unit, EngFormatter()))
    axes.set_xlim(0, end - begin)
    if any(name for name, *_ in found):
        drawn, names = axes.get_legend_handles_labels()
        axes.legend(drawn[:_NAMED], names[:_NAMED], fontsize=6, loc="upper left", framealpha=0.6)


def _heat(axes: Axes, found: list[Any], unit: str, begin: float) -> None:
    """A cell for each bucket and step, darker the more fell into the bucket."""
    found.sort(key=lambda each: float(each[1]["le"]))
    times = sorted({time for _, _, values in found for time, _ in values})
    below = [0.0] * len(times)
    cells = []
    for _, _, values in found:
        numbers = [_number(dict(values).get(time, "0")) for time in times]
        cells.append([max(0.0, a - b) for a, b in zip(numbers, below, strict=True)])
        below = numbers
    shown = [time - begin for time in times]
    axes.pcolormesh(shown, range(len(cells)), cells, cmap="Blues", shading="nearest")
    axes.set_yticks(range(len(cells)), [each[1]["le"] for each in found], fontsize=5)


def _values(
    axes: Axes, panel: dict[str, Any], queries: list[PanelQuery], prometheus: Prometheus, end: float
) -> None:
    """The last values: large, or as a table."""
    axes.axis("off")
    # The last of some seconds, because a single scrape may have come too late.
    results = [
        [
            {**each, "value": each["values"][-1]}
            for each in prometheus.ask(
                "/api/v1/query_range", query=query.shown, start=end - 20, end=end, step=2
            )["result"]
        ]
        for query in queries
    ]
    if panel["type"] == "stat":
        format_ = _UNITS.get(queries[0].unit, EngFormatter(places=0))
        text = "   ".join(
            each["metric"].get("version") or f"{_named(each)}{format_(float(each['value'][1]))}"
            for each in results[0]
        )
        axes.text(0.5, 0.45, text, fontsize=15, ha="center", va="center")
        return
    names = next(
        each["options"]["renameByName"]
        for each in panel["transformations"]
        if each["id"] == "organize"
    )
    units = {
        each["matcher"]["options"]: each["properties"][0]["value"]
        for each in panel["fieldConfig"]["overrides"]
    }
    labels = sorted({label for result in results for each in result for label in each["metric"]})
    rows: dict[tuple[str, ...], list[str]] = {}
    for at, result in enumerate(results):
        format_ = _UNITS.get(units[list(names.values())[at]], EngFormatter(places=0))
        for each in result:
            key = tuple(each["metric"].get(label, "") for label in labels)
            cells = rows.setdefault(key, [""] * len(results))
            cells[at] = format_(float(each["value"][1]))
    shown = [[*key, *cells] for key, cells in sorted(rows.items())[:_SHOWN]]
    drawn = axes.table(shown, colLabels=[*labels, *names.values()], loc="upper center")
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(7)


def _named(series: dict[str, Any]) -> str:
    return " ".join(series["metric"].values()) + ": " if series["metric"] else ""


def _name(query: PanelQuery, labels: dict[str, str]) -> str:
    """The legend of a series, without the server, of which there is one."""
    legend = query.legend.replace("{{instance}}", "")
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), legend).strip()


def _number(text: str) -> float:
    number = float(text)
    return 0.0 if math.isnan(number) else number


def _last(values: list[Any]) -> float:
    return _number(values[-1][1])
