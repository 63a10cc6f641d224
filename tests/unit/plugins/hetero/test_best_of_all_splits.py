"""PLACEMENT=MEASURED beside every split there is, on devices whose layers have prices.

Nothing is timed: a request takes what its layers cost, and for each tensor that layers of another
device read, a hop and the copy of its bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import pytest

from headrace.plugins.hetero import contest
from headrace.plugins.hetero.contest import HOP_SECONDS
from headrace.plugins.hetero.plugin import HeteroPlugin
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.virtual import timing
from headrace.testing.case import network_of
from headrace.testing.services import services
from tests.support.priced_device import PricedPlugin, priced

_PER_BYTE = 1e-6
_SLACK = 1.05


@dataclass(frozen=True)
class Tensor:
    """A tensor between layers, each of which has the name of its output."""

    size: int
    readers: tuple[str, ...]


@dataclass(frozen=True)
class Problem:
    """A network, and what its layers cost.

    Attributes:
        text: the network.
        prices: by device and layer.
        tensors: by the layer that makes them.
    """

    text: str
    prices: Mapping[str, Mapping[str, float]]
    tensors: Mapping[str, Tensor]

    @property
    def layers(self) -> list[str]:
        return [*self.tensors]

    def seconds(self, devices: Mapping[str, str]) -> float:
        """What a request takes; infinite if a device does not run its layer."""
        computed = sum(
            self.prices[device].get(layer, math.inf) for layer, device in devices.items()
        )
        copied = sum(
            HOP_SECONDS + _PER_BYTE * 4 * tensor.size
            for layer, tensor in self.tensors.items()
            if any(devices[reader] != devices[layer] for reader in tensor.readers)
        )
        return computed + copied

    def splits(self) -> Iterator[dict[str, str]]:
        runs = [
            [name for name in self.prices if layer in self.prices[name]] for layer in self.layers
        ]
        for devices in itertools.product(*runs):
            yield dict(zip(self.layers, devices, strict=True))


def random_problem(random: Random, names: Sequence[str], most: int) -> Problem:
    """A network of layers that change the sizes of what they read, of which each device runs some,
    the last one all."""
    sizes = {"x": random.choice((1, 64, 1024))}
    readers: dict[str, list[str]] = {}
    lines = []
    for number in range(random.randint(2, most)):
        name = f"l{number}"
        made = [*sizes][-4:]  # a deep network
        operator, arity = random.choice((("Neg", 1), ("ReduceSum", 1), ("Concat", 2)))
        read = [random.choice(made) for _ in range(arity)]
        sizes[name] = 1 if operator == "ReduceSum" else sum(sizes[each] for each in read)
        attributes = " <axis=0>" if operator == "Concat" else ""
        lines.append(f"[{name}] {name} = {operator}{attributes}({', '.join(read)})")
        readers[name] = []
        for each in {*read} - {"x"}:
            readers[each].append(name)
    ends = ", ".join(f"float[{sizes[name]}] {name}" for name, by in readers.items() if not by)
    text = f"g (float[{sizes['x']}] x) => ({ends}) {{ {' '.join(lines)} }}"
    prices = {
        device: {
            layer: random.choice((1e-4, 1e-3, 3e-3, 1e-2))
            for layer in readers
            if device == names[-1] or random.random() < 0.8
        }
        for device in names
    }
    tensors = {name: Tensor(sizes[name], tuple(by)) for name, by in readers.items()}
    return Problem(text, prices, tensors)


def devices_of(network: ExecutableNetwork) -> dict[str, str]:
    return {layer: part.device for part in network.subgraphs() for layer in part.layers}


def measured(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The device of each layer, as a load chooses them."""

    def seconds(network: ExecutableNetwork, *_: object, **__: object) -> float:
        return problem.seconds(devices_of(network))

    monkeypatch.setattr(timing, "seconds", seconds)
    monkeypatch.setattr(contest, "_seconds_per_byte", lambda: _PER_BYTE)
    names = [*problem.prices]
    members = DeviceName.parse(f"HETERO:{','.join(names)}").members
    with services([priced(name) for name in names]) as offered:
        for name in names:
            plugin = offered.devices.plugin(name)
            assert isinstance(plugin, PricedPlugin)
            plugin.prices = problem.prices[name]
        hetero = HeteroPlugin("HETERO", offered, {})
        config = {"PLACEMENT": "MEASURED", "DISABLE_TRANSFORMATIONS": "YES"}
        network = hetero.load_network(
            Load(network_of(problem.text), config, NetworkOptions(members=members))
        )
        found = devices_of(network)
        network.close()
    return found


@pytest.mark.parametrize("seed", range(40))
def test_with_two_devices_it_is_the_best_of_all_but_for_what_may_be_noise(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = random_problem(Random(seed), ("A", "B"), 12)
    best = min(map(problem.seconds, problem.splits()))
    assert problem.seconds(measured(problem, monkeypatch)) <= contest.WORTH * best


@pytest.mark.parametrize("seed", range(20))
def test_with_three_devices_it_takes_at_most_a_twentieth_more_than_the_best_of_all(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = random_problem(Random(seed), ("A", "B", "C"), 8)
    best = min(map(problem.seconds, problem.splits()))
    assert problem.seconds(measured(problem, monkeypatch)) <= _SLACK * best
