"""What batches gain for a transformer over the wire, and what they cost one caller alone.

All figures of a round are taken in turns within the same minute; ratios are of one round, and their
medians are printed. In-process is ONNX Runtime alone: requests apart on as many one-thread streams
as processors, batches of 8 on the same streams, and on all processors at once. What batches gain
there is all that they can gain here. Processor time tells more than throughput where others use the
machine too; that of the client is not in it.

The shorter the text, the more of a run is reading the weights, which a batch does once.

Usage: bench_batch [ROUNDS [TOKENS …]]
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime
import psutil

from headrace.client import Client, Network
from headrace.client.aio import Client as AioClient
from headrace.client.cli.benchmark.load import BenchmarkRun
from headrace.client.outputs import Outputs
from headrace.client.plans.infer_plans import infer_packed
from headrace.client.plans.plan import Budget
from headrace.runtime.system.processors import usable_processors
from tools.benchmark.minilm import WORDS, minilm
from tools.benchmark.servers import headrace, processor_seconds

ROUNDS = 7
SECONDS = 1.0
CALLERS = 32
SIZE = 8
TOKENS = (16, 64)


class Figures(NamedTuple):
    """One load: answers a second, p50 in milliseconds, processor microseconds for each answer."""

    per_second: float
    p50: float
    processor: float


def text(rows: int, tokens: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, WORDS, (rows, tokens))


class InProcess:
    """One session, and as many streams as together keep all processors busy."""

    def __init__(self, model: Path, threads: int, rows: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
        self._streams = usable_processors() // threads
        self._rows = rows

    def load(self, tokens: int) -> Figures:
        feed = {"tokens": text(self._rows, tokens)}
        self._session.run(None, feed)
        start, used = time.monotonic(), time.process_time()

        def stream(_: int) -> int:
            rows = 0
            while time.monotonic() < start + SECONDS:
                self._session.run(None, feed)
                rows += self._rows
            return rows

        with ThreadPoolExecutor(self._streams) as threads:
            rows = sum(threads.map(stream, range(self._streams)))
        took = time.monotonic() - start
        return Figures(rows / took, 0.0, 1e6 * (time.process_time() - used) / rows)


def closed_loops(
    server: psutil.Process,
    address: str,
    network: Network,
    inputs: dict[str, np.ndarray],
    callers: int,
    seconds: float = SECONDS,
) -> Figures:
    """A load on the server and its workers."""
    data = network.encoder.encode_bytes(inputs)
    servers = (server, *server.children(recursive=True))

    async def ask(client: AioClient) -> Outputs:
        return await client.run(infer_packed(data, Budget(60.0)))

    async def main() -> Figures:
        async with AioClient(address) as client:
            run = BenchmarkRun(lambda _: ask(client), 0.0, seconds)
            before = processor_seconds(*servers)
            results = await run.closed(callers)
            used = processor_seconds(*servers) - before
        p50 = results.spreads()["latency"].percentiles[50]
        # Of all answers, also those that came after the time: the server has worked for them too.
        took = max(answer.end for answer in results.answers)
        count = len(results.answers)
        return Figures(count / took, 1e3 * p50, 1e6 * used / count)

    return asyncio.run(main())


def networks(client: Client, model: Path) -> dict[str, Network]:
    apart = {"PERFORMANCE_HINT": "THROUGHPUT", "ALLOW_AUTO_BATCHING": "NO"}
    return {
        "apart": client.load_network(model, device="CPU", name="apart", config=apart),
        "batched": client.load_network(model, device=f"BATCH:CPU({SIZE})", name="batched"),
    }


def main(rounds: int, lengths: Sequence[int]) -> None:
    with tempfile.TemporaryDirectory() as folder, headrace() as (address, server):
        model = Path(folder) / "minilm.onnx"
        model.write_bytes(minilm().SerializeToString())
        alone = {
            "alone, apart": InProcess(model, 1, 1),
            "alone, streams": InProcess(model, 1, SIZE),
            "alone, at once": InProcess(model, usable_processors(), SIZE),
        }
        with Client(address) as client:
            loaded = networks(client, model)
            for tokens in lengths:
                found: dict[str, list[Figures]] = defaultdict(list)
                for _ in range(rounds):
                    for name, each in alone.items():
                        found[name].append(each.load(tokens))
                    for name, network in loaded.items():
                        for callers in (CALLERS, 1):
                            inputs = {"tokens": text(1, tokens)}
                            figures = closed_loops(server, address, network, inputs, callers)
                            found[f"{name}, {callers}"].append(figures)
                report(found, tokens)


def report(found: dict[str, list[Figures]], tokens: int) -> None:
    def median(name: str, figure: str) -> float:
        return float(statistics.median(getattr(each, figure) for each in found[name]))

    def ratio(name: str, other: str, figure: str) -> float:
        pairs = zip(found[name], found[other], strict=True)
        return float(statistics.median(getattr(a, figure) / getattr(b, figure) for a, b in pairs))

    def row(what: str, name: str) -> str:
        milliseconds = median(name, "processor") / 1e3
        return f"{what:44} {median(name, 'per_second'):8.1f} {milliseconds:8.2f}"

    def gain(name: str, other: str) -> str:
        """The ratios of throughput and of processor time."""
        faster, cheaper = ratio(name, other, "per_second"), ratio(other, name, "processor")
        return f"{faster:6.2f} {cheaper:6.2f}"

    title = f"MiniLM, {tokens} tokens, {CALLERS} callers"
    many, apart = f"batched, {CALLERS}", f"apart, {CALLERS}"
    print(f"\n{title:44} {'1/s':>8} {'CPU ms':>8} {'1/s':>6} {'CPU':>6}  times that of")
    print(row("in-process, requests apart", "alone, apart"))
    for what, name in (("streams", "alone, streams"), ("all processors", "alone, at once")):
        against = gain(name, "alone, apart")
        print(f"{row(f'in-process, batches of {SIZE}, {what}', name)} {against}  apart, in-process")
    print(row("requests apart", apart))
    print(f"{row('batched', many)} {gain(many, apart)}  apart; target 1.10")
    best = max(("alone, streams", "alone, at once"), key=lambda each: median(each, "per_second"))
    print(f"{'':62} {gain(many, best)}  the better in-process; target 0.90")
    print(f"\n{'1 caller':44} {'p50 ms':>8}")
    print(f"{'requests apart':44} {median('apart, 1', 'p50'):8.2f}")
    slower = ratio("batched, 1", "apart, 1", "p50")
    print(f"{'batched':44} {median('batched, 1', 'p50'):8.2f} {'':9}{slower:6.2f} <= 1.05")


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    main(given[0] if given else ROUNDS, given[1:] or TOKENS)
