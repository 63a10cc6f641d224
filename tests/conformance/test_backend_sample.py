"""A sample of ONNX's backend cases does on each device what is expected; `make conformance` runs
all of them."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.testing.backend_cases.cases import BackendCase, collect
from headrace.testing.backend_cases.expectation import Expectation, path_of
from headrace.testing.backend_cases.pool import run_cases
from headrace.testing.backend_cases.worker import DeviceUnderTest, capabilities, run_case

EXPECTATIONS = Path(__file__).parent / "backend_cases"
EVERY = 100
MOST_REFUSED = 10
DEVICES = ("CPU", "OPENVINO", "TEMPLATE")


@pytest.fixture(scope="module")
def cases() -> list[BackendCase]:
    return [case for case in collect() if case.kind != "real"]  # which take seconds


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def core(device: str) -> Iterator[Core]:
    made = Core(DeviceUnderTest(device).sources(), blob_key=b"test")
    yield made
    made.stop()


class UnexpectedPass(UserWarning):
    """A backend, or a processor, is better than the one that was asked before."""


pytestmark = pytest.mark.filterwarnings(
    "default::tests.conformance.test_backend_sample.UnexpectedPass"
)


@pytest.fixture(scope="module")
def expected(core: Core, device: str) -> Expectation:
    known = Expectation.read(path_of(device, EXPECTATIONS))
    return known.on(capabilities(core, DeviceName.parse(device)))


def assert_as_expected(
    core: Core, device: str, expected: Expectation, sample: list[BackendCase]
) -> None:
    results = [run_case(core, DeviceName.parse(device), {}, case) for case in sample]
    assert results
    for line in expected.unexpected_passes(results):
        warnings.warn(f"{device} {line}", UnexpectedPass, stacklevel=2)
    assert expected.differences(results) == []


def test_a_sample_does_what_is_expected(
    core: Core, device: str, expected: Expectation, cases: list[BackendCase]
) -> None:
    assert_as_expected(core, device, expected, cases[::EVERY])


def test_a_sample_of_what_is_refused_is_refused(
    core: Core, device: str, expected: Expectation, cases: list[BackendCase]
) -> None:
    refused = [case for case in cases if case.name in expected.others]
    assert_as_expected(core, device, expected, refused[:: max(5, len(refused) // MOST_REFUSED)])


def test_what_depends_on_the_processor_is_expected(
    core: Core, device: str, cases: list[BackendCase]
) -> None:
    known = Expectation.read(path_of(device, EXPECTATIONS))
    sample = [case for case in cases if case.name in known.where]
    if not sample:
        pytest.skip(f"nothing on {device} does")
    on_this = known.on(capabilities(core, DeviceName.parse(device)))
    assert_as_expected(core, device, on_this, sample)


@pytest.mark.long
@pytest.mark.parametrize("instructions", ["AVX2", "SSE41"])
def test_it_is_expected_without_the_newer_instructions_as_well(
    cases: list[BackendCase], monkeypatch: pytest.MonkeyPatch, instructions: str
) -> None:
    """OpenVINO on a processor that it takes for one with no more than these."""
    if instructions == "SSE41" and platform.machine() != "x86_64":
        pytest.skip("other processors have other instructions")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", instructions)  # for the process that runs the cases
    known = Expectation.read(path_of("OPENVINO", EXPECTATIONS))
    sample = [case for case in cases if case.name in {*known.where, "test_gather_0"}]
    run = run_cases(DeviceUnderTest("OPENVINO"), sample, jobs=1)
    assert run.results
    assert ("SSE4" in run.capabilities) == (instructions == "SSE41")
    assert known.on(run.capabilities).differences(run.results) == []
