"""What a change costs a cluster's keeper. ``python -m tools.benchmark.bench_keeper``

The replicas are tasks that follow the keeper and report at once, without Ray between them.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
import uuid
from collections import Counter

from headrace.cluster import networks
from headrace.cluster.desired import Value
from headrace.cluster.keeper import POLL_SECONDS, Keeper
from headrace.cluster.members import ReplicaAddress, ReplicaStatus

_REQUEST = "x" * 400  # about what the JSON of a load takes


def network(replicas: int) -> Value:
    return networks.loaded(None, "1", _REQUEST, "d" * 64, "s", alone=True, asked=replicas)


class Replica:
    """Has at once what it hears of."""

    def __init__(self, number: int, calls: Counter[str]) -> None:
        self._member = ReplicaAddress(f"r{number}", f"h:{number}", "node")
        self._calls = calls
        self._numbers = itertools.count()
        self._revision = 0
        self._roster = ""

    def _status(self) -> ReplicaStatus:
        return ReplicaStatus(True, self._revision, frozenset(), {}, next(self._numbers))

    async def follow(self, keeper: Keeper) -> None:
        while True:
            self._calls["follow"] += 1
            update = await keeper.follow(self._member, self._status(), self._roster)
            self._revision, self._roster = update.changes.revision, update.roster
            if update.changes.entries:
                self._calls["report"] += 1
                await keeper.report(self._member, self._status())


async def measure(replicas: int, there: int, asked: int, changes: int) -> None:
    """Prints the cost of nothing, and of a change.

    Args:
        there: how many networks the cluster has before.
        asked: the number of replicas that each network asks for; 0 for all.
    """
    keeper = Keeper(f"memory://{uuid.uuid4().hex}")
    calls: Counter[str] = Counter()
    for number in range(there):
        await keeper.commit(f"network/n{number}", network(asked), 0)
    following = [
        asyncio.create_task(Replica(number, calls).follow(keeper)) for number in range(replicas)
    ]
    while len(await keeper.members()) < replicas:
        await asyncio.sleep(0.1)
    await asyncio.sleep(2 * POLL_SECONDS)  # they have met each other

    calls.clear()
    began, used = time.monotonic(), time.process_time()
    await asyncio.sleep(2 * POLL_SECONDS)
    seconds = time.monotonic() - began
    print(
        f"no change: {calls.total() / seconds:.0f} calls and "
        f"{1000 * (time.process_time() - used) / seconds:.1f} ms of processor time a second"
    )
    calls.clear()
    used = time.process_time()
    for number in range(changes):
        key = f"network/new{number}"
        made = await keeper.commit(key, network(asked), 0)
        await keeper.settle(key, made.revision)
    spent = 1000 * (time.process_time() - used) / changes
    print(f"a change: {calls.total() / changes:.0f} calls, {spent:.1f} ms of processor time")
    for each in following:
        each.cancel()
    await asyncio.gather(*following, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--networks", type=int, default=10_000)
    parser.add_argument("--asked", type=int, default=0, help="the networks' number of replicas")
    parser.add_argument("--changes", type=int, default=10)
    given = parser.parse_args()
    asyncio.run(measure(given.replicas, given.networks, given.asked, given.changes))


if __name__ == "__main__":
    main()
