"""What kubectl makes of a folder of deploy/kubernetes, and questions about it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from headrace.server.settings.settings import Settings
from headrace.server.settings.sources import load_settings

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
TOOLS = Path(os.environ.get("KUBERNETES_TOOLS", ROOT / ".cache" / "kubernetes-1.37")).resolve()
OVERLAYS = sorted(each.name for each in (KUBERNETES / "overlays").iterdir())
SERVERS = {"base": KUBERNETES / "base"}
SERVERS |= {each: KUBERNETES / "overlays" / each for each in OVERLAYS}
GUIDE = (KUBERNETES / "README.md").read_text("utf-8")

Labels = Mapping[str, str]


def run(tool: str, *arguments: str | Path, cwd: Path = ROOT) -> str:
    """The standard output of one of the Kubernetes tools."""
    command = [str(TOOLS / tool), *map(str, arguments)]
    result = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=cwd
    )
    assert result.returncode == 0, f"{tool}: {result.stdout}{result.stderr}"
    return result.stdout


def selects(selector: Any, labels: Labels) -> bool:
    """Whether a label selector selects the labels. Our manifests use matchLabels alone."""
    assert set(selector) <= {"matchLabels"}
    wanted: Labels = selector.get("matchLabels", {})
    return wanted.items() <= labels.items()


@dataclass(frozen=True)
class Rendering:
    """The documents that one folder renders to."""

    documents: tuple[Any, ...]

    def all(self, kind: str) -> list[Any]:
        return [each for each in self.documents if each["kind"] == kind]

    def one(self, kind: str) -> Any:
        (only,) = self.all(kind)
        return only

    @property
    def template(self) -> Any:
        return self.one("Deployment")["spec"]["template"]

    @property
    def labels(self) -> Labels:
        """The pods' labels."""
        labels: Labels = self.template["metadata"]["labels"]
        return labels

    @property
    def pod(self) -> Any:
        return self.template["spec"]

    @property
    def container(self) -> Any:
        (only,) = self.pod["containers"]
        return only

    @property
    def environment(self) -> dict[str, str]:
        return {each["name"]: each["value"] for each in self.container["env"]}

    @property
    def ports(self) -> dict[str, int]:
        return {each["name"]: each["containerPort"] for each in self.container["ports"]}

    @property
    def least_replicas(self) -> int:
        """How many replicas there are at least."""
        scalers = {"HorizontalPodAutoscaler": "minReplicas", "ScaledObject": "minReplicaCount"}
        least = [each["spec"][key] for kind, key in scalers.items() for each in self.all(kind)]
        return int(*(least or [self.one("Deployment")["spec"]["replicas"]]))

    @property
    def settings(self) -> Settings:
        """What the server of the image makes of its environment."""
        return load_settings({}, image_environment() | self.environment)

    def sources(self) -> list[tuple[str, str, list[str]]]:
        """The volumes that are mounted at /secrets: their kinds, names and files."""
        found = []
        (volume,) = (each for each in self.pod["volumes"] if each["name"] == "secrets")
        for source in volume["projected"]["sources"]:
            ((kind, value),) = source.items()
            found.append((kind, value["name"], [each["path"] for each in value["items"]]))
        return found

    def admits(self, port: str, pod: Labels, namespace: Labels) -> bool:
        """Whether the network policies let a pod of a namespace connect to a port."""
        own = self.one("Namespace")["metadata"]
        policies = [
            each["spec"]
            for each in self.all("NetworkPolicy")
            if selects(each["spec"]["podSelector"], self.labels)
            and "Ingress" in each["spec"]["policyTypes"]
        ]
        assert policies, "without a policy, everybody is let in"

        def is_peer(peer: Any) -> bool:
            spaces = peer.get("namespaceSelector")
            if spaces is None:
                inside = namespace.get("kubernetes.io/metadata.name") == own["name"]
            else:
                inside = selects(spaces, namespace)
            return inside and selects(peer["podSelector"], pod)

        return any(
            any(is_peer(peer) for peer in rule["from"])
            and any(each["port"] in (port, self.ports[port]) for each in rule["ports"])
            for policy in policies
            for rule in policy["ingress"]
        )


@cache
def rendered(folder: Path) -> Rendering:
    """What `kubectl kustomize` makes of a folder."""
    return Rendering(tuple(yaml.safe_load_all(run("kubectl", "kustomize", folder))))


def image_environment() -> dict[str, str]:
    """The settings that the image brings."""
    text = (ROOT / "deploy" / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    return {
        name: value
        for line in re.findall(r"^ENV +(.*)$", text, re.MULTILINE)
        for name, value in re.findall(r"(HEADRACE_\w+)=(\S+)", line)
    }
