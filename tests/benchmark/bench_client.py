"""What `infer` of our client costs the server, and how long one caller waits; beside a bare echo.

Each round asks the echo and headrace in turns. The ratios are medians of five rounds.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

import psutil

from headrace.client import Client
from tests.benchmark.bench_requests import network
from tests.benchmark.client_load import ECHO
from tests.benchmark.servers import HERE, headrace, load, running

ROUNDS = 5
SECONDS = 1.0
CALLERS = 32


class Measured(NamedTuple):
    """One load.

    Attributes:
        microseconds: the server's processor time per reply.
        median: of a call's seconds.
    """

    microseconds: float
    per_second: float
    median: float


def client_load(address: str, server: psutil.Process, kind: str, callers: int) -> Measured:
    command = [sys.executable, str(HERE / "client_load.py"), address, str(server.pid), kind]
    out = subprocess.run(
        [*command, str(callers), str(SECONDS), "tiny"], capture_output=True, text=True, check=True
    ).stdout
    replies, seconds, median, used = map(float, out.split())
    return Measured(used / replies * 1e6, replies / seconds, median)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        echo = stack.enter_context(running(str(HERE / "echo_server.py")))
        server = stack.enter_context(headrace())
        message = Path(folder) / "message"
        message.write_bytes(ECHO)
        with Client(server[0]) as client:
            client.load_network(network("Add", (1, 16)), device="CPU", name="tiny")
        rows: dict[str, list[tuple[float, float, float]]] = {}
        for _ in range(ROUNDS):
            floor = load(*echo, "/Echo/Echo", CALLERS, message, SECONDS)
            for kind in ("threads", "tasks"):
                ours = client_load(*server, kind, CALLERS)
                rows.setdefault(f"{CALLERS} {kind}: server's us", []).append(
                    (floor.microseconds, ours.microseconds, ours.microseconds / floor.microseconds)
                )
                rows.setdefault(f"{CALLERS} {kind}: replies a second", []).append(
                    (floor.per_second, ours.per_second, ours.per_second / floor.per_second)
                )
                bare = client_load(*echo, f"echo-{kind}", 1)
                alone = client_load(*server, kind, 1)
                rows.setdefault(f"one of {kind}: median us", []).append(
                    (bare.median * 1e6, alone.median * 1e6, alone.median / bare.median)
                )
        print(f"{'':32} {'echo':>8} {'ours':>8} {'ratio':>6}")
        for name, values in rows.items():
            first, second, ratio = (
                statistics.median(column) for column in zip(*values, strict=True)
            )
            print(f"{name:32} {first:8.0f} {second:8.0f} {ratio:6.2f}")


if __name__ == "__main__":
    main()
