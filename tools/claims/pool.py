"""Tries layers in several processes, each of which may end or hang."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

from headrace.testing.guarded import GuardedProcess
from tools.claims.layer import Layer
from tools.claims.trial import Trial, Verdict, run_worker

_SECONDS = 120.0
_ANSWERS = 2
_MOST_BATCHES = 20
"""Batches that a process tries. After thousands of compiles it cannot map memory for code any more,
which would look as if OpenVINO took no layer."""


def try_all(
    batches: Iterator[list[Layer]],
    device: str,
    jobs: int,
    report: Callable[[Layer, Trial], None],
) -> None:
    """Tries each layer and reports it, from one thread at a time. Layers of a batch share a
    network, and run alone if the process ends."""
    lock = threading.Lock()
    alone: list[list[Layer]] = []

    def work() -> None:
        process: GuardedProcess | None = None
        asked = 0
        try:
            while True:
                with lock:
                    batch = alone.pop() if alone else next(batches, None)
                if batch is None:
                    return
                if process is not None and asked == _MOST_BATCHES:
                    process.end()
                    process = None
                if process is None:
                    process, asked = GuardedProcess(run_worker, (device,)), 0
                asked += 1
                trials, alive = _ask(process, batch)
                if not alive:
                    process.kill()
                    process = None
                with lock:
                    if not alive and len(batch) > 1:
                        alone.extend([layer] for layer in batch)
                    else:
                        for layer, trial in zip(batch, trials, strict=True):
                            report(layer, trial)
        finally:
            if process is not None:
                process.end()

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _ask(process: GuardedProcess, batch: list[Layer]) -> tuple[list[Trial], bool]:
    """The trials of the layers, and whether the process still answers."""
    known: list[list[Trial]] = []
    with suppress(EOFError, OSError):
        process.connection.send(batch)
        while len(known) < _ANSWERS and process.connection.poll(_SECONDS):
            known.append(process.connection.recv())
    if known:
        return known[-1], len(known) == _ANSWERS
    return [Trial(Verdict.INVALID, detail=process.last_words()) for _ in batch], False
