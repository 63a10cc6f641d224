"""Every query of every panel and rule, asked of a Prometheus that scrapes a busy server with TLS
and tokens: ``make test-dashboards``. With PICTURES=FOLDER it draws what the queries answer."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import promql_parser as promql
import pytest
import yaml

from tests.dashboards.busy import Busy, busy
from tests.dashboards.prometheus import Prometheus, configuration
from tests.integration.harness import CALL_SECONDS, until
from tests.support.manual import blocks
from tests.support.queries import panel_queries, rules, without_thresholds

PICTURES = os.environ.get("PICTURES", "")
SECONDS = float(os.environ.get("PICTURE_SECONDS", "150"))
UP = 'up{job="headrace"} == 1'

pytestmark = [
    pytest.mark.timeout(SECONDS + 8 * CALL_SECONDS),
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="Debian's package prometheus is not installed"
    ),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Busy]:
    with busy(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def prometheus(server: Busy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Configured as the manual says for a server with tokens."""
    (shown,) = (
        each for each in blocks("docs/run/monitoring.md", "yaml") if "credentials_file" in each
    )
    job = yaml.safe_load(shown)
    assert job["authorization"]["credentials_file"] == "/secrets/prometheus.token"
    job["authorization"]["credentials_file"] = str(server.token)
    with Prometheus(
        tmp_path_factory.mktemp("prometheus"), configuration(server.http, server.ca, **job)
    ) as running:
        until(lambda: running.has(UP), "the server was to be scraped")
        # An outage is one that Prometheus sees only if it has seen the device before.
        until(lambda: running.has('headrace_device_outages_total{device="APART.0"}'), "APART")
        server.crash()
        yield running


def missing(prometheus: Prometheus, queries: dict[str, str]) -> list[str]:
    """What still has no answer when all of it had time to come. Asks until then."""
    left = dict(queries)
    deadline = time.monotonic() + CALL_SECONDS

    def answered() -> bool:
        for name in [name for name, query in left.items() if prometheus.has(query)]:
            del left[name]
        return not left or time.monotonic() > deadline - 1

    until(answered)
    return sorted(left)


def test_no_query_of_a_panel_comes_back_empty(prometheus: Prometheus) -> None:
    queries = {f"{each.board}/{each.panel}: {each.shown}": each.shown for each in panel_queries()}
    assert len(queries) > 60
    assert missing(prometheus, queries) == []


def test_no_rule_watches_what_there_is_not(prometheus: Prometheus) -> None:
    queries = {
        f"{rule.name}: {part}": part
        for rule in rules()
        for part in without_thresholds(promql.parse(rule.expression))
    }
    queries |= {each.name: each.name for each in rules() if not each.alert}
    assert missing(prometheus, queries) == []


def test_prometheus_evaluates_every_rule_without_an_error(prometheus: Prometheus) -> None:
    def evaluated() -> bool:
        found = [
            each for group in prometheus.ask("/api/v1/rules")["groups"] for each in group["rules"]
        ]
        assert [each["name"] for each in found if each.get("lastError")] == []
        assert len(found) == len(rules())
        return all(each["health"] == "ok" for each in found)

    until(evaluated, "every rule was to be evaluated")


def test_alerts_tell_of_what_is_broken_on_this_server(prometheus: Prometheus) -> None:
    """Those that have a time to wait are pending."""

    def told() -> set[str]:
        alerts = prometheus.ask("/api/v1/alerts")["alerts"]
        return {each["labels"]["alertname"] for each in alerts}

    broken = {"HeadraceNetworkFailed", "HeadraceInternalErrors", "HeadraceRequestsRefused"}
    until(lambda: broken <= told(), f"{broken} were to be told")
    assert "HeadraceServerDown" not in told()


def test_a_token_is_needed_where_metrics_are_not_open(server: Busy, tmp_path: Path) -> None:
    with Prometheus(tmp_path, configuration(server.http, server.ca)) as alone:
        until(lambda: alone.has('up{job="headrace"} == 0'), "the scrape was to be refused")
        (target,) = alone.ask("/api/v1/targets")["activeTargets"]
        assert re.search("401|403", target["lastError"])


def test_the_composed_server_is_scraped_without_a_token(tmp_path: Path) -> None:
    """Where HEADRACE_OPEN_METRICS is set, as in compose.yaml."""
    folder = tmp_path / "prometheus"
    folder.mkdir()
    with (
        busy(tmp_path / "server", "--open-metrics") as server,
        Prometheus(folder, configuration(server.http, server.ca)) as prometheus,
    ):
        until(lambda: prometheus.has(UP), "the server was to be scraped")


@pytest.mark.skipif(not PICTURES, reason="PICTURES names no folder")
def test_pictures_of_what_the_panels_show(prometheus: Prometheus, server: Busy) -> None:
    from tests.dashboards.pictures import draw

    begin = time.time()
    while time.time() < begin + SECONDS:  # what is drawn has to have happened
        time.sleep(1)
        if int(time.time() - begin) == SECONDS // 2:
            server.crash()
    folder = Path(PICTURES)
    draw(prometheus, begin, time.time(), folder)
    assert len(list(folder.glob("*.png"))) >= len({each.board for each in panel_queries()})
