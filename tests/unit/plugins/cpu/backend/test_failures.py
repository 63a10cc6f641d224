"""ONNX Runtime's errors, in words of ours."""

from __future__ import annotations

import pytest

from headrace.plugins.cpu.backend.failures import load_failure, readable, run_failure
from headrace.runtime.errors import (
    Cancelled,
    FailedPrecondition,
    HeadraceError,
    Internal,
    InvalidArgument,
    InvalidModel,
    ResourceExhausted,
)

KERNEL = (
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Gather node. "
    "Name:'pick' Status Message: "
)


def raised(kind: str, text: str = "") -> Exception:
    """An error as the binding makes them: of a class that shares no base with the others."""
    error: Exception = type(kind, (Exception,), {})(text)
    return error


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("ModelLoadCanceled", Cancelled),
        ("NotImplemented", FailedPrecondition),
        ("InvalidGraph", InvalidModel),
        ("InvalidProtobuf", InvalidModel),
        ("InvalidArgument", InvalidModel),
        ("Fail", Internal),
        ("SomethingNew", Internal),
    ],
)
def test_an_error_of_a_load_is_told_by_its_class(kind: str, expected: type[HeadraceError]) -> None:
    assert type(load_failure(raised(kind))) is expected


@pytest.mark.parametrize("text", ["std::bad_alloc", KERNEL + "Failed to allocate memory for x"])
def test_memory_that_runs_out_is_nobodys_bad_argument(text: str) -> None:
    assert isinstance(load_failure(raised("RuntimeException", text)), ResourceExhausted)
    assert isinstance(run_failure(raised("RuntimeException", text)), ResourceExhausted)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (raised("InvalidArgument", "Invalid rank for input: x"), InvalidArgument),
        (raised("Fail", KERNEL + "index out of bounds"), InvalidArgument),
        (RuntimeError("tensor to be added has a different data type"), InvalidArgument),
        (raised("NotImplemented", KERNEL + "no such pooling"), FailedPrecondition),
    ],
)
def test_an_error_of_a_run_is_laid_to_its_inputs(
    error: Exception, expected: type[HeadraceError]
) -> None:
    failure = run_failure(error)
    assert type(failure) is expected


@pytest.mark.parametrize(
    "text",
    [
        "CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; hostname=node-1 ; "
        "file=/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc ; line=12 ; expr=x; ",
        "CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED ; GPU=0 ; hostname=node-1 ; expr=y; ",
    ],
)
def test_a_gpu_that_fails_in_a_layer_is_not_the_inputs_fault(text: str) -> None:
    failure = run_failure(raised("Fail", KERNEL + text))
    assert type(failure) is Internal
    assert failure.message.endswith(text.partition(" ; GPU")[0])


def test_a_network_that_cannot_be_recorded_is_no_failure_of_ours() -> None:
    text = (
        "This session cannot use the graph capture feature as requested by the user as all compute "
        "graph nodes have not been partitioned to the CUDAExecutionProvider"
    )
    assert type(load_failure(raised("Fail", text))) is FailedPrecondition


def test_an_error_of_unknown_cause_stays_what_it_is() -> None:
    for error in (raised("EPFail", "the device is gone"), TypeError("a bug of ours")):
        assert run_failure(error) is error


def test_an_error_of_ours_stays_what_it_is() -> None:
    error = InvalidArgument("element 1 is not UTF-8", field="inputs['x']")
    assert run_failure(error) is error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : Failed to parse.", "Failed to parse"),
        (
            "[ONNXRuntimeError] : 1 : FAIL : /onnxruntime_src/core/graph/model.cc:256 "
            "onnxruntime::Model::Model(onnx::ModelProto&&, const onnxruntime::PathString&) "
            "Unsupported model IR version: 14",
            "Unsupported model IR version: 14",
        ),
        (
            "Exception during initialization: /onnxruntime_src/core/providers/cpu/rnn/gru.cc:12 "
            "onnxruntime::GRU::GRU(const onnxruntime::OpKernelInfo&) const [with T = float] "
            "layout_ == 0 was false. ",
            "layout_ == 0 was false",
        ),
        (
            '[ONNXRuntimeError] : 10 : INVALID_GRAPH : This is an invalid model. In Node, ("n", '
            'Foo, "", -1) : ("x": tensor(float),) -> ("y": tensor(float),) , Error No Op '
            "registered for Foo with domain_version of 20",
            "No Op registered for Foo with domain_version of 20",
        ),
        (
            KERNEL + "/onnxruntime_src/core/gather.cc:9 onnxruntime::common::Status "
            "onnxruntime::Gather::Compute(onnxruntime::Context*) const\n idx=7 is too large",
            "layer 'pick' (Gather): idx=7 is too large",
        ),
    ],
)
def test_messages_lose_codes_places_and_signatures(text: str, expected: str) -> None:
    assert readable(Exception(text)) == expected


def test_of_a_layer_in_a_body_the_inner_one_is_named() -> None:
    outer = KERNEL.replace("Gather", "Loop").replace("pick", "loop")
    assert readable(Exception(outer + KERNEL + "no")) == "layer 'pick' (Gather): no"
