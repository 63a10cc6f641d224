"""What balancing costs: processor time per tiny request of client and servers, beside the plain
client, in one run and interleaved."""

from __future__ import annotations

import resource
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from headrace.client import Client
from headrace.client.sync import Network
from headrace.testing import networks
from tests.integration.harness import BASIC, Server

CASE = networks.add()
ROUNDS, REQUESTS = 5, 400


def seconds_of(server: Server) -> float:
    """The processor time of a server so far."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def own_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def unary(network: Network) -> None:
    for _ in range(REQUESTS):
        network.infer(CASE.inputs)


def started(network: Network) -> None:
    for _ in range(REQUESTS // 40):
        for request in [network.start_async(CASE.inputs) for _ in range(40)]:
            request.result()


def streamed(network: Network) -> None:
    for _ in network.infer_many([CASE.inputs] * REQUESTS):
        pass


def main() -> None:
    with Server(*BASIC) as one, Server(*BASIC) as other:
        servers = [one, other]
        for server in servers:
            server.load(CASE, "CPU")
        with Client(one.address) as plain, Client([each.address for each in servers]) as balanced:
            clients = {"plain": plain.network("add"), "balanced": balanced.network("add")}
            calls: dict[str, Callable[[Network], None]] = {
                "infer": unary,
                "start_async": started,
                "infer_many": streamed,
            }
            print("microseconds of processor time a request, medians of five")
            for name, call in calls.items():
                spent: dict[str, list[tuple[float, float]]] = {kind: [] for kind in clients}
                for network in clients.values():
                    call(network)
                for _ in range(ROUNDS):
                    for kind, network in clients.items():
                        mine, theirs = own_seconds(), sum(map(seconds_of, servers))
                        call(network)
                        theirs = sum(map(seconds_of, servers)) - theirs
                        spent[kind].append((own_seconds() - mine, theirs))
                medians = {
                    kind: [
                        1e6 * statistics.median(each) / REQUESTS for each in zip(*rows, strict=True)
                    ]
                    for kind, rows in spent.items()
                }
                (p_client, p_server), (b_client, b_server) = medians["plain"], medians["balanced"]
                print(
                    f"{name:12} client {p_client:6.0f} → {b_client:6.0f} "
                    f"({b_client / p_client:.2f})   servers {p_server:6.0f} → {b_server:6.0f} "
                    f"({b_server / max(p_server, 1.0):.2f})"
                )


if __name__ == "__main__":
    main()
