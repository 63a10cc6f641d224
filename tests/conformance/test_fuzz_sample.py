"""A sample of fuzzed networks and requests on each device; `make fuzz-devices` runs many more."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from headrace.testing.backend_cases.cases import BackendCase, collect
from headrace.testing.backend_cases.worker import DeviceUnderTest
from tests.support.patience import PATIENCE_SECONDS as LIMIT_SECONDS
from tools.fuzz.devices import report
from tools.fuzz.devices.campaign import Fuzzer
from tools.fuzz.devices.generator import VariantGenerator
from tools.fuzz.devices.lane import Lane
from tools.fuzz.devices.networks.generator import NetworkGenerator
from tools.fuzz.devices.sweep.further_cases import further_cases
from tools.fuzz.devices.sweep.ranks import RankSweep
from tools.fuzz.devices.worker import run_device, run_device_together, run_reference, run_runtime

pytestmark = pytest.mark.long

SEED = 20
SWEPT = ("Attention", "DFT", "QLinearConv", "STFT", "SequenceInsert", "ai.onnx.ml.Normalizer")
NETWORKS = {"CPU": 15, "OPENVINO": 10, "HETERO:OPENVINO,CPU": 6, "BATCH:CPU(4)": 80}
SAMPLES = {"CPU": 40, "OPENVINO": 20, "TEMPLATE": 20}


@pytest.fixture(scope="module")
def cases() -> list[BackendCase]:
    return collect()


@pytest.fixture(scope="module")
def generator(cases: list[BackendCase]) -> VariantGenerator:
    return VariantGenerator(cases, SEED)


@pytest.fixture(scope="module")
def reference() -> Iterator[Lane]:
    lane = Lane("reference", run_reference, (), LIMIT_SECONDS)
    yield lane
    lane.stop()


@pytest.fixture(scope="module")
def second() -> Iterator[Lane]:
    lane = Lane("CPU", run_device, (DeviceUnderTest("CPU"),), LIMIT_SECONDS)
    yield lane
    lane.stop()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_device_answers_rightly_or_refuses(
    name: str, generator: VariantGenerator, reference: Lane, second: Lane
) -> None:
    device = Lane(name, run_device, (DeviceUnderTest(name),), LIMIT_SECONDS)
    fuzzer = Fuzzer(device, reference, None if name == "CPU" else second, shrink_seconds=0)
    variants = map(generator.variant, range(SAMPLES[name]))
    try:
        campaign = fuzzer.run(variants, time.monotonic() + 100)
    finally:
        device.stop()
    assert not campaign.failures, report.failures(campaign)


def test_no_rank_and_no_length_ends_the_process(cases: list[BackendCase], reference: Lane) -> None:
    """A part of ``--sweep ranks``: one case of some operators whose kernels were not sound."""
    every = [*cases, *further_cases()]
    chosen = [next(each for each in every if each.operator == name) for name in SWEPT]
    sweep = RankSweep(chosen)
    device = Lane("CPU", run_device, (DeviceUnderTest("CPU"),), LIMIT_SECONDS)
    fuzzer = Fuzzer(device, reference, None, shrink_seconds=0)
    variants = map(sweep.variant, range(0, len(sweep), 4))
    try:
        campaign = fuzzer.run(variants, time.monotonic() + 100)
    finally:
        device.stop()
    assert campaign.networks
    assert not campaign.failures, report.failures(campaign)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_device_computes_networks_as_onnx_runtime_does(name: str, reference: Lane) -> None:
    device = Lane(name, run_device_together, (DeviceUnderTest(name),), LIMIT_SECONDS)
    runtime = Lane("ONNX Runtime", run_runtime, (), LIMIT_SECONDS)
    fuzzer = Fuzzer(device, runtime, reference, shrink_seconds=0)
    variants = map(NetworkGenerator(SEED).variant, range(NETWORKS[name]))
    try:
        campaign = fuzzer.run(variants, time.monotonic() + 100)
    finally:
        device.stop()
        runtime.stop()
    assert campaign.requests
    assert not campaign.failures, report.failures(campaign)
