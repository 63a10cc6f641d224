"""Processes that benchmarks measure, and loads on them."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
import psutil

from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import encode_values
from headrace.wire.message import serialize

HERE = Path(__file__).parent
INFER = "/headrace.v1.InferenceEngine/Infer"
ECHO = "/Echo/Echo"

Server = tuple[str, psutil.Process]
"""A server's address and its process."""
Program = tuple[IO[str], IO[str]]
"""What a program reads, and what it writes."""


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


class Compared(NamedTuple):
    """Two figures that were taken in turns, as medians of all rounds.

    Attributes:
        floor: the figure that headrace is compared with.
        ratio: the median of the rounds' own ratios.
    """

    floor: float
    ours: float
    ratio: float


def compared(rounds: Iterable[tuple[float, float]]) -> Compared:
    """Makes medians of rounds that each measured the floor and headrace."""
    rows = [(floor, ours, ours / floor) for floor, ours in rounds]
    return Compared(*(statistics.median(column) for column in zip(*rows, strict=True)))


def processor_seconds(*servers: Timed) -> float:
    """The processor time that they have used together."""
    times = [each.cpu_times() for each in servers]
    return float(sum(each.user + each.system for each in times))


def load_of(*command: str) -> Load:
    """The load that a module of the benchmarks puts on itself, and prints."""
    program = [sys.executable, "-m", *command]
    out = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    replies, took, used = out.split()
    return Load(int(replies), float(took), float(used))


@contextmanager
def running(*command: str) -> Iterator[Server]:
    """A server and the first line that it prints."""
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)


@contextmanager
def listening(*command: str) -> Iterator[Program]:
    """A program that ends when there is no more to read."""
    with subprocess.Popen(
        [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdin, process.stdout
        process.stdin.close()


@contextmanager
def headrace(*options: str) -> Iterator[Server]:
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
    """Puts load on a server from a process of its own; arguments as load.py has them.

    Processor time counts from when all connections are open until the last reply has come.
    """
    command = [sys.executable, str(HERE / "load.py"), address, mode, str(callers), str(seconds)]
    with subprocess.Popen(
        [*command, str(file)],
        env={**os.environ, **(environment or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as generator:
        assert generator.stdin is not None
        assert generator.stdout is not None
        generator.stdout.readline()
        before = processor_seconds(server)
        generator.stdin.write("go\n")
        generator.stdin.flush()
        line = generator.stdout.readline()
        used = processor_seconds(server) - before
    if generator.returncode:
        raise subprocess.CalledProcessError(generator.returncode, command)
    replies, took = line.split()
    return Load(int(replies), float(took), used)
