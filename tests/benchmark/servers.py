"""Processes that benchmarks measure, and loads on them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import psutil

from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import encode_values
from headrace.wire.message import serialize

HERE = Path(__file__).parent
INFER = "/headrace.v1.InferenceEngine/Infer"


class Timed(Protocol):
    """A psutil.Process, or several that are measured as one."""

    def cpu_times(self) -> Any: ...


class Load(NamedTuple):
    """What came of one load: replies, how long it took, and the server's processor time."""

    replies: int
    seconds: float
    processor_seconds: float

    @property
    def microseconds(self) -> float:
        """The server's processor time per reply."""
        return self.processor_seconds / self.replies * 1e6

    @property
    def per_second(self) -> float:
        return self.replies / self.seconds


@contextmanager
def running(*command: str) -> Iterator[tuple[str, psutil.Process]]:
    """A server and the first line that it prints."""
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)


@contextmanager
def headrace(*options: str) -> Iterator[tuple[str, psutil.Process]]:
    """A headrace server's address and process."""
    ports = ("--port", "0", "--http-port", "0", "--json", "--log-level", "warning")
    with running("-m", "headrace.server", *ports, *options) as (line, process):
        yield json.loads(line)["grpc"], process


def request(network: str, inputs: Mapping[str, np.ndarray]) -> bytes:
    """A serialised InferRequest."""
    message = pb.InferRequest(network=network)
    attachments: list[object] = []
    encode_values(inputs, message.inputs, attachments)  # type: ignore[arg-type]
    return serialize(message, attachments)  # type: ignore[arg-type]


def load(
    address: str,
    server: Timed,
    mode: str,
    callers: int,
    file: Path,
    seconds: float,
    environment: Mapping[str, str] | None = None,
) -> Load:
    """Puts load on a server from a process of its own; arguments as load.py has them."""
    before = server.cpu_times()
    command = [sys.executable, str(HERE / "load.py"), address, mode, str(callers), str(seconds)]
    out = subprocess.run(
        [*command, str(file)],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    after = server.cpu_times()
    used = after.user + after.system - before.user - before.system
    replies, took = out.split()
    return Load(int(replies), float(took), used)
