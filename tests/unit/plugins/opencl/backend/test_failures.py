"""What a failing run on OPENCL is to the caller: too much, or wrong, and never our own fault."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tinygrad", reason="tinygrad is not installed: pip install 'headrace[opencl]'")

from headrace.plugins.opencl.backend.failures import run_failure
from headrace.plugins.opencl.running.evaluator import Evaluation, TinygradEvaluator
from headrace.runtime.errors import InvalidArgument, ResourceExhausted
from headrace.runtime.execution.cancel import CancelToken
from headrace.testing.case import Case, parse


def test_sizes_that_no_memory_holds_are_too_much() -> None:
    text = "f (int64[2] s) => (float[a,b] y) { y = ConstantOfShape(s) }"
    evaluator = TinygradEvaluator(Case("f", parse(text), {}).network.model, "PYTHON")
    with pytest.raises(ResourceExhausted, match="no memory for layer 'y'"):
        evaluator.evaluate(Evaluation(CancelToken()), {"s": np.array([2**30, 2**30])})


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (MemoryError("Allocation of 8 GB failed on CL"), ResourceExhausted, "Allocation of 8 GB"),
        (MemoryError(), ResourceExhausted, "a result is too large"),
        (ValueError("maximum supported dimension for an ndarray is 64"), InvalidArgument, "is 64"),
        (
            RuntimeError("UOp verification failed at 5 on Ops.SPECIAL"),
            ResourceExhausted,
            "more elements than a kernel",
        ),
    ],
)
def test_what_a_result_is_too_large_for_is_told_to_the_caller(
    error: Exception, kind: type[Exception], text: str
) -> None:
    failure = run_failure(error)
    assert type(failure) is kind
    assert text in str(failure)


def test_memory_is_what_lacked_if_an_error_says_so_in_its_cause() -> None:
    error = RuntimeError("the run ended")
    error.__cause__ = MemoryError("nothing left")
    assert isinstance(run_failure(error), ResourceExhausted)


def test_other_errors_stay_what_they_are() -> None:
    error = RuntimeError("OpenCL Error -5: CL_OUT_OF_RESOURCES")
    assert run_failure(error) is error
