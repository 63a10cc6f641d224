"""The queries that scale the Deployment are evaluated by Prometheus' own tool."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.runtime.metrics.families import DEVICE_QUEUE_WAIT_SECONDS, REQUEST_SECONDS
from tests.deploy.rendering import KUBERNETES, SERVERS, rendered

SERIES = f"headrace_{DEVICE_QUEUE_WAIT_SECONDS.name}_bucket"
RULES = KUBERNETES / "components" / "autoscaling" / "prometheus-adapter.yaml"


def adapter_rule() -> Any:
    (rule,) = yaml.safe_load(RULES.read_text("utf-8"))["rules"]["custom"]
    return rule


def adapter_query() -> str:
    """The adapter's query as it is for the pods of a namespace."""
    words = {
        "<<.Series>>": adapter_rule()["seriesQuery"].partition("{")[0],
        "<<.LabelMatchers>>": 'namespace="headrace",pod=~"busy|idle|quick"',
        "<<.GroupBy>>": "pod",
    }
    query = str(adapter_rule()["metricsQuery"])
    for word, text in words.items():
        assert word in query
        query = query.replace(word, text)
    return query


def keda_trigger() -> Any:
    (trigger,) = rendered(SERVERS["keda"]).one("ScaledObject")["spec"]["triggers"]
    return trigger


def waiting(pod: str, device: str, seconds: float) -> list[dict[str, str]]:
    """Ten requests a minute that all waited so long."""
    bounds = [f"{each:g}" for each in REQUEST_SECONDS] + ["+Inf"]
    return [
        {
            "series": f'{SERIES}{{namespace="headrace",pod="{pod}",device="{device}",'
            f'kind="request",le="{bound}"}}',
            "values": "0+10x10" if float(bound) >= seconds else "0x10",
        }
        for bound in bounds
    ]


def idle(pod: str) -> list[dict[str, str]]:
    return [each | {"values": "7x10"} for each in waiting(pod, "CPU.0", 0)]


def evaluate(query: str, expected: list[dict[str, Any]], folder: Path) -> None:
    """Has promtool compare a query's value with the expected samples."""
    promtool = shutil.which("promtool")
    if promtool is None:
        if os.environ.get("CI") == "true":
            pytest.fail("promtool is missing: apt-get install prometheus")
        pytest.skip("promtool is not installed; Debian's package prometheus has it")
    series = [
        *waiting("busy", "CPU.0", 0.09),
        *waiting("busy", "OPENCL.0", 0.002),
        *waiting("quick", "CPU.0", 0.002),
        *idle("idle"),
    ]
    test = {
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": series,
                "promql_expr_test": [{"expr": query, "eval_time": "10m", "exp_samples": expected}],
            }
        ],
    }
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump(test), "utf-8")
    result = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


# In microseconds. Nine tenths of a bucket's requests lie below nine tenths of the bucket.
BUSY = 50_000 + 0.9 * 50_000
QUICK = 1_000 + 0.9 * 1_500


def microseconds(query: str) -> str:
    """A query of seconds in whole microseconds, which promtool can compare."""
    return f"round(({query}) * 1e6)"


def test_the_adapter_gives_each_pod_the_wait_of_its_slowest_device(tmp_path: Path) -> None:
    expected = [
        {"labels": f'{{pod="{pod}"}}', "value": round(value)}
        for pod, value in {"busy": BUSY, "quick": QUICK, "idle": 0}.items()
    ]
    evaluate(microseconds(adapter_query()), expected, tmp_path)


def test_keda_gets_the_mean_over_the_pods(tmp_path: Path) -> None:
    expected = [{"labels": "{}", "value": round((BUSY + QUICK + 0) / 3)}]
    evaluate(microseconds(keda_trigger()["metadata"]["query"]), expected, tmp_path)


def test_the_autoscaler_asks_for_the_metric_that_the_adapter_makes() -> None:
    (metric,) = rendered(SERVERS["shared"]).one("HorizontalPodAutoscaler")["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == adapter_rule()["name"]["as"]


def test_the_queries_read_a_series_that_the_server_has() -> None:
    assert adapter_rule()["seriesQuery"].startswith(f"{SERIES}{{")
    used = set(re.findall(r"headrace_\w+", keda_trigger()["metadata"]["query"]))
    assert used == {SERIES}


def test_both_ways_of_scaling_aim_at_the_same() -> None:
    autoscaler = rendered(SERVERS["shared"]).one("HorizontalPodAutoscaler")["spec"]
    scaled = rendered(SERVERS["keda"]).one("ScaledObject")["spec"]
    target = autoscaler["metrics"][0]["pods"]["target"]["averageValue"]
    # KEDA would divide the mean by the replicas if it were not told that it is a value.
    assert keda_trigger()["metricType"] == "Value"
    assert float(keda_trigger()["metadata"]["threshold"]) == float(target.removesuffix("m")) / 1000
    advanced = scaled["advanced"]["horizontalPodAutoscalerConfig"]
    assert advanced["behavior"] == autoscaler["behavior"]
    least, most = autoscaler["minReplicas"], autoscaler["maxReplicas"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (least, most)


def test_the_target_is_inside_the_histogram_s_buckets() -> None:
    assert float(keda_trigger()["metadata"]["threshold"]) in REQUEST_SECONDS
