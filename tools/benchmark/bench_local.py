"""Local clients: large tensors over a Unix socket, in messages and in shared memory.

E is the processor time of a bare grpc.aio and uvloop echo of the same bytes and callers over TCP,
in the same run. The server's processor time a request is shown as a multiple of E. Each round asks
all in turns; figures are medians of the rounds. ``bench_local ROWS...`` takes other sizes, in
rows of 4 KiB.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from headrace.client import Client
from tools.benchmark.bench_requests import network
from tools.benchmark.servers import ECHO, HERE, Compared, Load, compared, headrace, load, running

ROUNDS = 5
SECONDS = 1.0
CALLERS = 8
ROWS = (8, 16, 32, 64, 147)  # of 4 KiB: the last one is 600 KB
WAYS = ("message", "shared", "stream")


def ask(target: str, server: psutil.Process, way: str, name: str, rows: int) -> Load:
    """Puts load on a server with the own client, in a process of its own."""
    before = server.cpu_times()
    command = [sys.executable, str(HERE / "local_load.py"), target, way, name, str(rows)]
    out = subprocess.run(
        [*command, str(CALLERS), str(SECONDS)], capture_output=True, text=True, check=True
    ).stdout
    after = server.cpu_times()
    used = after.user + after.system - before.user - before.system
    replies, took = out.split()
    return Load(int(replies), float(took), used)


@contextmanager
def local_server(folder: str) -> Iterator[tuple[str, psutil.Process]]:
    path = f"{folder}/headrace.sock"
    with headrace("--unix-socket", path, "--allow-client-shared-memory") as (_, process):
        yield f"unix:{path}", process


def measure(
    rows: tuple[int, ...], rounds: int = ROUNDS
) -> Iterator[tuple[int, dict[str, Compared]]]:
    """For each size in rows, the ways' microseconds of the server beside the echo's."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        echo = stack.enter_context(running(str(HERE / "echo_server.py")))
        target, server = stack.enter_context(local_server(folder))
        for each in rows:
            name, message = f"net{each}", Path(folder) / "message"
            message.write_bytes(b"x" * each * 4096)
            with Client(target, shared_memory=False) as client:
                client.load_network(network("Identity", (each, 1024)), device="CPU", name=name)
            found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
            for _ in range(rounds):
                floor = load(*echo, ECHO, CALLERS, message, SECONDS).microseconds
                for way, pairs in found.items():
                    pairs.append((floor, ask(target, server, way, name, each).microseconds))
            yield each, {way: compared(pairs) for way, pairs in found.items()}


def main(rows: tuple[int, ...]) -> None:
    print(f"{'bytes':>8} {'E us':>8}" + "".join(f"{way + ' us':>12}{'x E':>7}" for way in WAYS))
    for each, found in measure(rows):
        figures = [f"{way.ours:12.0f}{way.ratio:7.3f}" for way in found.values()]
        print(f"{each * 4096:8} {found[WAYS[0]].floor:8.0f}" + "".join(figures), flush=True)


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or ROWS)
