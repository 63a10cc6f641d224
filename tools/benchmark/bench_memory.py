"""More networks than memory: Triton's client asks for networks at random, by Zipf's law.

Usage: bench_memory [NETWORKS MEGABYTES BUDGET SECONDS [FOLDER [CACHE [GROUP]]]]. There are so
many networks of so many megabytes, behind a budget of so many MiB, and 16 callers ask for so many
seconds. The networks lie in FOLDER, where they are made if they are not there yet; without it, in a
temporary folder. CACHE is the server's ``--cache-dir``, which it has none without; the key that
signs its entries lies beside it, so that a later run finds them. GROUP is the folder of a control
group that limits the server's memory, such as ``/sys/fs/cgroup/memory/small``. ``make
benchmark-memory`` makes the client's environment and runs this.

Prints how long cold networks take on an idle server, beside ONNX Runtime alone, when the server has
just started and at the end, when both read their files from the disk; then the 99th percentile of
the ten most wanted networks, asked alone before and after, and among all networks; the requests,
the errors, and how far the memory that the system cannot drop has grown.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import psutil

from headrace.client import Client
from headrace.runtime.system.process_memory import family_bytes
from headrace.testing.case import parse
from tools.benchmark.bench_peers import python_of
from tools.benchmark.servers import HERE, headrace, listening, processor_seconds

FEATURES: Final = 1024
LAYER_MIB: Final = FEATURES * FEATURES * 4 >> 20
CALLERS: Final = 16
WANTED: Final = 10
COLD: Final = 5
MIB: Final = 2**20
_ALONE: Final = """
import sys, time
import numpy, onnxruntime
for line in sys.stdin:
    start, used = time.perf_counter(), time.process_time()
    session = onnxruntime.InferenceSession(line.strip())
    session.run(None, {"x": numpy.ones((1, %d), numpy.float32)})
    print(time.perf_counter() - start, time.process_time() - used, flush=True)
    del session
"""


def model(number: int, megabytes: int) -> onnx.ModelProto:
    """Products with weights of that size, which no other number has."""
    weight = np.random.default_rng(0).standard_normal((FEATURES, FEATURES), np.float32) / 32
    layers = range(max(1, megabytes // LAYER_MIB))
    weights = {f"w{at}": weight * np.float32(1 + (number + at / 100) / 1e4) for at in layers}
    body = " ".join(f"h{at + 1} = MatMul(h{at}, w{at})" for at in layers)
    ports = f"(float[N, {FEATURES}] x) => (float[N, {FEATURES}] y)"
    ends = f"h0 = Identity(x) {body} y = Identity(h{len(layers)})"
    return parse(f"products {ports} {{ {ends} }}", weights)


def make(folder: Path, networks: int, megabytes: int) -> None:
    for number in range(networks):
        path = folder / f"net{number}" / "1" / "model.onnx"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            onnx.save(model(number, megabytes), path)


@contextmanager
def watched(server: psutil.Process) -> Iterator[list[int]]:
    """Collects the server's memory while the context lasts."""
    seen: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            seen.append(family_bytes(process=str(server.pid)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        ended.set()
        watcher.join()


def ask(address: str, networks: int, seconds: float) -> tuple[list[list[float]], list[str]]:
    """The seconds of each network's requests, and the errors."""
    words = (address, networks, FEATURES, CALLERS, seconds)
    command = [str(python_of("clients")), str(HERE / "zipf_load.py"), *map(str, words)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    seen: dict[str, Any] = json.loads(ran.stdout)
    return seen["seconds"], seen["errors"]


def percentile(seconds: list[list[float]], networks: int) -> float:
    """The 99th percentile of the first networks, in milliseconds."""
    return statistics.quantiles([each for of in seconds[:networks] for each in of], n=100)[98] * 1e3


def forget(files: Iterable[Path]) -> None:
    """Has the system drop from memory what nobody maps of the files."""
    for each in files:
        with each.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cold(
    address: str, server: psutil.Process, folder: Path, networks: int, cache: Path | None
) -> None:
    """Compares a request to a cold network with a session that is opened and run, in turns. Both
    read from the disk: the model, or the file of weights that the server maps."""
    x = {"x": np.ones((1, FEATURES), np.float32)}
    taken: list[tuple[float, float, float, float]] = []
    with (
        Client(address) as client,
        listening("-c", _ALONE % FEATURES) as (asked, told),
    ):
        loaded = {each.name for each in client.networks() if each.info.state == "READY"}
        there = [number for number in range(networks) if f"net{number}" not in loaded]
        for number in there[-COLD:]:
            path = folder / f"net{number}" / "1" / "model.onnx"
            kept = [path, *(cache.glob("weights/*.weights") if cache is not None else ())]
            forget(kept)
            print(path, file=asked, flush=True)
            bare, processor = map(float, told.readline().split())
            forget(kept)
            before, start = processor_seconds(server), time.perf_counter()
            client.network(f"net{number}").infer(x)
            took = time.perf_counter() - start
            time.sleep(0.5)  # what is freed and measured afterwards belongs to it
            taken.append((took, bare, processor_seconds(server) - before, processor))
    if taken:
        ours, bare, used, processor = map(statistics.median, zip(*taken, strict=True))
        print(
            f"cold: {ours:.3f} s, ONNX Runtime alone {bare:.3f} s, ratio {ours / bare:.2f}",
            end="; ",
        )
        print(f"of a processor {used:.3f} and {processor:.3f} s, ratio {used / processor:.2f}")


def main() -> None:
    given = [int(each) for each in sys.argv[1:5]] or [20, 20, 400, 60]
    networks, megabytes, budget, seconds = given
    place = nullcontext(sys.argv[5]) if len(sys.argv) > 5 else tempfile.TemporaryDirectory()
    with place as name:
        folder = Path(name)
        make(folder, networks, megabytes)
        cache: tuple[str, ...] = ()
        kept = None
        if len(sys.argv) > 6:
            kept = Path(sys.argv[6])
            room = 3 * networks * megabytes * MIB  # a file has the weights twice
            cache = ("--cache-dir", sys.argv[6], "--mac-key-file", f"{sys.argv[6]}.key")
            cache = (*cache, "--max-cache-bytes", str(room))
        options = ("--devices", "CPU", "--model-repository", str(folder), *cache)
        with headrace(*options, "--memory-budget", f"CPU={budget}MiB") as (address, server):
            if len(sys.argv) > 7:
                Path(sys.argv[7], "cgroup.procs").write_text(str(server.pid))
            before = family_bytes(process=str(server.pid))
            cold(address, server, folder, networks, kept)
            ask(address, WANTED, seconds / 10)  # loads them
            alone = percentile(ask(address, WANTED, seconds / 10)[0], WANTED)
            with watched(server) as seen:
                taken, errors = ask(address, networks, seconds)
            again = percentile(ask(address, WANTED, seconds / 10)[0], WANTED)
            cold(address, server, folder, networks, kept)
    among = percentile(taken, WANTED)
    print(f"p99 of the {WANTED} most wanted: alone {alone:.0f} and {again:.0f} ms", end=", ")
    print(f"among all {among:.0f} ms, ratio {2 * among / (alone + again):.2f}")
    print(f"requests {sum(map(len, taken))}, errors {len(errors)} {errors[:3]}")
    grown = max(seen) - before
    print(f"memory: {grown / MIB:.0f} MiB of {budget}, {grown / MIB / budget - 1:+.1%}")


if __name__ == "__main__":
    main()
