"""The queries of the dashboards and of the rules, and the labels that their results have."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import promql_parser as promql
import yaml
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from headrace.runtime.metrics.families import FAMILIES
from headrace.server.http.metrics import PREFIX
from tests.support.manual import OWN_SERIES

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
BOARDS: Final = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
RULES: Final = sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))
TARGET: Final = frozenset({"job", "instance"})
"""The labels that a scrape adds."""

_PROMETHEUS: Final = {
    "up": TARGET,
    "scrape_duration_seconds": TARGET,
    "ALERTS": TARGET | {"alertname", "alertstate"},
}
_COMPARISONS: Final = {"==", "!=", ">", "<", ">=", "<="}


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """A query of a panel.

    Attributes:
        kind: the panel's, as ``timeseries``.
        expression: with Grafana's variables.
        shown: with values in place of the variables: every server and network, the last minute.
    """

    board: str
    panel: str
    kind: str
    unit: str
    expression: str
    legend: str

    @property
    def shown(self) -> str:
        found = self.expression.replace("$__rate_interval", "1m").replace("$__range", "1h")
        for variable in ("$instance", "$network"):
            found = found.replace(variable, ".+")
        assert "$" not in found, f"a variable that there is not: {found}"
        return found


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that records (`alert` is false), or an alert."""

    name: str
    expression: str
    alert: bool
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


def panels(board: Path) -> Iterator[dict[str, Any]]:
    """The panels of a dashboard, without its rows."""
    for each in json.loads(board.read_text("utf-8"))["panels"]:
        if each["type"] != "row":
            yield each


def panel_queries() -> Iterator[PanelQuery]:
    for board in BOARDS:
        for panel in panels(board):
            unit = panel["fieldConfig"]["defaults"].get("unit", "short")
            for each in panel["targets"]:
                yield PanelQuery(
                    board.stem,
                    panel["title"],
                    panel["type"],
                    unit,
                    each["expr"],
                    each["legendFormat"],
                )


def rules() -> list[Rule]:
    return [
        Rule(
            each.get("alert") or each["record"],
            each["expr"],
            "alert" in each,
            each.get("labels", {}),
            each.get("annotations", {}),
        )
        for file in RULES
        for group in yaml.safe_load(file.read_text("utf-8"))["groups"]
        for each in group["rules"]
    ]


@cache
def exposed() -> dict[str, frozenset[str]]:
    """The labels of each series that a server exposes or a rule records, by the series' name."""
    found: dict[str, frozenset[str]] = dict(_PROMETHEUS)
    for family in (*FAMILIES, *(each.of_network() for each in OWN_SERIES)):
        labels = TARGET | set(family.labels)
        name = PREFIX + family.name
        if family.kind == "histogram":
            found |= {f"{name}_bucket": labels | {"le"}}
            found |= {f"{name}_sum": labels, f"{name}_count": labels}
        else:
            found[name] = labels
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    for metric in registry.collect():
        for sample in metric.samples:
            found[sample.name] = TARGET | set(sample.labels)
    recorded = [each for each in rules() if not each.alert]
    for rule in recorded:  # in their order, because one may use what another records
        found[rule.name] = labels_of(promql.parse(rule.expression), found)
    return found


def labels_of(expression: promql.Expr, known: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The labels that a result may have.

    Args:
        known: the labels of each series, by its name.

    Raises:
        AssertionError: there is no such series, or a label that the series do not have is used.
    """

    def has(labels: frozenset[str], used: set[str]) -> None:
        assert used <= labels, f"{sorted(used - labels)} in {expression}: there are {labels}"

    match expression:
        case promql.NumberLiteral() | promql.StringLiteral():
            return frozenset()
        case promql.ParenExpr():
            return labels_of(expression.expr, known)
        case promql.MatrixSelector():
            return labels_of(expression.vector_selector, known)
        case promql.VectorSelector():
            metric = expression.name or ""
            assert metric in known, f"there is no metric {metric}"
            labels = known[metric]
            has(labels, {each.name for each in expression.matchers.matchers})
            return labels
        case promql.Call():
            inner = [labels_of(each, known) for each in expression.args]
            name = expression.func.name
            if name == "histogram_quantile":
                has(inner[1], {"le"})
                return inner[1] - {"le"}
            return frozenset().union(*inner)
        case promql.AggregateExpr():
            labels = labels_of(expression.expr, known)
            if expression.modifier is None:
                return frozenset()
            named = set(expression.modifier.labels)
            has(labels, named)
            by = expression.modifier.type == promql.AggModifierType.By
            return frozenset(named) if by else labels - named
        case promql.BinaryExpr():
            left, right = labels_of(expression.lhs, known), labels_of(expression.rhs, known)
            if expression.modifier is not None and expression.modifier.matching is not None:
                has(left & right, set(expression.modifier.matching.labels))
            operator = str(expression.op)
            return left | right if operator == "or" or not left else left
    raise AssertionError(f"no rule for {type(expression)}")


def without_thresholds(expression: promql.Expr) -> Iterator[str]:
    """What an alert compares: its sides of ``or``, ``and`` and ``unless``, each without limit."""
    if isinstance(expression, promql.BinaryExpr):
        operator = str(expression.op)
        if operator in _COMPARISONS:
            yield expression.lhs.prettify()
            return
        if operator in ("or", "and", "unless"):
            yield from without_thresholds(expression.lhs)
            yield from without_thresholds(expression.rhs)
            return
    if isinstance(expression, promql.Call) and expression.func.name == "absent":
        yield from (each.prettify() for each in expression.args)
        return
    yield expression.prettify()
