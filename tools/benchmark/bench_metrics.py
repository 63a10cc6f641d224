"""What the metrics of one request cost: prints the median of five runs in microseconds.

Run by `make benchmark`; the budget is 4 µs a request. Nothing here fails on a slow machine.
"""

from __future__ import annotations

import statistics
import timeit

from headrace.runtime.execution.job import Outcome
from headrace.runtime.metrics.counters import Counters

BUDGET_MICROSECONDS = 4.0
REQUESTS = 100_000


def microseconds_per_request() -> float:
    """All that is counted for one unary request on one device, single-threaded."""
    counters = Counters()
    device = counters.device("CPU")
    network = counters.network("network", "CPU")
    ended = counters.grpc("Infer")

    def request() -> None:
        network.accept()
        device.accept()
        device.observe(Outcome.COMPLETED, 0.00021, 0.0033)
        network.observe(Outcome.COMPLETED, 0.0036, 1)
        ended["OK"] = ended.get("OK", 0) + 1

    runs = timeit.repeat(request, number=REQUESTS, repeat=5)
    return statistics.median(runs) / REQUESTS * 1e6


def main() -> None:
    measured = microseconds_per_request()
    verdict = "within" if measured <= BUDGET_MICROSECONDS else "OVER"
    print(f"metrics of one request: {measured:.2f} µs ({verdict} {BUDGET_MICROSECONDS:.0f} µs)")


if __name__ == "__main__":
    main()
