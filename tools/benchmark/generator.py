"""The load generator in C++: `peers/load.cc`, which costs a tenth of one in Python.

It needs Debian's g++, pkg-config, libprotobuf-dev and libgrpc++-dev.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psutil

from tools.benchmark.servers import HERE, processor_seconds

SOURCE = HERE / "peers" / "load.cc"


class Missing(Exception):
    """A program that this machine lacks; the text says how to get it."""


class Generated(NamedTuple):
    """What came of a load. Latencies are in microseconds.

    Attributes:
        used: the server's processor time per reply in microseconds.
        longest: the longest latency of all.
        slowest: the largest of the connections' medians.
        late: the 99th percentile of how late the generator sent; it is part of the latencies.
        fewest: the fewest replies of a connection.
    """

    replies: float
    per_second: float
    used: float
    median: float
    p99: float
    longest: float
    slowest: float
    late: float
    fewest: float


@contextmanager
def generator() -> Iterator[Path]:
    """The program, compiled.

    Raises:
        Missing: there is no compiler or no gRPC for C++.
    """
    with TemporaryDirectory() as folder:
        program = Path(folder) / "load"
        try:
            flags = subprocess.run(
                ["pkg-config", "--cflags", "--libs", "grpc++", "protobuf"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            compiler = ["g++", "-std=c++17", "-O2", "-o", str(program), str(SOURCE)]
            subprocess.run([*compiler, *shlex.split(flags)], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise Missing(
                "the load generator in C++ could not be built: install g++, pkg-config, "
                "libprotobuf-dev and libgrpc++-dev"
            ) from error
        yield program


def generate(
    program: Path,
    address: str,
    process: psutil.Process,
    method: str,
    message: Path,
    *,
    seconds: float,
    callers: int = 1,
    connections: int = 1,
    per_second: float | None = None,
) -> Generated:
    """Puts load on a server; `load.cc` explains the arguments.

    Raises:
        RuntimeError: a call failed; the text has its status.
    """
    servers = process, *process.children(recursive=True)
    before = processor_seconds(*servers)
    arguments = [address, method, message, callers, seconds, connections]
    if per_second is not None:
        arguments.append(per_second)
    run = subprocess.run(
        [str(program), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise RuntimeError(f"{address}: {run.stderr.strip()}")
    used = processor_seconds(*servers) - before
    replies, took, *latencies = map(float, run.stdout.split())
    microseconds = used / replies * 1e6
    return Generated(replies, replies / took, microseconds, *latencies)
