"""Where the server spends its time: samples by py-spy of tiny requests, of 600 KB, and of streams.

Prints the functions with the largest shares of the event loop's thread, and leaves a flame graph of
all threads for each case in .cache/profile. `Runner.run` stands for the event loop itself, with
what gRPC does on it. ``make profile`` runs this. Only root, or the owner of a process whose system
allows that (ptrace_scope), may sample it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

import psutil

from tools.benchmark.bench_requests import CASES, Case, load_networks
from tools.benchmark.servers import headrace, load

SECONDS = 8
WARM_UP_SECONDS = 2.0
SAMPLES_A_SECOND = 200
ROWS = 20
PROFILED = (0, 2, 4, 6)  # of CASES


def record(server: psutil.Process, form: str, path: Path) -> None:
    """Samples the process while it is under load."""
    spy = [str(Path(sys.executable).with_name("py-spy")), "record", "--pid", str(server.pid)]
    options = ["--threads", "--duration", str(SECONDS), "--rate", str(SAMPLES_A_SECOND)]
    command = [*spy, *options, "--format", form, "--output", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not path.exists():
        raise RuntimeError(f"py-spy: {done.stderr.strip()}")


def own_shares(path: Path) -> list[tuple[str, float, float]]:
    """The functions of a recording, the largest share of its own first: name, own share, and its
    share with all that it calls."""
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    for line in path.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        if "MainThread" not in stack.partition(";")[0]:
            continue  # on a busy machine, threads that wait seem to work
        frames = [frame.rpartition(":")[0] or frame for frame in stack.split(";")]
        own[frames[-1]] += int(count)
        for frame in set(frames):
            whole[frame] += int(count)
    total = own.total() or 1
    return [(name, n / total, whole[name] / total) for name, n in own.most_common(ROWS)]


def profile(address: str, server: psutil.Process, case: Case, message: Path, folder: Path) -> None:
    load(address, server, case.mode, case.callers, message, WARM_UP_SECONDS)
    name = case.name.replace(",", "").replace(" ", "-")
    raw, picture = folder / f"{name}.txt", folder / f"{name}.svg"
    seconds = 2 * SECONDS + 4.0
    arguments = (address, server, case.mode, case.callers, message, seconds)
    caller = threading.Thread(target=load, args=arguments)
    caller.start()
    try:
        record(server, "raw", raw)
        record(server, "flamegraph", picture)
    finally:
        caller.join()
    print(f"\n{case.name}: {picture}\n{'own':>6}{'whole':>7}")
    for function, own, whole in own_shares(raw):
        print(f"{own:6.1%}{whole:7.1%}  {function}")


def main() -> None:
    results = Path(".cache/profile")
    results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, headrace() as (address, server):
        messages = load_networks([address], Path(folder))
        for index in PROFILED:
            case = CASES[index]
            profile(address, server, case, messages[case.network], results)


if __name__ == "__main__":
    main()
