"""Networks of the zoo, loaded on several devices of one process and run in turns.

All take their turns in the same minute, and are compared turn by turn, so that what else the
machine does falls on all of them alike. A device that is compared with others loads the network a
second time: what this load takes beside the first shows the noise.
"""

from __future__ import annotations

import itertools
import math
import random
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import onnx_ir as ir

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.network import Network
from headrace.runtime.network.values import Value
from headrace.runtime.transform.options import LoadRequest
from headrace.runtime.virtual import timing
from tools.zoo.hints import hint_for
from tools.zoo.inputs import Array, generate, ports

ZOO: Final = Path(".cache/zoo")
_TURN_SECONDS: Final = 0.004
_TURN_REQUESTS: Final = 3
_FEWEST_ROUNDS: Final = 5
_SPENT_SECONDS: Final = 15.0


def inputs_of(name: str) -> Mapping[str, Array]:
    """The inputs of the first request that `make zoo` asks the network."""
    return generate(ports(ZOO / name), hint_for(name), 0)[0].arrays


def read(name: str, inputs: Mapping[str, Array] | None = None) -> Network:
    """A network of the zoo. With inputs, it takes only their shapes."""
    path = ZOO / name
    network = Network.from_file(path, path.parent)
    if inputs is not None:
        network = network.clone()
        for value in network.model.graph.inputs:
            given = inputs.get(value.name or "")
            value.shape = value.shape if given is None else ir.Shape(given.shape)
    return network


def load(
    core: Core,
    device: str,
    config: Mapping[str, str],
    make: Callable[[], Network],
    name: str = "",
) -> ExecutableNetwork:
    """The network on the device. Raises as `Core.load_network`.

    Args:
        name: for `unload`; the device's if it is empty.
    """
    request = LoadRequest(_name_on(name or device), DeviceName.parse(device), config)
    entry = core.load_network(request, make).result()
    assert entry.executable is not None
    return entry.executable


def again(device: str) -> str:
    """The name of the device's second load."""
    return f"{device}-again"


def unload(core: Core, device: str) -> None:
    core.unload_network(_name_on(device)).result()


def _name_on(device: str) -> str:
    return re.sub(r"[:,]", "-", device)


def turn(network: ExecutableNetwork, inputs: Mapping[str, Value], count: int) -> float:
    """The seconds of a request if `count` are sent at once, the best of one turn: whatever else the
    machine does only adds to it. The network that ran before has left the processor's caches to the
    first requests."""
    best, spent, sent = math.inf, 0.0, 0
    while spent < _TURN_SECONDS or sent < _TURN_REQUESTS:
        took = timing.seconds(network, [inputs] * count, CancelToken(), inline=count == 1)
        best, spent, sent = min(best, took), spent + took, sent + count
    return best / count


def shown(compared: timing.SpeedRatio) -> str:
    return f"{compared.ratio:.3f} ({compared.low:.3f} to {compared.high:.3f})"


class Turns:
    """What the turns of some networks took, in seconds a request. Each round has another order, so
    that no network always runs after the same other one. Turns are short, so that there are
    hundreds of rounds for a network of a few milliseconds, and the median is exact.

    Args:
        networks: by name, each with the number of requests that are sent at once.
        fewest: rounds, also if they take longer than `spent_seconds`.
    """

    def __init__(
        self,
        networks: Mapping[str, tuple[ExecutableNetwork, int]],
        inputs: Mapping[str, Value],
        *,
        spent_seconds: float = _SPENT_SECONDS,
        fewest: int = _FEWEST_ROUNDS,
    ) -> None:
        runs = {
            name: partial(turn, each, inputs, count) for name, (each, count) in networks.items()
        }
        self._took: dict[str, list[float]] = {name: [] for name in runs}
        until, dice, order = time.monotonic() + spent_seconds, random.Random(0), [*runs]
        for number in itertools.count():
            if number >= fewest and time.monotonic() > until:
                break
            dice.shuffle(order)
            for name in order:
                self._took[name].append(runs[name]())

    def seconds(self, name: str) -> float:
        return statistics.median(self._took[name])

    def fastest(self, names: Sequence[str]) -> str:
        return min(names, key=self.seconds)

    def compare(self, name: str, other: str) -> timing.SpeedRatio:
        return timing.compare(self._took[name], self._took[other])
