"""What ``headrace tune`` asks the network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from headrace.client.cli.benchmark.inputs import random_inputs
from headrace.client.info import Ports
from headrace.wire.codec import Array

VARIETY: Final = 4
"""Different requests, sent in turns."""


class SeenShapes(NamedTuple):
    """The shapes of requests that a network has had."""

    requests: int
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def parse(cls, text: str) -> SeenShapes:
        """One text of the network's metric REQUEST_SHAPES."""
        told = json.loads(text)
        return cls(told["requests"], {name: tuple(each) for name, each in told["shapes"].items()})


def make_feeds(
    ports: Ports,
    sizes: Mapping[str, tuple[int, ...]],
    files: Mapping[str, Array],
    seen: Sequence[SeenShapes],
) -> list[dict[str, Any]]:
    """The inputs of `VARIETY` requests.

    Args:
        sizes, files: the shapes and values that the user gives. They come first.
        seen: shapes that the network has had, for inputs of open sizes. Those that came more often
            come more often.

    Raises:
        InvalidArgument: as `random_inputs`.
    """
    random = np.random.default_rng(0)
    shapes: list[Mapping[str, tuple[int, ...]]] = [{}]
    weights = [1]
    if seen:
        shapes = [
            {name: shape for name, shape in each.shapes.items() if name in ports.names}
            for each in seen
        ]
        weights = [each.requests for each in seen]
    picked = random.choice(len(shapes), VARIETY, p=np.array(weights) / sum(weights))
    return [random_inputs(ports, {**shapes[at], **sizes}, files, random) for at in picked]
