"""ONNX's backend cases on a real GPU: what CUDA claims it computes right."""

from __future__ import annotations

import pytest

from headrace.testing.backend_cases.cases import collect
from headrace.testing.backend_cases.outcome import CaseOutcome
from headrace.testing.backend_cases.pool import run_cases
from headrace.testing.backend_cases.worker import DeviceUnderTest

_PROCESSES = 4  # each takes some hundred megabytes of the GPU
_SECONDS = 1800


@pytest.mark.timeout(_SECONDS)
def test_no_case_that_it_claims_is_wrong_or_fails() -> None:
    device = DeviceUnderTest("CUDA", factory="headrace.plugins.cuda:create_plugin")
    results = run_cases(device, collect(), jobs=_PROCESSES).results
    faults = [
        f"{result.case}: {result.outcome.value}: {result.reason}: {result.detail}"
        for result in results
        if result.is_fault
    ]
    assert faults == []
    assert any(result.outcome is CaseOutcome.PASSED for result in results)
