"""A server, in its own environment, for clients that know nothing of headrace: `make test-clients`.

Their descriptors share names with ours, so nothing here imports headrace.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("HEADRACE_PYTHON", REPOSITORY / ".venv/bin/python"))
STOP_SECONDS = 60
OPTIONS = ("--devices", "CPU,TEMPLATE,BATCH,AUTO", "--allow-client-shared-memory")


@dataclass(frozen=True)
class Serving:
    """Where a server listens, and what it may load."""

    grpc: str
    http: str
    models: dict[str, bytes]
    log: Any

    def written(self) -> str:
        """What the server has logged."""
        size = self.log.seek(0, os.SEEK_END)
        return os.pread(self.log.fileno(), size, 0).decode(errors="replace")


@pytest.fixture(scope="session")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("models")
    write_models("tests/clients/models.py", folder)
    yield from serve(OPTIONS, {path.stem: path.read_bytes() for path in folder.iterdir()})


def write_models(program: str, folder: Path) -> None:
    """Runs a program of this repository that writes models into a folder."""
    write = [str(each) for each in (PYTHON, REPOSITORY / program, folder)]
    subprocess.run(write, check=True, env=_environment())


def serve(options: tuple[str, ...], models: dict[str, bytes]) -> Iterator[Serving]:
    """A server with these options, which stops at the next step."""
    command = [str(PYTHON), "-m", "headrace.server", "--json", "--port", "0", "--http-port", "0"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=_environment(),
        )
        try:
            assert process.stdout is not None
            with process.stdout as output:
                line = output.readline()
            found = Serving("", "", models, log)
            assert line, found.written()
            addresses = json.loads(line)
            yield Serving(addresses["grpc"], addresses["http"], models, log)
            process.terminate()
            assert process.wait(STOP_SECONDS) == 0, found.written()
            assert "internal error" not in found.written(), found.written()
            assert "Traceback" not in found.written(), found.written()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait(STOP_SECONDS)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": "", "LD_LIBRARY_PATH": ""}


def load_over_rest(serving: Serving, name: str) -> None:
    """Loads a model, for clients that cannot do it themselves."""
    model = base64.b64encode(serving.models[name]).decode()
    body = json.dumps({"parameters": {"config": "{}", "file:1/model.onnx": model}}).encode()
    url = f"http://{serving.http}/v2/repository/models/{name}/load"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        assert reply.status == 200


@pytest.fixture(scope="session")
def binaries() -> Path:
    """Where this environment's programs are."""
    return Path(sys.executable).parent
