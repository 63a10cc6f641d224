"""What more front ends gain: calls for the processor time of the server's processes.

The device only sleeps, so all processor time is the server's own. Two servers, one of one process
and one with ``--processes 2``, take the same load in turn, several times. The load runs on the same
cores, so what counts is processor time and not calls a second:

- A server of one process can use one core. Its capacity is 1 / (its processor time for a call).
- A server with two front ends can use two cores. On two cores its capacity is
  2 / (the processor time of all its processes for a call). With more cores, its slowest process
  bounds it: each front end has half of the calls, and the engine has all of them.

Usage: bench_processes.py [SECONDS [ROUNDS]]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

import grpc
import psutil

from headrace.testing import networks
from headrace.v1 import inference_engine_pb2 as pb
from headrace.v1 import inference_engine_pb2_grpc as rpc
from tests.benchmark import servers

CALLERS = 32
CONNECTIONS = 16
CONFIG = """\
[plugins.SLEEPER]
factory = "tests.support.slowed_device:create_plugin"
config = { RUN_SECONDS = "0.001", NUM_STREAMS = "8" }
"""


class Figures(NamedTuple):
    """Processor times in microseconds a call, medians of all rounds.

    Attributes:
        one: of a server of one process.
        two: of two front ends and the engine together.
        engine: of the engine alone, in `two`.
        gain: capacity on two cores, of one process's.
    """

    one: float
    two: float
    engine: float
    gain: float


def processor_seconds(server: psutil.Process) -> dict[int, float]:
    """The processor time of the server and of each of its front ends, by process."""
    processes = [server, *server.children(recursive=True)]
    return {each.pid: sum(each.cpu_times()[:2]) for each in processes}


def measure(seconds: float = 5.0, rounds: int = 5, *, verbose: bool = False) -> Figures:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "config.toml").write_text(CONFIG)
        case = networks.add()
        message = folder / "message"
        inputs: Any = case.inputs
        message.write_bytes(servers.request(case.name, inputs))
        options = ("--config", str(folder / "config.toml"), "--devices", "SLEEPER")
        running = {}
        for count in (1, 2):
            address, process = stack.enter_context(
                servers.headrace(*options, "--processes", str(count))
            )
            with grpc.insecure_channel(address) as channel:
                stub: Any = rpc.InferenceEngineStub(channel)  # type: ignore[no-untyped-call]
                model = pb.ModelSource(data=case.model.SerializeToString())
                stub.LoadNetwork(
                    pb.LoadNetworkRequest(name=case.name, model=model, device="SLEEPER")
                )
            running[count] = address, process
        found: dict[int, list[float]] = {1: [], 2: []}
        engine: list[float] = []
        for _ in range(rounds):
            for count, (address, process) in running.items():
                before = processor_seconds(process)
                load = servers.load(
                    *(address, process, servers.INFER, CALLERS, message, seconds),
                    environment={"LOAD_CONNECTIONS": str(CONNECTIONS)},
                )
                used = {
                    pid: (now - before.get(pid, 0.0)) / load.replies * 1e6
                    for pid, now in processor_seconds(process).items()
                }
                found[count].append(sum(used.values()))
                if count == 2:
                    engine.append(used.pop(process.pid))
                if verbose:
                    shown = ", ".join(f"{each:.0f}" for each in used.values())
                    rate = f"{load.per_second:.0f}/s"
                    print(f"{count}: {found[count][-1]:.0f} µs a call ({shown}), {rate}")
        gains = [2 * one / two for one, two in zip(found[1], found[2], strict=True)]
        return Figures(*map(statistics.median, (found[1], found[2], engine, gains)))


def main(seconds: float = 5.0, rounds: int = 5) -> None:
    found = measure(seconds, rounds, verbose=True)
    print(f"load average: {os.getloadavg()[0]:.1f}")
    print(f"one process: {found.one:.0f} µs a call")
    print(f"two front ends and the engine: {found.two:.0f} µs; the engine: {found.engine:.0f} µs")
    print(f"capacity on two cores, of one process's: {found.gain:.2f}")


if __name__ == "__main__":
    main(*(kind(each) for kind, each in zip((float, int), sys.argv[1:], strict=False)))
