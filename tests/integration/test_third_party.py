"""A third party's plugin, from `headrace plugin new` to a served inference."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing import networks
from headrace.testing.compare import assert_same_outputs
from tests.integration.harness import Server

pytestmark = pytest.mark.long

HEADRACE = Path(sys.executable).with_name("headrace")


def run(*command: str | Path, folder: Path, path: Path | None = None) -> None:
    environment = {**os.environ, **({"PYTHONPATH": str(path)} if path else {})}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("author")
    run(HEADRACE, "plugin", "new", "ACME", "--directory", "project", folder=folder)
    return folder / "project"


@pytest.fixture(scope="module")
def site(project: Path) -> Path:
    """A folder in which the project's wheel is installed."""
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    offline = ("--no-deps", "--no-index")
    wheels, site = project.parent / "wheels", project.parent / "site"
    build = ("wheel", "--no-build-isolation", *offline, "--wheel-dir", wheels, project)
    run(*pip, *build, folder=project.parent)
    (wheel,) = wheels.glob("headrace_acme-0.1.0-*.whl")
    run(*pip, "install", *offline, "--target", site, wheel, folder=project.parent)
    return site


def test_it_passes_the_conformance_suite(project: Path, site: Path) -> None:
    run(sys.executable, "-m", "pytest", "--quiet", folder=project, path=site)


def test_a_server_beside_which_it_is_installed_serves_with_it(site: Path) -> None:
    case = networks.mlp()
    with Server(environment={"PYTHONPATH": str(site)}) as server:
        assert "ACME" in server.devices()
        server.load(case, device="ACME", name="theirs")
        outputs = server.infer("theirs", case.inputs)
        assert_same_outputs(outputs, case.expected(), 1e-5)
        assert server.stop() == 0
