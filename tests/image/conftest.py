"""One image, one set of secrets and one server for all tests of the image."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from examples.demo import MAGIKA, REPOSITORY
from headrace.client import Client
from tests.image.container import START_SECONDS, Runner, Serving, find_runner

VERSION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]["version"]
GUIDE = (REPOSITORY / "deploy" / "README.md").read_text("utf-8")


@dataclass(frozen=True)
class Folders:
    """What a container mounts, by its place in the container; the user of the image may write."""

    root: Path

    def volumes(self) -> dict[Path, str]:
        return {
            self.root / "models": "/models:ro",
            **{self.root / name: f"/{name}" for name in ("state", "cache", "secrets")},
        }

    @property
    def secrets(self) -> Path:
        return self.root / "secrets"

    @property
    def ca(self) -> Path:
        return self.secrets / "ca.crt"


@dataclass(frozen=True)
class Variant:
    """The image's variant, and the device that shows it. No GPU is assumed."""

    name: str

    @property
    def image(self) -> str:
        return f"headrace:{VERSION}" + ("" if self.name == "cpu" else f"-{self.name}")

    @property
    def device(self) -> str:
        return {"openvino": "OPENVINO", "opencl": "OPENCL"}.get(self.name, "CPU")


@pytest.fixture(scope="session")
def variant() -> Variant:
    return Variant(os.environ.get("VARIANT", "cpu"))


@pytest.fixture(scope="session")
def runner(variant: Variant) -> Iterator[Runner]:
    found = find_runner(variant.image)
    print(f"\n{variant.image} is run by {found.name}")
    yield found
    found.close()


@pytest.fixture(scope="session")
def in_container(runner: Runner) -> Callable[[str], Any]:
    """Runs a Python program in a container; what it prints is JSON."""

    def run(program: str) -> Any:
        command = runner.command(["-c", program], volumes={}, environment={}, entrypoint="python3")
        ended = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    return run


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory, variant: Variant) -> Folders:
    root = tmp_path_factory.mktemp("image")
    for name in ("state", "cache", "secrets"):
        (root / name).mkdir()
        (root / name).chmod(0o777)
    network = root / "models" / "magika"
    network.mkdir(parents=True)
    shutil.copy(MAGIKA / "model.onnx", network)
    (network / "network.toml").write_text(f'device = "{variant.device}"\n')
    return Folders(root)


@pytest.fixture(scope="session")
def token(runner: Runner, folders: Folders) -> str:
    """The token that the guide's two lines make, together with the certificates."""
    lines = re.findall(r"^docker run --rm -v headrace:(/\w+) headrace:\S+ (.+)$", GUIDE, re.M)
    said = ""
    for place, arguments in lines:
        command = runner.command(
            shlex.split(arguments), volumes={folders.secrets: place}, environment={}
        )
        ended = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS)
        assert ended.returncode == 0, ended.stderr
        said += ended.stdout
    (made,) = re.findall(r"\bhr_[\w-]+", said)
    return str(made)


@pytest.fixture(scope="session")
def server(runner: Runner, folders: Folders, token: str) -> Iterator[Serving]:
    """A server with magika's network in its model repository."""
    with Serving(runner, folders.volumes()) as running:
        print(f"\nready after {running.start_seconds:.1f} s")
        yield running


@pytest.fixture
def client(server: Serving, folders: Folders, token: str) -> Iterator[Client]:
    with Client(server.grpc, tls_ca=folders.ca, token=token, timeout=START_SECONDS) as connected:
        yield connected
