"""Provokes the alerts, one by one, on real servers that a real Prometheus scrapes.

The deployed rules look five minutes back and wait for minutes more. Here they look half a minute
back and wait two seconds. Nothing else of them is changed.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from headrace.testing import networks
from tests.dashboards.busy import DEVICES, Busy, Load, busy
from tests.dashboards.prometheus import Prometheus, configuration
from tests.integration.harness import BASIC, CALL_SECONDS, Server, until
from tests.support.ports import held_port
from tests.support.queries import RULES, rules
from tests.support.web_server import web_server

UNPROVOKED = {"HeadraceMemoryNearLimit"}
"""It needs the memory of a whole machine or control group."""
OF_ONE_SERVER = {"HeadraceServerDown", "HeadraceRestartLoop", "HeadraceRepositoryDown"}
FEW_DESCRIPTORS = {("HeadraceFileDescriptorsNearLimit", "warning")}
"""The last one, because a server that runs out of descriptors cannot do much else."""
_UNKEPT = {"CACHE_DIR": "taken"}
_PATIENCE_SECONDS = 240.0

pytestmark = [
    pytest.mark.timeout(_PATIENCE_SECONDS + 8 * CALL_SECONDS),
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="Debian's package prometheus is not installed"
    ),
]


def hurried(folder: Path) -> list[str]:
    """Copies of the deployed rules that fire soon."""
    found = []
    for file in RULES:
        text = file.read_text("utf-8").replace("[5m]", "[30s]")
        parsed = yaml.safe_load(text)
        for group in parsed["groups"]:
            for rule in group["rules"]:
                if "for" in rule:
                    rule["for"] = "2s"
        copy = folder / file.name
        copy.write_text(yaml.safe_dump(parsed))
        found.append(str(copy))
    return found


def firing(prometheus: Prometheus) -> set[tuple[str, str]]:
    """The alerts that somebody would be told of, by name and severity."""
    return {
        (each["labels"]["alertname"], each["labels"]["severity"])
        for each in prometheus.ask("/api/v1/alerts")["alerts"]
        if each["state"] == "firing"
    }


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[Busy]:
    """A busy server with a certificate that expires tomorrow, and a device that never ends a
    request: its requests run, wait, find no place, and expire."""
    (tmp_path / "server").mkdir()
    with ExitStack() as stack:
        server = stack.enter_context(busy(tmp_path / "server", devices=(*DEVICES, "STUCK"), days=1))
        case = networks.endless()
        endless = server.client.load_network(case.model, device="STUCK", name="stuck")
        load = Load()
        load.add(lambda: endless.infer(case.inputs, timeout=2.5), threads=12)
        stack.callback(load.stop)
        load.start()
        yield server


def test_every_alert_of_a_broken_server_fires(broken: Busy, tmp_path: Path) -> None:
    job: dict[str, Any] = {
        "authorization": {"type": "Bearer", "credentials_file": str(broken.token)}
    }
    deployed = configuration(broken.http, broken.ca, **job)
    wanted = {
        (each.name, each.labels["severity"])
        for each in rules()
        if each.alert and each.name not in UNPROVOKED | OF_ONE_SERVER
    }
    folder = tmp_path / "prometheus"
    folder.mkdir()
    told: set[tuple[str, str]] = set()
    with Prometheus(folder, {**deployed, "rule_files": hurried(tmp_path)}) as prometheus:
        # An outage, and a failure of the cache, show only in what was scraped before.
        known = 'headrace_device_outages_total{device="APART.0"}'
        until(lambda: prometheus.has(known), "the device was to be scraped")
        (broken.ca.parent / "server.crt").write_text("no certificate")
        end, pause = time.monotonic() + _PATIENCE_SECONDS, threading.Event()
        while wanted - told - FEW_DESCRIPTORS:
            assert time.monotonic() < end, f"these did not fire: {sorted(wanted - told)}"
            (state,) = (each.state for each in broken.client.devices() if each.name == "APART")
            # First it stays down, and then it goes down again and again.
            if state == "UP" or "HeadraceDeviceDown" not in dict(told):
                broken.crash()
            broken.client.load_network(
                networks.add().model, device="KEPT", name="unkept", config=_UNKEPT, replace=True
            )
            pause.wait(1)  # half of the time between two scrapes
            told |= firing(prometheus)
        process = psutil.Process(broken.server.process.pid)
        hard = process.rlimit(psutil.RLIMIT_NOFILE)[1]
        process.rlimit(psutil.RLIMIT_NOFILE, (int(process.num_fds() / 0.9), hard))
        try:
            until(lambda: firing(prometheus) >= FEW_DESCRIPTORS, "the last alert was to fire")
        finally:
            process.rlimit(psutil.RLIMIT_NOFILE, (hard, hard))


def in_plain_text(address: str, folder: Path) -> dict[str, Any]:
    """The deployed configuration for a server without TLS, and with the hurried rules."""
    deployed = configuration(address, folder / "ca.crt")
    job = {**deployed["scrape_configs"][0], "scheme": "http"}
    job.pop("tls_config")
    return {**deployed, "scrape_configs": [job], "rule_files": hurried(folder)}


def test_a_model_repository_whose_store_is_away_is_told_of(tmp_path: Path) -> None:
    model = tmp_path / "models" / "m" / "1" / "model.onnx"
    model.parent.mkdir(parents=True)
    model.write_bytes(networks.add().model.SerializeToString())
    options = (*BASIC, "--cache-dir", str(tmp_path / "cache"), "--repository-poll-seconds", "1")
    with ExitStack() as stack:
        with web_server(tmp_path / "models") as store:
            server = stack.enter_context(Server(*options, "--model-repository", store))
        watched = Prometheus(tmp_path, in_plain_text(server.http, tmp_path))
        prometheus = stack.enter_context(watched)
        wanted = ("HeadraceRepositoryDown", "warning")
        until(lambda: wanted in firing(prometheus), "the alert was to fire")


def test_a_server_that_restarts_again_and_again_and_then_ends_is_told_of(tmp_path: Path) -> None:
    port = str(held_port())
    deployed = in_plain_text(f"127.0.0.1:{port}", tmp_path)
    with Prometheus(tmp_path, deployed) as prometheus:
        for _ in range(4):
            with Server(*BASIC, "--http-port", port) as server:
                start = psutil.Process(server.process.pid).create_time()
                seen = f'abs(process_start_time_seconds{{job="headrace"}} - {start}) < 1'
                until(lambda seen=seen: prometheus.has(seen), "the start was to be scraped")  # type: ignore[misc]
        for name in ("HeadraceRestartLoop", "HeadraceServerDown"):
            until(
                lambda name=name: name in {told for told, _ in firing(prometheus)},  # type: ignore[misc]
                f"{name} was to fire",
            )
