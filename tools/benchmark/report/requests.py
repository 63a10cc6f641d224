"""What a request costs the server, in each way of asking, beside a bare echo."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tools.benchmark import bench_client, bench_local
from tools.benchmark.bench_requests import CASES, load_networks, trios
from tools.benchmark.bench_requests import measure as measure_case
from tools.benchmark.report.section import Effort, Goal, Pictures, micros, table
from tools.benchmark.servers import Compared

TITLE = "Requests beside a bare echo"
SHARED_ROWS = 147
"""600 KB, in the rows of 4 KiB of bench_local.py."""
KSERVE = "÷ KServe's SDK"
WAYS = {"shared": "`infer`", "stream": "`infer_many`"}


def measure(effort: Effort) -> Any:
    with tempfile.TemporaryDirectory() as folder, trios(effort.processes) as servers:
        files = load_networks([each.headrace[0] for each in servers], Path(folder))
        cases = {
            case.name: measure_case(
                case, servers, files[case.network], effort.rounds, effort.seconds
            )
            for case in CASES
        }
    ((_, local),) = bench_local.measure((SHARED_ROWS,), effort.rounds)
    return {"cases": cases, "client": bench_client.measure(effort.rounds), "local": local}


def text(found: Any, pictures: Pictures) -> str:
    costs = {name: Compared(*figures) for name, figures in found["cases"].items()}
    client = {name: Compared(*figures) for name, figures in found["client"].items()}
    for kind in ("threads", "tasks"):
        costs[f"the client's `infer`, 32 {kind}"] = client[f"32 {kind}: server's us"]
    for way, name in WAYS.items():
        costs[f"600 KB in shared memory, {name}, 8 tasks"] = Compared(*found["local"][way])
    rows = [
        (name, micros(each.floor), micros(each.ours), f"{each.ratio:.2f} E")
        for name, each in costs.items()
    ]
    alone = []
    for kind in ("thread", "task"):
        each = client[f"one of {kind}s: median us"]
        figures = micros(each.floor), micros(each.ours), f"{each.ratio:.2f}"
        alone.append((f"`infer` from one {kind}", *figures))
    return (
        "Processor time of the server for a request. Requests that share a message are held "
        "against as many unary calls of the echo, and streams with “a message each” against "
        "streams of the echo. A tiny network adds 16 numbers; one with 600 KB copies its input. "
        "The echo has the allocator of headrace, which makes large messages cheaper, unless the "
        "row says that it has glibc's.\n\n"
        f"{table(('request', 'bare echo', 'headrace', 'ratio'), rows)}\n"
        "The median latency of a client that waits for each reply:\n\n"
        f"{table(('caller', 'unary call to the echo', 'headrace', 'ratio'), alone)}"
        f"{beside_kserve(client)}"
    )


def beside_kserve(client: dict[str, Compared]) -> str:
    """Empty if KServe's SDK is not installed."""
    rows = [
        (f"32 {kind}", f"{each.floor:,.0f}", f"{each.ours:,.0f}", f"{each.ratio:.1f}")
        for kind in ("threads", "tasks")
        if (each := client.get(f"32 {kind}: {KSERVE}"))
    ]
    if not rows:
        return ""
    head = ("callers", "KServe's SDK", "headrace", "ratio")
    return (
        "\nTiny requests a second through each project's own client to its own server; KServe's "
        f"client has 32 tasks in both rows:\n\n{table(head, rows)}"
    )


def goals(found: Any) -> list[Goal]:
    cases = {name: Compared(*figures).ratio for name, figures in found["cases"].items()}
    client = {name: Compared(*figures).ratio for name, figures in found["client"].items()}
    shared = min(Compared(*found["local"][way]).ratio for way in WAYS)
    return [
        *(
            Goal(case.name, case.target, cases[case.name], " E")
            for case in CASES
            if case.target is not None and case.name in cases  # kept figures may lack a new one
        ),
        *(
            Goal(f"the client's `infer`, 32 {kind}", 0.2, client[f"32 {kind}: server's us"], " E")
            for kind in ("threads", "tasks")
        ),
        *(
            Goal(
                f"the client's `infer` from one {kind}: median latency ÷ a unary echo's",
                0.4,
                client[f"one of {kind}s: median us"],
            )
            for kind in ("thread", "task")
        ),
        *(
            Goal(
                f"the client's `infer`, 32 {kind}: requests a second {KSERVE}",
                8,
                client[f"32 {kind}: {KSERVE}"],
                at_least=True,
            )
            for kind in ("threads", "tasks")
            if f"32 {kind}: {KSERVE}" in client
        ),
        Goal("600 KB in shared memory, 8 tasks, `infer` or `infer_many`", 0.1, shared, " E"),
    ]
