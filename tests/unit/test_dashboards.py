"""The dashboards in deploy/: what is committed, what Grafana reads, what the queries ask for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.dashboards.__main__ import BOARDS as WRITTEN
from deploy.dashboards.__main__ import FOLDER, text_of
from tests.support.queries import BOARDS, DEPLOY, exposed, labels_of, panel_queries, panels

IDS = [each.stem for each in BOARDS]


def provisioned(name: str) -> dict[str, Any]:
    (found,) = (DEPLOY / "grafana" / "provisioning" / name).glob("*.yaml")
    parsed: dict[str, Any] = yaml.safe_load(found.read_text("utf-8"))
    return parsed


def test_the_committed_dashboards_are_the_written_ones() -> None:
    """``python -m deploy.dashboards`` writes them."""
    assert {each.stem for each in FOLDER.iterdir()} == set(WRITTEN)
    for name, board in WRITTEN.items():
        assert (FOLDER / f"{name}.json").read_text("utf-8") == text_of(board), name


@pytest.mark.parametrize("board", BOARDS, ids=IDS)
def test_grafana_s_model_has_every_field_of_a_dashboard(board: Path) -> None:
    text = board.read_text("utf-8")
    assert text_of(Dashboard.from_json(json.loads(text))) == text


@pytest.mark.parametrize("board", BOARDS, ids=IDS)
def test_every_panel_says_what_it_answers_and_asks_the_chosen_prometheus(board: Path) -> None:
    source = {"type": "prometheus", "uid": "${datasource}"}
    found = list(panels(board))
    for panel in found:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"] == source
        assert [each["datasource"] for each in panel["targets"]] == [source] * len(panel["targets"])
        assert len({each["refId"] for each in panel["targets"]}) == len(panel["targets"]) > 0
    assert len({each["title"] for each in found}) == len(found)


@pytest.mark.parametrize("board", BOARDS, ids=IDS)
def test_panels_lie_beside_each_other_and_not_on_each_other(board: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for each in json.loads(board.read_text("utf-8"))["panels"]:
        at = each["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert cells
        assert not cells & taken, each["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_the_dashboards_have_addresses_of_their_own() -> None:
    found = [json.loads(each.read_text("utf-8")) for each in BOARDS]
    assert len({each["uid"] for each in found}) == len(found)
    assert {each["uid"] for each in found} == {f"headrace-{name}" for name in WRITTEN}
    assert all("headrace" in each["tags"] for each in found)


@pytest.mark.parametrize("board", IDS)
def test_queries_and_legends_use_metrics_and_labels_that_there_are(board: str) -> None:
    for each in panel_queries():
        if each.board == board:
            labels = labels_of(promql.parse(each.shown), exposed())
            named = set(re.findall(r"{{(\w+)}}", each.legend))
            if each.kind == "heatmap":
                assert named == {"le"}
            assert named <= labels, (each.panel, each.expression)


def test_a_query_for_what_there_is_not_is_found() -> None:
    known = exposed()
    for wrong in (
        "headrace_device_upp",
        'headrace_device_up{devise="CPU"}',
        "sum by (devise) (headrace_device_up)",
        "histogram_quantile(0.9, headrace_device_execution_seconds_sum)",
        "headrace_device_up and on (network) headrace_network_up",
    ):
        with pytest.raises(AssertionError):
            labels_of(promql.parse(wrong), known)


def test_variables_choose_servers_and_networks_that_there_are() -> None:
    for board in BOARDS:
        for each in json.loads(board.read_text("utf-8"))["templating"]["list"]:
            if each["type"] == "query":
                found = re.fullmatch(r"label_values\((.+), (\w+)\)", each["query"])
                assert found is not None
                series = found[1].replace("$instance", ".+")
                assert found[2] in labels_of(promql.parse(series), exposed())


def test_grafana_finds_prometheus_and_the_dashboards_where_compose_puts_them() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    grafana, prometheus = (compose["services"][each] for each in ("grafana", "prometheus"))
    mounted = dict(each.split(":")[:2] for each in grafana["volumes"])
    assert mounted["./grafana/provisioning"] == "/etc/grafana/provisioning"
    (provider,) = provisioned("dashboards")["providers"]
    assert provider["options"]["path"] == mounted["./grafana/dashboards"]
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home.parent == Path(provider["options"]["path"])
    assert (FOLDER / home.name).is_file()
    (source,) = provisioned("datasources")["datasources"]
    (port,) = (each.rpartition(":")[2] for each in prometheus["ports"])
    assert source["url"] == f"http://prometheus:{port}"
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))
    assert source["jsonData"]["timeInterval"] == scraped["global"]["scrape_interval"]


def test_whoever_reaches_grafana_may_look_and_nobody_may_change() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    settings = compose["services"]["grafana"]["environment"]
    assert settings["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert settings["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert settings["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert settings["GF_AUTH_BASIC_ENABLED"] == "false"
    for name in ("grafana", "prometheus"):
        service = compose["services"][name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert all(each.startswith("127.0.0.1:") for each in service["ports"])
