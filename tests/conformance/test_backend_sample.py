"""A sample of ONNX's backend cases does on each device what is expected; `make conformance` runs
all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.runtime.core import Core
from headrace.runtime.device_name import DeviceName
from headrace.testing.backend_cases.cases import BackendCase, collect
from headrace.testing.backend_cases.expectation import Expectation, path_of
from headrace.testing.backend_cases.worker import DeviceUnderTest, run_case

EXPECTATIONS = Path(__file__).parent / "backend_cases"
EVERY = 40
MOST_REFUSED = 20
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


def test_a_sample_does_what_is_expected(core: Core, device: str, cases: list[BackendCase]) -> None:
    expected = Expectation.read(path_of(device, EXPECTATIONS))
    results = [run_case(core, DeviceName.parse(device), {}, case) for case in cases[::EVERY]]
    assert expected.differences(results) == []


def test_a_sample_of_what_is_refused_is_refused(
    core: Core, device: str, cases: list[BackendCase]
) -> None:
    expected = Expectation.read(path_of(device, EXPECTATIONS))
    refused = [case for case in cases if case.name in expected.others]
    sample = refused[:: max(5, len(refused) // MOST_REFUSED)]
    results = [run_case(core, DeviceName.parse(device), {}, case) for case in sample]
    assert results
    assert expected.differences(results) == []
