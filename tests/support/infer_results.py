"""Results of inference requests, without a network that has computed them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.runtime.execution.job import Job
from headrace.server.serving.call import NOTHING_MORE, InferCall, InferResult, WantedOutput


def infer_result(
    outputs: Mapping[str, Any],
    wanted: Mapping[str, WantedOutput] = NOTHING_MORE,
    *,
    identifier: str = "",
    version: str = "1",
    binary: bool = False,
) -> InferResult:
    """The result of a request to network "m"."""
    call = InferCall("m", "", identifier, {}, tuple(outputs), wanted, binary_outputs=binary)
    job = Job({}, lambda _: None, output_names=tuple(outputs))
    job.version = version
    job.outputs = dict(outputs)
    return InferResult(call, job, job.outputs)
