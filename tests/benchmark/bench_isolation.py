"""What ISOLATION=PROCESS costs a request: CPU in a process of its own beside CPU in the server's.

Both are in one server, and are asked in turns within the same minute; figures are medians, ratios
medians of the rounds' ratios. Processor time is the server's and the worker's together; the client
takes time of the same processors and is not in it.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import psutil

from headrace.client import Client, Network
from headrace.client.aio import Client as AioClient
from headrace.client.cli.benchmark_load import Load
from headrace.client.network_plans import infer_encoded
from headrace.client.outputs import Outputs
from tests.benchmark.bench_requests import SHAPES, network
from tests.benchmark.servers import headrace

ROUNDS = 5
SECONDS = 1.0
CONFIG = """
[plugins.APART]
device = "CPU"
[plugins.APART.config]
ISOLATION = "PROCESS"
"""
CASES = (("tiny", "Add", (1, 32)), ("large", "Identity", (1, 8)))
NAMES = {"tiny": "tiny requests", "large": "600 KB tensors"}


class Figures(NamedTuple):
    """Of one load: answers a second, p50 in milliseconds, processor microseconds an answer."""

    per_second: float
    p50: float
    processor: float


def used_seconds(server: psutil.Process) -> float:
    """Processor time of the server and its workers."""
    times = [each.cpu_times() for each in (server, *server.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def load(server: psutil.Process, address: str, loaded: Network, callers: int) -> Figures:
    data = loaded.encoder.encode_bytes({"x": np.ones(SHAPES[loaded.name.split("-")[0]], "f4")})

    async def ask(client: AioClient) -> Outputs:
        return await client.run(infer_encoded(data, 60.0))

    async def main() -> Figures:
        async with AioClient(address) as client:
            run = Load(lambda _: ask(client), 0.0, SECONDS)
            before = used_seconds(server)
            results = await run.closed(callers)
            used = used_seconds(server) - before
        p50 = results.spreads()["latency"].percentiles[50]
        took = max(answer.end for answer in results.answers)
        count = len(results.answers)
        return Figures(count / took, 1e3 * p50, 1e6 * used / count)

    return asyncio.run(main())


def compare(
    server: psutil.Process, address: str, networks: tuple[Network, Network], callers: int
) -> list[float]:
    """Each figure of the server's process, of one apart, and the ratio."""
    rounds = []
    for _ in range(ROUNDS):
        within, apart = (load(server, address, each, callers) for each in networks)
        rounds.append([(a, b, b / a) for a, b in zip(within, apart, strict=True)])
    return [
        statistics.median(each)
        for figure in zip(*rounds, strict=True)
        for each in zip(*figure, strict=True)
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "headrace.toml"
        config.write_text(CONFIG)
        options = ("--config", str(config), "--devices", "APART,CPU")
        with headrace(*options) as (address, server), Client(address) as client:
            print(f"{'':26} {'per second':>22} {'p50 ms':>20} {'processor us':>22}")
            columns = " ".join(f"{word:>7}" for word in 3 * ("within", "apart", "ratio"))
            print(f"{'':26} {columns}")
            for name, operator, many in CASES:
                model = network(operator, SHAPES[name])
                within, apart = (
                    client.load_network(model, device=device, name=f"{name}-{device}")
                    for device in ("CPU", "APART")
                )
                for callers in many:
                    found = compare(server, address, (within, apart), callers)
                    plural = "s" if callers > 1 else ""
                    row = " ".join(
                        f"{value:7.0f}" if value >= 100 else f"{value:7.2f}" for value in found
                    )
                    print(f"{f'{NAMES[name]}, {callers} caller{plural}':26} {row}")


if __name__ == "__main__":
    main()
