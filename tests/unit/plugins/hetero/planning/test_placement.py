"""The placement of layers that costs least, compared with all placements."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random

import pytest

from headrace.plugins.hetero.planning.minimum_cut import FlowNetwork
from headrace.plugins.hetero.planning.placement import LayerCosts, placed


def random_costs(random: Random, devices: Sequence[str], most: int) -> LayerCosts:
    count = random.randint(1, most)
    seconds = []
    for _ in range(count):
        runs = random.sample(devices, random.randint(1, len(devices)))
        seconds.append({device: random.choice((0.001, 0.01, 0.1)) for device in runs})
    tensors = []
    for maker in range(count - 1):
        later = range(maker + 1, count)
        readers = random.sample(later, min(len(later), random.randint(1, 3)))
        tensors.append((maker, readers, random.choice((0.0001, 0.005, 0.05))))
    return LayerCosts(seconds, tensors)


def least(costs: LayerCosts, devices: Sequence[str]) -> float:
    every = itertools.product(devices, repeat=len(costs.seconds))
    return min(costs.total(each) for each in every)


def start_of(costs: LayerCosts) -> list[str]:
    return [min(each) for each in costs.seconds]


@pytest.mark.parametrize("seed", range(60))
def test_with_two_devices_no_placement_costs_less(seed: int) -> None:
    costs = random_costs(Random(seed), "AB", 12)
    found = placed(costs, start_of(costs))
    assert costs.total(found) <= least(costs, "AB") * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize("seed", range(40))
def test_with_three_devices_it_costs_at_most_a_twentieth_more_than_the_least(seed: int) -> None:
    costs = random_costs(Random(seed), "ABC", 8)
    found = placed(costs, start_of(costs))
    assert costs.total(found) <= costs.total(start_of(costs))
    assert costs.total(found) <= 1.05 * least(costs, "ABC")


def test_a_layer_stays_where_a_copy_costs_more_than_it_saves() -> None:
    seconds = [{"A": 1.0, "B": 9.0}, {"A": 2.0, "B": 1.0}, {"A": 1.0, "B": 9.0}]
    dear = LayerCosts(seconds, [(0, [1], 0.6), (1, [2], 0.6)])
    cheap = LayerCosts(seconds, [(0, [1], 0.4), (1, [2], 0.4)])
    assert placed(dear, "AAA") == ["A", "A", "A"]
    assert placed(cheap, "AAA") == ["A", "B", "A"]


def test_a_tensor_is_copied_once_for_all_its_readers() -> None:
    seconds = [{"A": 1.0}, {"A": 2.0, "B": 1.0}, {"A": 2.0, "B": 1.0}]
    costs = LayerCosts(seconds, [(0, [1, 2], 1.5)])
    assert placed(costs, "AAA") == ["A", "B", "B"]
    assert costs.total("ABB") == 4.5


def test_a_device_gets_no_layer_that_it_does_not_run() -> None:
    costs = LayerCosts([{"A": 1.0}, {"B": 1.0}], [(0, [1], 1e6)])
    assert placed(costs, "AB") == ["A", "B"]


@pytest.mark.parametrize("seed", range(20))
def test_a_minimum_cut_is_as_large_as_the_smallest_of_all(seed: int) -> None:
    random = Random(seed)
    count = 7
    arcs = [
        (start, end, random.randint(0, 9))
        for start in range(count)
        for end in range(count)
        if start != end and random.random() < 0.5
    ]
    flow = FlowNetwork(count)
    for arc in arcs:
        flow.add_arc(*arc)

    def size(side: set[int]) -> int:
        return sum(most for start, end, most in arcs if start in side and end not in side)

    others = range(2, count)
    every = (
        {0, *chosen} for many in range(count) for chosen in itertools.combinations(others, many)
    )
    side = flow.source_side(0, 1)
    assert 0 in side
    assert 1 not in side
    assert size(side) == min(map(size, every))
