"""Time and number of parts when graphs of up to 100,000 layers are cut over devices."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from headrace.plugins.hetero.planning.partition import partition

Edges: TypeAlias = list[tuple[int, int]]
LIMITS_SECONDS = {20_000: 2.0, 100_000: 15.0}


class Shape(NamedTuple):
    """How a graph is wired and its layers placed."""

    name: str
    edges: Callable[[int, random.Random], Edges]
    devices: str  # one letter a device, as often as it is to be drawn


def chain(count: int, chance: random.Random) -> Edges:
    return [(node, node + 1) for node in range(count - 1)]


def residual(count: int, chance: random.Random) -> Edges:
    """A chain with a way around every five layers."""
    return chain(count, chance) + [(node, node + 5) for node in range(0, count - 5, 5)]


def near(count: int, chance: random.Random) -> Edges:
    """Each layer reads two of the twenty before it."""
    return [(chance.randrange(max(0, b - 20), b), b) for b in range(1, count) for _ in range(2)]


def far(count: int, chance: random.Random) -> Edges:
    """Each layer reads two of all before it: the hardest known."""
    return [(chance.randrange(b), b) for b in range(1, count) for _ in range(2)]


SHAPES = (
    Shape("chain, 2 devices", chain, "AB"),
    Shape("residual, 1 in 4 apart", residual, "AAAB"),
    Shape("near, 3 devices", near, "ABC"),
    Shape("near, 8 devices", near, "ABCDEFGH"),
    Shape("far, 2 devices", far, "AB"),
    Shape("far, 1 in 20 apart", far, "A" * 19 + "B"),
)


def main() -> int:
    print("HETERO's partition: seconds and parts")
    late = False
    for count, limit in LIMITS_SECONDS.items():
        for shape in SHAPES:
            chance = random.Random(1)
            edges = shape.edges(count, chance)
            affinities = [chance.choice(shape.devices) for _ in range(count)]
            start = time.perf_counter()
            parts = partition(edges, affinities)
            seconds = time.perf_counter() - start
            late |= seconds > limit
            print(
                f"  {count:>7,} layers, {shape.name:<24} {seconds:6.2f} s  (< {limit:.0f})"
                f"  {len(parts):>6,} parts"
            )
    return int(late)


if __name__ == "__main__":
    sys.exit(main())
