"""The manifest for KubeRay fits its schema, and runs what serve.yaml says."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import jsonschema
import pytest
import yaml

from headrace.cluster.replica import check_settings
from headrace.cluster.scaling import by_waiting_time
from headrace.server.settings.settings import options
from headrace.server.settings.sources import load_settings
from tests.deploy.rendering import ROOT
from tests.deploy.test_schemas import SCHEMAS, closed

FOLDER = ROOT / "deploy" / "ray"


@pytest.fixture(scope="module")
def service() -> Any:
    return yaml.safe_load((FOLDER / "ray-service.yaml").read_text("utf-8"))


@pytest.fixture(scope="module")
def config() -> Any:
    return yaml.safe_load((FOLDER / "serve.yaml").read_text("utf-8"))


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = closed(json.loads((SCHEMAS / "ray.io_v1_RayService.json").read_text("utf-8")))
    return jsonschema.Draft202012Validator(schema)


def test_the_manifest_fits_the_schema_of_kuberay(service: Any, validator: Any) -> None:
    validator.validate(service)


def test_a_misspelt_property_is_refused(service: Any, validator: Any) -> None:
    wrong = json.loads(json.dumps(service))
    wrong["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["minReplica"] = 1
    with pytest.raises(jsonschema.ValidationError, match="minReplica"):
        validator.validate(wrong)


def test_the_manifest_holds_the_configuration_of_the_file(service: Any, config: Any) -> None:
    assert yaml.safe_load(service["spec"]["serveConfigV2"]) == config


def test_the_configuration_names_what_exists(config: Any) -> None:
    (function,) = config["grpc_options"]["grpc_servicer_functions"]
    module, _, name = function.rpartition(".")
    assert callable(getattr(import_module(module), name))
    (application,) = config["applications"]
    (deployment,) = application["deployments"]
    policy = deployment["autoscaling_config"]["policy"]["policy_function"]
    assert policy == f"{by_waiting_time.__module__}:{by_waiting_time.__name__}"
    assert application["route_prefix"] == "/"  # without one, HAProxy gets no replicas


def test_the_replicas_take_the_settings(service: Any, config: Any) -> None:
    arguments = dict(config["applications"][0]["args"])
    assert arguments.pop("store")
    containers = [
        group["template"]["spec"]["containers"][0]
        for group in (
            service["spec"]["rayClusterConfig"]["headGroupSpec"],
            *service["spec"]["rayClusterConfig"]["workerGroupSpecs"],
        )
    ]
    for container in containers:
        environment = {each["name"]: each["value"] for each in container["env"]}
        assert environment["RAY_SERVE_ENABLE_HA_PROXY"] == "1"
        dockerfile = (FOLDER / "Dockerfile").read_text("utf-8")
        binary = f"RAY_SERVE_HAPROXY_BINARY_PATH={environment['RAY_SERVE_HAPROXY_BINARY_PATH']}\n"
        assert binary in dockerfile
        ours = {name: each for name, each in environment.items() if name.startswith("HEADRACE_")}
        assert set(ours) <= {each.variable for each in options()}
        check_settings(load_settings(arguments, ours))


def test_clients_reach_the_port_that_haproxy_opens(service: Any, config: Any) -> None:
    (port,) = service["spec"]["serveService"]["spec"]["ports"]
    assert port["targetPort"] == config["grpc_options"]["port"]
