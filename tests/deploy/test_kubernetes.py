"""The base and the overlays of deploy/kubernetes agree with themselves and with the server."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from headrace.server.addresses import check_exposure
from headrace.server.settings.settings import options
from tests.deploy.rendering import (
    GUIDE,
    KUBERNETES,
    OVERLAYS,
    ROOT,
    SERVERS,
    Rendering,
    rendered,
    run,
    selects,
)

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


@pytest.fixture(scope="module")
def guide_makes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], set[str]]:
    """What the guide's commands make, and its keys. No command reaches a cluster."""
    folder = tmp_path_factory.mktemp("guide")
    (folder / "jwks.json").write_text("{}", "utf-8")
    made = {}
    for line in re.findall(r"^((?:headrace|kubectl .* create) .*)$", GUIDE, re.MULTILINE):
        program, *arguments = shlex.split(line)
        if program == "headrace":
            command = [str(Path(sys.executable).with_name("headrace")), *arguments]
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
            continue
        text = run("kubectl", *arguments, "--dry-run=client", "--output=json", cwd=folder)
        document = json.loads(text)
        assert document["metadata"]["namespace"] == "headrace"
        made[document["kind"], document["metadata"]["name"]] = set(document["data"])
    return made


def quantity(text: str) -> int:
    """Bytes of a quantity such as 12Gi."""
    number, unit = re.fullmatch(r"(\d+)([KMG]i)", text).groups()  # type: ignore[union-attr]
    return int(number) << {"Ki": 10, "Mi": 20, "Gi": 30}[unit]


def test_every_component_is_part_of_an_overlay() -> None:
    used = {
        (KUBERNETES / "overlays" / overlay / component).resolve()
        for overlay in OVERLAYS
        for component in yaml.safe_load(
            (KUBERNETES / "overlays" / overlay / "kustomization.yaml").read_text("utf-8")
        )["components"]
    }
    assert used == set((KUBERNETES / "components").resolve().iterdir())


def test_all_is_in_one_namespace_whose_pods_are_restricted(server: Rendering) -> None:
    space = server.one("Namespace")["metadata"]
    assert space["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    rest = [each for each in server.documents if each["kind"] != "Namespace"]
    assert {each["metadata"]["namespace"] for each in rest} == {space["name"]}


def test_every_selector_selects_the_pods(server: Rendering) -> None:
    assert server.one("Service")["spec"]["selector"].items() <= server.labels.items()
    for kind in ("Deployment", "PodDisruptionBudget", "PodMonitor"):
        for each in server.all(kind):
            assert each["spec"]["selector"]["matchLabels"]
            assert selects(each["spec"]["selector"], server.labels), kind
    for each in server.all("NetworkPolicy"):
        assert selects(each["spec"]["podSelector"], server.labels)
    for each in server.pod.get("topologySpreadConstraints", []):
        assert selects(each["labelSelector"], server.labels)


def test_every_port_that_is_named_is_the_server_s(server: Rendering) -> None:
    settings = server.settings
    assert server.ports == {"grpc": settings.port, "http": settings.http_port}
    for each in server.one("Service")["spec"]["ports"]:
        assert server.ports[each["targetPort"]] == each["port"]
    for monitor in server.all("PodMonitor"):
        assert {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]} == {"http"}
    for policy in server.all("NetworkPolicy"):
        for rule in policy["spec"].get("ingress", []):
            assert {each["port"] for each in rule["ports"]} <= set(server.ports)


def test_every_scaler_names_the_deployment(server: Rendering) -> None:
    deployment = server.one("Deployment")
    for scaler in (*server.all("HorizontalPodAutoscaler"), *server.all("ScaledObject")):
        target = scaler["spec"]["scaleTargetRef"]
        assert target["name"] == deployment["metadata"]["name"]
        assert target.get("kind", "Deployment") == "Deployment"
        assert "replicas" not in deployment["spec"], "an apply would undo the scaler's decision"


def test_the_image_is_of_this_version(server: Rendering) -> None:
    name, _, tag = server.container["image"].partition(":")
    assert (name, tag.split("-")[0]) == ("headrace", VERSION)


def test_the_settings_are_accepted_and_keep_strangers_out(server: Rendering) -> None:
    variables = {each.variable for each in options()}
    ours = {name for name in server.environment if name.startswith("HEADRACE_")}
    assert ours <= variables
    settings = server.settings
    check_exposure(settings)
    assert settings.tokens, "every overlay asks callers who they are"
    assert settings.allow_insecure == (settings.tls_cert is None)


def test_kubernetes_makes_no_variables_that_look_like_settings(server: Rendering) -> None:
    assert server.pod["enableServiceLinks"] is False


def test_every_file_that_a_setting_names_is_mounted(server: Rendering) -> None:
    (mount,) = (each for each in server.container["volumeMounts"] if each["name"] == "secrets")
    mounted = {Path(mount["mountPath"], file) for *_, files in server.sources() for file in files}
    settings = server.settings
    wanted = (
        settings.tls_cert,
        settings.tls_key,
        settings.tls_client_ca,
        settings.tokens,
        settings.jwt_jwks,
    )
    assert {each for each in wanted if each is not None} == mounted


def test_every_object_that_the_pod_needs_is_made_by_a_manifest_or_by_the_guide(
    server: Rendering, guide_makes: dict[tuple[str, str], set[str]]
) -> None:
    made = guide_makes | {
        ("Secret", each["spec"]["secretName"]): {"tls.crt", "tls.key", "ca.crt"}
        for each in server.all("Certificate")
    }
    kinds = {"secret": "Secret", "configMap": "ConfigMap"}
    for kind, name, files in server.sources():
        assert set(files) <= made[kinds[kind], name]
    for monitor in server.all("PodMonitor"):
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        for each in (
            endpoint["tlsConfig"]["ca"]["secret"],
            endpoint["authorization"]["credentials"],
        ):
            assert each["key"] in made["Secret", each["name"]]
    claims = {each["metadata"]["name"] for each in server.all("PersistentVolumeClaim")}
    wanted = [each.get("persistentVolumeClaim") for each in server.pod["volumes"]]
    assert {each["claimName"] for each in wanted if each} == claims


def test_every_folder_of_the_image_is_a_volume(server: Rendering) -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text("utf-8")
    (folders,) = re.findall(r"^VOLUME (.*)$", text, re.MULTILINE)
    mounts = {each["mountPath"]: each["name"] for each in server.container["volumeMounts"]}
    # The root file system is read-only, and uploads go to /tmp.
    assert set(mounts) == {*json.loads(folders), "/tmp"}
    assert set(mounts.values()) == {each["name"] for each in server.pod["volumes"]}


def test_a_node_s_disk_is_bounded_and_large_enough(server: Rendering) -> None:
    volumes = {each["name"]: each.get("emptyDir", {}) for each in server.pod["volumes"]}
    settings = server.settings
    assert quantity(volumes["cache"]["sizeLimit"]) > settings.max_cache_bytes
    assert quantity(volumes["tmp"]["sizeLimit"]) > settings.max_uploads_bytes
    assert quantity(volumes["state"]["sizeLimit"]) > settings.max_model_bytes


def test_the_pod_meets_the_restricted_security_standard(server: Rendering) -> None:
    assert server.pod["securityContext"]["runAsNonRoot"] is True
    assert server.pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert server.pod["automountServiceAccountToken"] is False
    context = server.container["securityContext"]
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["readOnlyRootFilesystem"] is True
    assert {"cpu", "memory"} <= set(server.container["resources"]["requests"])
    assert "memory" in server.container["resources"]["limits"]


def test_the_certificate_has_the_names_that_clients_and_prometheus_use(server: Rendering) -> None:
    service = server.one("Service")["metadata"]
    names = {service["name"], f"{service['name']}.{service['namespace']}.svc"}
    for monitor in server.all("PodMonitor"):
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["scheme"] == "https"
        names.add(endpoint["tlsConfig"]["serverName"])
    certificates = [each["spec"] for each in server.all("Certificate")]
    for served in (each for each in certificates if each["secretName"] == "headrace-tls"):
        assert names <= set(served["dnsNames"])
        issuers = {each["metadata"]["name"]: each["spec"] for each in server.all("Issuer")}
        authority = issuers[served["issuerRef"]["name"]]["ca"]["secretName"]
        assert authority in {each["secretName"] for each in certificates if each.get("isCA")}
        if server.settings.tls_client_ca:
            assert "client auth" in served["usages"]
            assert "127.0.0.1" in served["ipAddresses"]


def test_the_pod_with_a_gpu_offers_cuda_and_needs_no_second_gpu() -> None:
    server = rendered(SERVERS["gpu"])
    assert server.container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert server.settings.devices[0] == "CUDA"
    assert server.one("Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    assert server.container["image"].endswith("-cuda")


def test_replicas_follow_the_volume_and_write_nothing_there() -> None:
    server = rendered(SERVERS["shared"])
    settings = server.settings
    assert settings.repository_poll_seconds > 0
    assert settings.state_dir is None
    (volume,) = (each for each in server.pod["volumes"] if each["name"] == "models")
    assert volume["persistentVolumeClaim"]["readOnly"] is True
    (mount,) = (each for each in server.container["volumeMounts"] if each["name"] == "models")
    assert mount["readOnly"] is True
    assert Path(mount["mountPath"]) == settings.model_repository
    assert server.one("PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteMany"]


def test_every_folder_that_the_guide_applies_is_there() -> None:
    folders = re.findall(r"-k (deploy/kubernetes/\S+)", GUIDE)
    assert {"deploy/kubernetes/base", "deploy/kubernetes/kserve"} <= set(folders)
    assert all((ROOT / each / "kustomization.yaml").is_file() for each in folders)
    assert all(f"`overlays/{each}`" in GUIDE for each in OVERLAYS)
