"""The price of TLS: server processor time per request, beside plain text in the same minute.

Each round asks three processes of each kind, in turns, and compares their means; medians of five.
"""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.support.certificates import Authority
from tools.benchmark.bench_requests import CASES, load_networks
from tools.benchmark.servers import headrace, load

ROUNDS = 5
PROCESSES = 3
SECONDS = 0.7
KINDS = ("plain text", "TLS", "mutual TLS")


def main() -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, authority = Path(name), Authority()
        ca = authority.write(folder)
        cert, key = authority.server().write(folder, "server")
        own_cert, own_key = authority.client("benchmark").write(folder, "client")
        secure = ("--tls-cert", str(cert), "--tls-key", str(key))
        options = ((), secure, (*secure, "--tls-client-ca", str(ca)))
        trust = {"LOAD_TLS_CA": str(ca)}
        identity = {"LOAD_TLS_CERT": str(own_cert), "LOAD_TLS_KEY": str(own_key)}
        environments: tuple[dict[str, str], ...] = ({}, trust, trust | identity)
        files: tuple[dict[str, Any], ...] = (
            {},
            {"tls_ca": ca},
            {"tls_ca": ca, "tls_cert": own_cert, "tls_key": own_key},
        )
        servers = [
            [stack.enter_context(headrace(*each)) for each in options] for _ in range(PROCESSES)
        ]
        for kind, credentials in enumerate(files):
            addresses = [row[kind][0] for row in servers]
            messages = load_networks(addresses, folder, **credentials)
        print(f"{'case':36}" + "".join(f"{kind + ' us':>15}" for kind in KINDS) + "   ratios")
        for case in (CASES[0], CASES[1], CASES[6]):
            rounds = []
            for _ in range(ROUNDS):
                costs_of = [
                    [
                        load(
                            *servers[process][kind],
                            case.mode,
                            case.callers,
                            messages[case.network],
                            SECONDS,
                            environment=environments[kind],
                        ).microseconds
                        for kind in range(len(KINDS))
                    ]
                    for process in range(PROCESSES)
                ]
                rounds.append([statistics.mean(column) for column in zip(*costs_of, strict=True)])
            costs = [statistics.median(column) for column in zip(*rounds, strict=True)]
            ratios = [
                statistics.median(each[kind] / each[0] for each in rounds)
                for kind in range(1, len(KINDS))
            ]
            print(
                f"{case.name:36}"
                + "".join(f"{cost:15.0f}" for cost in costs)
                + "".join(f"{ratio:9.2f}" for ratio in ratios)
            )


if __name__ == "__main__":
    main()
