"""What balancing costs: processor time per tiny request of client and servers, beside the plain
client, in one run and interleaved. Two plain clients in turn show what it costs to divide requests
between two servers at all: each then sleeps between its requests."""

from __future__ import annotations

import itertools
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.client import Client
from headrace.client.balancing import Balancing
from headrace.client.sync import Network
from headrace.testing import networks
from tests.integration.harness import BASIC, Server

CASE = networks.add()
ROUNDS, REQUESTS = 7, 400


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


class InTurn:
    """Networks of plain clients, which get one call after another."""

    def __init__(self, *networks: Network) -> None:
        self._networks = itertools.cycle(networks)

    def __getattr__(self, name: str) -> Any:
        return getattr(next(self._networks), name)


CALLS: dict[str, Callable[[Any], None]] = {
    "infer": unary,
    "start_async": started,
    "infer_many": streamed,
}


def microseconds(
    call: Callable[[Any], None], kinds: dict[str, Any], servers: list[Server]
) -> dict[str, tuple[float, float]]:
    """What a request costs the client and the servers, for each kind of client."""
    spent = dict.fromkeys(kinds, (0.0, 0.0))
    for network in kinds.values():
        call(network)
    for _ in range(ROUNDS):
        for kind, network in kinds.items():
            mine, theirs = own_seconds(), sum(map(seconds_of, servers))
            call(network)
            client, server = spent[kind]
            theirs = sum(map(seconds_of, servers)) - theirs
            spent[kind] = client + own_seconds() - mine, server + theirs
    each = 1e6 / ROUNDS / REQUESTS
    return {kind: (client * each, server * each) for kind, (client, server) in spent.items()}


def main() -> None:
    turns = Balancing(policy="round_robin")
    with Server(*BASIC) as one, Server(*BASIC) as other:
        servers = [one, other]
        for server in servers:
            server.load(CASE, "CPU")
        addresses = [each.address for each in servers]
        with (
            Client(one.address) as plain,
            Client(other.address) as second,
            Client(addresses) as balanced,
            Client(addresses, balance=turns) as turning,
        ):
            kinds = {
                "plain": plain.network("add"),
                "two plain in turn": InTurn(plain.network("add"), second.network("add")),
                "least_loaded": balanced.network("add"),
                "round_robin": turning.network("add"),
            }
            print("microseconds of processor time a request")
            for name, call in CALLS.items():
                costs = microseconds(call, kinds, servers)
                client_0, server_0 = costs["plain"]
                for kind, (client, theirs) in costs.items():
                    print(
                        f"{name:12} {kind:18} client {client:5.0f} ({client / client_0:.2f})"
                        f"   servers {theirs:5.0f} ({theirs / max(server_0, 1.0):.2f})"
                    )


if __name__ == "__main__":
    main()
