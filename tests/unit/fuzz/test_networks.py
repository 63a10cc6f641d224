"""The networks that `make fuzz-networks` makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.testing.backend_cases.worker import DeviceUnderTest
from tools.fuzz.devices.answer import How
from tools.fuzz.devices.campaign import Fuzzer
from tools.fuzz.devices.judge import Verdict
from tools.fuzz.devices.lane import Lane
from tools.fuzz.devices.networks import guarded
from tools.fuzz.devices.networks.generator import NetworkGenerator
from tools.fuzz.devices.variant import Variant, input_names
from tools.fuzz.devices.worker import run_device_together, run_runtime, runtime_answer

SEED = 5
UNSOUND = "tests.support.unsound_device:create_plugin"


@pytest.fixture(scope="module")
def variants() -> list[Variant]:
    generator = NetworkGenerator(SEED)
    return [generator.variant(number) for number in range(40)]


def test_the_same_seed_and_number_make_the_same_network_and_requests() -> None:
    one, other = (NetworkGenerator(SEED).variant(3) for _ in range(2))
    assert one.model == other.model
    for first, second in zip(one.feeds, other.feeds, strict=True):
        assert all(np.array_equal(first[name], second[name], equal_nan=True) for name in first)
    assert NetworkGenerator(SEED + 1).variant(3).model != one.model


def test_most_networks_have_several_layers(variants: list[Variant]) -> None:
    counts = [len(each.proto.graph.node) for each in variants]
    assert max(counts) <= 8
    assert np.mean(counts) > 3


def test_onnx_runtime_answers_the_first_request_of_each(variants: list[Variant]) -> None:
    for each in variants:
        answer = runtime_answer(each)
        assert answer.how is How.ANSWERED, answer.text
        assert answer.replies[0].how is How.ANSWERED, answer.replies[0].text


def test_requests_have_several_sizes_and_return_to_them(variants: list[Variant]) -> None:
    several = 0
    for each in variants:
        shapes = [
            tuple(feed[name].shape for name in input_names(each.proto)) for feed in each.feeds
        ]
        assert shapes.count(shapes[0]) > 1
        several += len(set(shapes)) > 2
    assert several > len(variants) / 2


def test_a_device_that_fails_after_a_load_is_found() -> None:
    device = Lane(
        "UNSOUND", run_device_together, (DeviceUnderTest("UNSOUND", factory=UNSOUND),), 60.0
    )
    runtime = Lane("ONNX Runtime", run_runtime, (), 60.0)
    fuzzer = Fuzzer(device, runtime, None, shrink_seconds=0)
    try:
        found = [
            each.verdict
            for number in range(3)
            for each in fuzzer.verdicts(NetworkGenerator(SEED).variant(number))
        ]
    finally:
        device.stop()
        runtime.stop()
    assert Verdict.INTERNAL in found


def test_a_network_whose_making_ends_the_process_or_does_not_end_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Process:
        """Ends at each second number, and hangs at 4."""

        def __init__(self, *_: object) -> None:
            self.connection = self
            self._asked = 0

        def send(self, number: int) -> None:
            self._asked = number

        def poll(self, seconds: float) -> bool:
            return self._asked != 4

        def recv(self) -> int:
            if self._asked % 2:
                raise EOFError
            return self._asked

        def kill(self) -> None:
            pass

    monkeypatch.setattr(guarded, "GuardedProcess", Process)
    made: list[Any] = [*guarded.networks(SEED, range(7))]
    assert made == [0, 2, 6]


def test_a_process_of_its_own_makes_the_same_networks(variants: list[Variant]) -> None:
    made = guarded.networks(SEED, (3, 7))
    assert [each.model for each in made] == [variants[3].model, variants[7].model]
