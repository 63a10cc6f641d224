"""Panels and dashboards in the form that Grafana reads.

A panel is a title, a sentence that says what it answers, and queries. The queries of a dashboard
are for the servers that its variable `instance` names; all start with every server.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Sequence

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import (
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE: typing.Final = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
COLUMNS: typing.Final = 24
HEIGHT: typing.Final = 8
S: typing.Final = '{instance=~"$instance"}'
"""Selects the series of the servers that are shown."""

Panel = timeseries.Panel | statetimeline.Panel | heatmap.Panel | stat.Panel | table.Panel
_AnyPanel = typing.TypeVar(
    "_AnyPanel",
    timeseries.Panel,
    statetimeline.Panel,
    heatmap.Panel,
    stat.Panel,
    table.Panel,
)


class Query(typing.NamedTuple):
    """
    Attributes:
        expression: PromQL.
        legend: the name of each series, with labels as ``{{device}}``.
    """

    expression: str
    legend: str = ""


def where(*conditions: str) -> str:
    """Selects the series of the servers that are shown for which all conditions hold."""
    return "{" + ", ".join(('instance=~"$instance"', *conditions)) + "}"


def rate(series: str) -> str:
    return f"rate({series}[$__rate_interval])"


def quantiles(histogram: str, by: str, names: str, selected: str = S) -> list[Query]:
    """The median, the 90th and the 99th percentile of a histogram.

    Args:
        by: the labels that series are told apart by.
        names: the legend, after the percentile.
    """
    buckets = f"sum by (le, {by}) ({rate(f'{histogram}_bucket{selected}')})"
    return [
        Query(f"histogram_quantile({share}, {buckets})", f"{name} {names}")
        for share, name in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"))
    ]


def graph(
    title: str,
    answers: str,
    queries: Iterable[Query],
    *,
    unit: str = "short",
    stacked: bool = False,
    logarithmic: bool = False,
    width: int = 12,
) -> timeseries.Panel:
    """Lines over time."""
    panel = (
        timeseries.Panel()
        .unit(unit)
        .min(0)
        .line_width(1)
        .fill_opacity(30 if stacked else 5)
        .show_points(common.VisibilityMode.NEVER)
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.TABLE)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull", "max"])
        )
        .tooltip(
            common_builders.VizTooltipOptions()
            .mode(common.TooltipDisplayMode.MULTI)
            .sort(common.SortOrder.DESCENDING)
        )
    )
    if stacked:
        panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    if logarithmic:
        panel.scale_distribution(
            common_builders.ScaleDistributionConfig().type(common.ScaleDistribution.LOG).log(10)
        )
    return _filled(panel, title, answers, queries, width)


def up_or_down(title: str, answers: str, query: Query, *, width: int = 24) -> statetimeline.Panel:
    """Green where a series is 1, red where it is 0."""
    mapping = models.ValueMap(
        options={
            "0": models.ValueMappingResult(text="down", color="red", index=0),
            "1": models.ValueMappingResult(text="up", color="green", index=1),
        }
    )
    panel = (
        statetimeline.Panel()
        .mappings([mapping])
        .color_scheme(dashboard.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
        .merge_values(True)
        .show_value(common.VisibilityMode.AUTO)
    )
    return _filled(panel, title, answers, [query], width)


def heat(title: str, answers: str, histogram: str, selected: str = S) -> heatmap.Panel:
    """How many values of a histogram fell into each bucket over time."""
    buckets = f"sum by (le) (increase({histogram}_bucket{selected}[$__rate_interval]))"
    panel = heatmap.Panel().calculate(False)
    return _filled(panel, title, answers, [Query(buckets, "{{le}}")], 12, PromQueryFormat.HEATMAP)


def number(
    title: str,
    answers: str,
    query: Query,
    *,
    unit: str = "short",
    limits: Sequence[tuple[float, str]] = (),
    decimals: int | None = None,
    named: bool = False,
    width: int = 4,
) -> stat.Panel:
    """The last value of each series, in large digits.

    Args:
        limits: the values from which on it has a colour, the smallest first; below it is green.
        named: whether a series' legend is shown in place of its value.
    """
    steps = [models.Threshold(color="green", value=None)]
    steps += [models.Threshold(color=color, value=value) for value, color in limits]
    mode = common.BigValueTextMode.NAME if named else common.BigValueTextMode.AUTO
    panel = (
        stat.Panel()
        .unit(unit)
        .thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(common.BigValueGraphMode.NONE)
        .text_mode(mode)
    )
    if decimals is not None:
        panel.decimals(decimals)
    return _filled(panel, title, answers, [query], width).height(4)


def listed(
    title: str,
    answers: str,
    columns: Sequence[tuple[str, str, str]],
    labels: Sequence[str],
    *,
    width: int = 24,
) -> table.Panel:
    """The last values as a table with a row for each set of labels.

    Args:
        columns: each value's title, unit and PromQL.
        labels: the labels that become columns.
    """
    panel = table.Panel().show_header(True)
    hidden = {"Time": True} | {f"Time {number}": True for number in range(1, len(columns) + 1)}
    names = {f"Value #{_REFERENCES[at]}": name for at, (name, _, _) in enumerate(columns)}
    panel.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    panel.with_transformation(
        models.DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": hidden,
                "indexByName": {label: at for at, label in enumerate(labels)},
                "renameByName": names,
            },
        )
    )
    for name, unit, _ in columns:
        panel.override_by_name(name, [models.DynamicConfigValue(id_val="unit", value=unit)])
    queries = [Query(expression) for _, _, expression in columns]
    return _filled(panel, title, answers, queries, width, PromQueryFormat.TABLE)


def board(
    name: str,
    title: str,
    answers: str,
    rows: Iterable[tuple[str, Iterable[Panel]]],
    *,
    network_of: str = "",
) -> models.Dashboard:
    """A dashboard.

    Args:
        name: its file, and the end of its address.
        rows: each row's title and panels.
        network_of: a metric with the label `network`, from which one chooses networks.
    """
    built = (
        dashboard.Dashboard(f"headrace: {title}")
        .uid(f"headrace-{name}")
        .description(answers)
        .tags(["headrace"])
        .time("now-1h", "now")
        .refresh("30s")
        .timezone(common.TimeZoneBrowser)
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .link(
            dashboard.DashboardLink("headrace")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags(["headrace"])
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
        )
        .with_variable(_choice("instance", "server", "headrace_build_info"))
    )
    if network_of:
        built.with_variable(_choice("network", "network", network_of + S))
    for row, panels in rows:
        built.with_row(dashboard.Row(row))
        for panel in panels:
            built.with_panel(panel)
    return built.build()


_REFERENCES: typing.Final = "ABCDEFGHIJ"


def _choice(name: str, label: str, series: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(f"label_values({series}, {name})")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .current(models.VariableOption(text="All", value="$__all"))
    )


def _filled(
    panel: _AnyPanel,
    title: str,
    answers: str,
    queries: Iterable[Query],
    width: int,
    form: PromQueryFormat = PromQueryFormat.TIME_SERIES,
) -> _AnyPanel:
    """Adds what every panel has."""
    panel.title(title).description(answers).datasource(SOURCE).span(width).height(HEIGHT)
    instant = isinstance(panel, stat.Panel | table.Panel)
    for reference, query in zip(_REFERENCES, queries, strict=False):
        target = (
            prometheus.Dataquery()
            .datasource(SOURCE)
            .expr(query.expression)
            .legend_format(query.legend or "__auto")
            .format(form)
            .ref_id(reference)
        )
        panel.with_target(target.instant() if instant else target.range())
    return panel
