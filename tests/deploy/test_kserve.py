"""The runtime for KServe serves what KServe mounts, on the port that KServe looks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.server.addresses import check_exposure
from headrace.server.settings.settings import Settings, options
from headrace.server.settings.sources import load_settings
from tests.deploy.rendering import KUBERNETES, image_environment, rendered

# What KServe gives a pod to stop. An InferenceService may ask for more, but not on Knative.
STOP_SECONDS = 30


@pytest.fixture(scope="module")
def runtime() -> Any:
    return rendered(KUBERNETES / "kserve").one("ServingRuntime")


@pytest.fixture(scope="module")
def model() -> Any:
    return rendered(KUBERNETES / "kserve").one("InferenceService")["spec"]["predictor"]["model"]


@pytest.fixture(scope="module")
def container(runtime: Any) -> Any:
    (only,) = runtime["spec"]["containers"]
    return only


@pytest.fixture(scope="module")
def settings(container: Any) -> Settings:
    given = {each["name"]: each["value"] for each in container["env"]}
    assert set(given) <= {each.variable for each in options()}
    return load_settings({}, image_environment() | given)


def test_the_service_names_a_runtime_that_takes_its_format_and_protocol(
    runtime: Any, model: Any
) -> None:
    assert model["runtime"] == runtime["metadata"]["name"]
    formats = [
        {"name": each["name"], "version": each["version"]}
        for each in runtime["spec"]["supportedModelFormats"]
    ]
    assert model["modelFormat"] in formats
    assert model["protocolVersion"] == "grpc-v2"
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]


def test_no_other_service_gets_the_runtime_unasked(runtime: Any) -> None:
    assert not any(each["autoSelect"] for each in runtime["spec"]["supportedModelFormats"])


def test_the_model_repository_is_where_kserve_mounts_it(settings: Settings) -> None:
    assert settings.model_repository == Path("/mnt/models")
    assert settings.state_dir is None


def test_the_only_port_is_the_server_s_grpc_under_knative_s_name(
    container: Any, settings: Settings
) -> None:
    assert container["name"] == "kserve-container"
    assert container["ports"] == [
        {"name": "h2c", "containerPort": settings.port, "protocol": "TCP"}
    ]
    assert container["readinessProbe"]["grpc"] == {"port": settings.port}


def test_the_server_leaves_tls_and_callers_to_the_ingress(settings: Settings) -> None:
    assert settings.allow_insecure
    assert settings.tls_cert is None
    check_exposure(settings)


def test_prometheus_is_sent_to_the_http_port(runtime: Any, settings: Settings) -> None:
    notes = runtime["spec"]["annotations"]
    assert notes["prometheus.kserve.io/port"] == str(settings.http_port)
    assert notes["prometheus.kserve.io/path"] == "/metrics"


def test_the_container_is_restricted_and_writes_to_volumes_alone(
    runtime: Any, container: Any, settings: Settings
) -> None:
    context = container["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    assert set(mounts) == {str(settings.cache_dir), "/tmp"}
    assert set(mounts.values()) == {each["name"] for each in runtime["spec"]["volumes"]}


def test_the_server_drains_in_the_time_that_kserve_gives(settings: Settings) -> None:
    assert settings.grace_seconds + 5 <= STOP_SECONDS
