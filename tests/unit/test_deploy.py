"""The files in deploy/: they parse, agree with each other and with the server's settings."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.server.settings import Settings, options

DEPLOY = Path(__file__).parents[2] / "deploy"
VARIABLES = {each.variable for each in options()}


def parsed(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


@pytest.fixture
def pod() -> Any:
    deployment, _ = parsed("kubernetes.yaml")
    return deployment["spec"]["template"]["spec"]


@pytest.fixture
def container(pod: Any) -> Any:
    (only,) = pod["containers"]
    return only


@pytest.fixture
def dockerfile() -> str:
    return (DEPLOY / "Dockerfile").read_text(encoding="utf-8")


def test_the_image_runs_the_server_itself_as_a_user_without_rights(dockerfile: str) -> None:
    lines = dockerfile.splitlines()
    assert 'ENTRYPOINT ["headrace"]' in lines
    assert json.loads(next(line for line in lines if line.startswith("CMD"))[4:]) == ["serve"]
    assert "USER 10001:10001" in lines
    assert "STOPSIGNAL SIGTERM" in lines


def test_the_image_exposes_the_ports_that_the_server_listens_on(dockerfile: str) -> None:
    assert f"EXPOSE {Settings().port} {Settings().metrics_port}" in dockerfile


@pytest.mark.parametrize("name", ["Dockerfile", "compose.yaml", "kubernetes.yaml", "README.md"])
def test_every_variable_is_a_setting(name: str) -> None:
    text = (DEPLOY / name).read_text(encoding="utf-8")
    # HEADRACE_MODELS is compose's own, for the folder on the host.
    assert set(re.findall(r"HEADRACE_[A-Z_]+", text)) <= VARIABLES | {"HEADRACE_MODELS"}


def test_kubernetes_makes_no_variables_that_look_like_settings(pod: Any) -> None:
    assert pod["enableServiceLinks"] is False


def test_kubernetes_waits_longer_than_the_server_drains(pod: Any, container: Any) -> None:
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert pod["terminationGracePeriodSeconds"] > float(variables["HEADRACE_GRACE_SECONDS"])


@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_every_probe_asks_grpc_on_its_port(container: Any, probe: str) -> None:
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert container[probe]["grpc"]["port"] == ports["grpc"] == Settings().port


def test_the_pod_meets_the_restricted_security_standard(pod: Any, container: Any) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    context = container["securityContext"]
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["readOnlyRootFilesystem"] is True


def test_the_service_finds_the_pod_and_its_ports(container: Any) -> None:
    deployment, service = parsed("kubernetes.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    names = {each["name"] for each in container["ports"]}
    assert {each["targetPort"] for each in service["spec"]["ports"]} == names


def test_every_mounted_volume_is_declared(pod: Any, container: Any) -> None:
    declared = {each["name"] for each in pod["volumes"]}
    assert {each["name"] for each in container["volumeMounts"]} == declared


def test_prometheus_scrapes_the_composed_server() -> None:
    (compose,) = parsed("compose.yaml")
    (prometheus,) = parsed("prometheus.yml")
    (target,) = prometheus["scrape_configs"][0]["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert host in compose["services"]
    assert int(port) == Settings().metrics_port


def test_compose_waits_longer_than_the_server_drains() -> None:
    (compose,) = parsed("compose.yaml")
    period = compose["services"]["headrace"]["stop_grace_period"]
    assert float(period.removesuffix("s")) > Settings().grace_seconds


def test_compose_mounts_files_that_exist() -> None:
    (compose,) = parsed("compose.yaml")
    mounts = [each.split(":")[0] for each in compose["services"]["prometheus"]["volumes"]]
    assert all((DEPLOY / mount).is_file() for mount in mounts if mount.startswith("./"))


def test_promtool_accepts_the_configuration() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        if os.environ.get("CI") == "true":
            pytest.fail("promtool is missing: apt-get install prometheus")
        pytest.skip("promtool is not installed; Debian's package prometheus has it")
    result = subprocess.run(
        [promtool, "check", "config", str(DEPLOY / "prometheus.yml")],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
