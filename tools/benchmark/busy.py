"""Streams that run one thing again and again: what a backend reaches alone, without a server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence


def keep_busy(runs: Sequence[Callable[[], object]], seconds: float) -> None:
    """Calls each of them in a thread of its own until the time is over, and prints how often that
    was together, the seconds that it took, and the processor seconds."""
    counts: list[int] = []
    start, used = time.monotonic(), time.process_time()
    end = start + seconds

    def stream(run: Callable[[], object]) -> None:
        count = 0
        while time.monotonic() < end:
            run()
            count += 1
        counts.append(count)

    threads = [threading.Thread(target=stream, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sum(counts), time.monotonic() - start, time.process_time() - used)
