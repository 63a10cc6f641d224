"""OpenVINO's errors become those of headrace."""

from __future__ import annotations

import pytest

from headrace.plugins.openvino.backend.failures import load_failure, readable, run_failure
from headrace.runtime.errors import Internal, InvalidArgument, InvalidModel, ResourceExhausted


def test_messages_lose_code_locations() -> None:
    text = (
        "Exception from src/inference/src/cpp/core.cpp:117:\n"
        "Exception from src/inference/src/dev/plugin.cpp:54:\n"
        "Check '!shape.rank().is_dynamic()' failed at src/plugins/intel_cpu/src/node.cpp:108:\n"
        "the rank is unknown\n\n"
    )
    assert readable(RuntimeError(text)) == "the rank is unknown"


def test_messages_of_shape_inference_name_the_layer_alone() -> None:
    text = (
        "Check 'merge(output_shape, 1)' failed at src/core/shape_inference/eltwise.hpp:26:\n"
        "While validating node 'opset1::Add z (opset1::Parameter y[0]:f32[3]) -> (f32[?,2])' with "
        "friendly_name 'z':\nArgument shapes are inconsistent.\n"
    )
    message = str(run_failure(RuntimeError(text)))
    assert message.endswith("values: layer 'z': Argument shapes are inconsistent")


def test_errors_are_told_apart_by_stage() -> None:
    assert isinstance(load_failure(RuntimeError("x")), InvalidModel)
    assert isinstance(load_failure(RuntimeError("std::bad_alloc")), ResourceExhausted)
    assert isinstance(run_failure(RuntimeError("x")), InvalidArgument)
    assert isinstance(run_failure(MemoryError()), ResourceExhausted)
    for error in (Internal("x"), KeyError("x")):
        assert run_failure(error) is error


@pytest.mark.parametrize(
    "text",
    [
        "std::bad_alloc",
        "[CPU] Broadcast node with name 'y' Failed to allocate 1073741824 bytes of memory",
        "[CPU] could not allocate memory",
        "[GPU] out of memory",
    ],
)
def test_no_memory_is_resource_exhausted_and_no_fault_of_the_values(text: str) -> None:
    assert isinstance(run_failure(RuntimeError(text)), ResourceExhausted)
    assert isinstance(load_failure(RuntimeError(text)), ResourceExhausted)
