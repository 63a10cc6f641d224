"""The rules in deploy/prometheus: what they watch, when they fire, and what they tell."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from tests.support.queries import RULES, Rule, exposed, labels_of, rules

ROOT = Path(__file__).parents[2]
SCENARIOS = ROOT / "tests" / "support" / "alerts.yml"
RUNBOOK = "docs/run/runbook.md"
ALERTS = [each for each in rules() if each.alert]
ALERT_IDS = [f"{each.name}-{each.labels.get('severity')}" for each in ALERTS]


def promtool(*arguments: str) -> None:
    program = shutil.which("promtool")
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail("promtool is missing: apt-get install prometheus")
        pytest.skip("promtool is not installed; Debian's package prometheus has it")
    result = subprocess.run([program, *arguments], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def scenarios() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(SCENARIOS.read_text("utf-8"))["tests"]
    return found


def test_promtool_finds_nothing_to_complain_about() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", *map(str, RULES))


def test_alerts_fire_when_they_should_and_not_before() -> None:
    promtool("test", "rules", str(SCENARIOS))


def test_every_rule_has_a_scenario() -> None:
    fired, recorded = set(), set()
    for scenario in scenarios():
        for each in scenario.get("alert_rule_test", ()):
            fired |= {
                (each["alertname"], alert["exp_labels"]["severity"]) for alert in each["exp_alerts"]
            }
        asked = scenario.get("promql_expr_test", ())
        recorded |= {each["expr"].partition(" ")[0] for each in asked}
    assert fired == {(each.name, each.labels["severity"]) for each in ALERTS}
    assert recorded == {each.name for each in rules() if not each.alert}


@pytest.mark.parametrize("rule", rules(), ids=lambda each: each.name)
def test_a_rule_uses_metrics_and_labels_that_there_are(rule: Rule) -> None:
    labels = labels_of(promql.parse(rule.expression), exposed())
    text = " ".join(rule.annotations.values())
    assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels


@pytest.mark.parametrize("alert", ALERTS, ids=ALERT_IDS)
def test_an_alert_says_how_bad_it_is_what_happened_and_where_to_read_on(alert: Rule) -> None:
    assert set(alert.labels) == {"severity"}
    assert alert.labels["severity"] in ("critical", "warning")
    assert set(alert.annotations) == {"summary", "description", "runbook_url"}
    assert alert.annotations["runbook_url"] == f"{RUNBOOK}#{alert.name.lower()}"
    assert alert.annotations["description"].endswith(".")


def test_the_runbook_has_a_heading_for_each_alert_and_for_no_other() -> None:
    text = (ROOT / RUNBOOK).read_text("utf-8")
    headings = re.findall(r"^#+ (Headrace\w+)$", text, re.MULTILINE)
    assert sorted(headings) == sorted({each.name for each in ALERTS})
