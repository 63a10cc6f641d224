"""What `infer` of our client costs the server, and how long one caller waits; beside a bare echo.

If there is an environment with KServe's SDK, which ``make benchmark-peers`` makes, the callers of
our client are also held against as many callers of KServe's client, which ask KServe's server.

Each round asks the echo and headrace in turns. The ratios are medians of five rounds.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psutil

from tools.benchmark.bench_peers import peer, python_of
from tools.benchmark.bench_requests import load_tiny
from tools.benchmark.client_load import ECHO
from tools.benchmark.servers import ECHO as ECHO_METHOD
from tools.benchmark.servers import HERE, Compared, compared, headrace, load, running

ROUNDS = 5
SECONDS = 1.0
CALLERS = 32
KSERVE = "kserve"


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


def kserve_load(address: str) -> float:
    """The replies a second of KServe's client."""
    command = [str(python_of(KSERVE)), str(HERE / "peers" / "kserve_load.py"), address]
    out = subprocess.run(
        [*command, str(CALLERS), str(SECONDS)], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    replies, seconds = map(float, out.split())
    return replies / seconds


def measure(rounds: int = ROUNDS) -> dict[str, Compared]:
    """All figures by their names, beside those of the echo."""
    rows: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        echo = stack.enter_context(running(str(HERE / "echo_server.py")))
        server = stack.enter_context(headrace())
        kserve = stack.enter_context(peer(KSERVE)) if python_of(KSERVE).exists() else None
        message = Path(folder) / "message"
        message.write_bytes(ECHO)
        load_tiny(Path(folder), server[0])
        for _ in range(rounds):
            floor = load(*echo, ECHO_METHOD, CALLERS, message, SECONDS)
            theirs = None if kserve is None else kserve_load(kserve[0])
            for kind in ("threads", "tasks"):
                ours = client_load(*server, kind, CALLERS)
                bare, alone = client_load(*echo, f"echo-{kind}", 1), client_load(*server, kind, 1)
                for name, pair in {
                    f"{CALLERS} {kind}: server's us": (floor.microseconds, ours.microseconds),
                    f"{CALLERS} {kind}: replies a second": (floor.per_second, ours.per_second),
                    f"one of {kind}: median us": (bare.median * 1e6, alone.median * 1e6),
                }.items():
                    rows.setdefault(name, []).append(pair)
                if theirs is not None:
                    name = f"{CALLERS} {kind}: ÷ KServe's SDK"
                    rows.setdefault(name, []).append((theirs, ours.per_second))
    return {name: compared(values) for name, values in rows.items()}


def main() -> None:
    print(f"{'':32} {'echo':>8} {'ours':>8} {'ratio':>6}")
    for name, found in measure().items():
        print(f"{name:32} {found.floor:8.0f} {found.ours:8.0f} {found.ratio:6.2f}")


if __name__ == "__main__":
    main()
