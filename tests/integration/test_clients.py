"""Clients of others in an environment of their own; `make test-clients` makes it, and runs more."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PYTHON = REPOSITORY / ".venv-clients/bin/python"
SECONDS = 600


@pytest.mark.long
@pytest.mark.skipif(not PYTHON.exists(), reason="`make test-clients` makes their environment")
def test_tritonclient_works_as_it_is() -> None:
    command = [str(PYTHON), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, "tests/clients/test_triton_grpc.py"],
        cwd=REPOSITORY,
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={key: each for key, each in os.environ.items() if not key.startswith("PYTEST_")},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
