"""Requests and results as the messages of the gRPC service."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.errors import Unimplemented
from headrace.runtime.execution.job import Sequence
from headrace.server.services.open_inference.messages import decode, encode, parse
from headrace.server.serving.call import (
    InferCall,
    InferResult,
    RegionPart,
    SharedTensor,
    WantedOutput,
)
from headrace.wire.codec import CodecError
from headrace.wire.message import SMALL_BYTES
from tests.support.infer_results import infer_result

FLOATS = np.arange(4, dtype=np.float32)


def parameter(value: Any) -> oip.InferParameter:
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    return oip.InferParameter(**{kinds[type(value)]: value})


def parameters(**values: Any) -> dict[str, oip.InferParameter]:
    return {name: parameter(value) for name, value in values.items()}


def tensor(name: str = "x", datatype: str = "FP32", shape: Any = (4,), **fields: Any) -> Any:
    return oip.ModelInferRequest.InferInputTensor(
        name=name, datatype=datatype, shape=shape, **fields
    )


def request(*inputs: Any, raw: Any = (), **fields: Any) -> Any:
    return oip.ModelInferRequest(model_name="m", inputs=inputs, raw_input_contents=raw, **fields)


def read(message: Any) -> InferCall:
    return decode(*parse(message.SerializeToString()))


def written(result: InferResult) -> Any:
    return oip.ModelInferResponse.FromString(encode(result))


def refused(message: Any) -> CodecError:
    with pytest.raises(CodecError) as caught:
        read(message)
    return caught.value


@pytest.mark.parametrize("size", [4, SMALL_BYTES])
def test_raw_contents_are_the_inputs_in_their_order(size: int) -> None:
    first, second = np.arange(size, dtype=np.float32), np.arange(size, dtype=np.int64)
    inputs = (tensor("a", "FP32", (size,)), tensor("b", "INT64", (size,)))
    call = read(request(*inputs, raw=[first.tobytes(), second.tobytes()]))
    np.testing.assert_array_equal(call.inputs["a"], first)
    np.testing.assert_array_equal(call.inputs["b"], second)


def test_large_raw_contents_are_viewed_in_the_message() -> None:
    data = request(tensor("a", "UINT8", (SMALL_BYTES,)), raw=[bytes(SMALL_BYTES)])
    serialised = data.SerializeToString()
    value: Any = decode(*parse(serialised)).inputs["a"]
    assert np.shares_memory(value, np.frombuffer(serialised, np.uint8))


@pytest.mark.parametrize(
    ("datatype", "field", "elements"),
    [
        ("BOOL", "bool_contents", [True, False]),
        ("INT8", "int_contents", [-128, 127]),
        ("INT16", "int_contents", [-1, 2]),
        ("INT32", "int_contents", [-1, 2]),
        ("UINT8", "uint_contents", [0, 255]),
        ("UINT16", "uint_contents", [1, 2]),
        ("UINT32", "uint_contents", [1, 2**32 - 1]),
        ("INT64", "int64_contents", [-(2**63), 2]),
        ("UINT64", "uint64_contents", [1, 2**64 - 1]),
        ("FP32", "fp32_contents", [1.5, 2.5]),
        ("FP64", "fp64_contents", [1.5, 2.5]),
        ("BYTES", "bytes_contents", [b"a", b"\xff"]),
    ],
)
def test_typed_contents_have_a_field_for_each_datatype(
    datatype: str, field: str, elements: list[Any]
) -> None:
    contents = oip.InferTensorContents(**{field: elements})
    value: Any = read(request(tensor("x", datatype, (2,), contents=contents))).inputs["x"]
    expected = ["a", b"\xff"] if datatype == "BYTES" else elements
    assert value.tolist() == expected


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_has_to_be_raw(datatype: str) -> None:
    contents = oip.InferTensorContents(fp32_contents=[1.0])
    error = refused(request(tensor("x", datatype, (1,), contents=contents)))
    assert str(error) == (f"inputs['x'].contents: cannot hold {datatype}; send raw_input_contents")


def test_contents_of_another_datatype_are_refused() -> None:
    contents = oip.InferTensorContents(fp64_contents=[1.0])
    error = refused(request(tensor("x", "FP32", (1,), contents=contents)))
    assert error.field == "inputs['x'].contents.fp64_contents"
    assert "fill fp32_contents" in error.message


def test_raw_and_typed_contents_at_once_are_refused() -> None:
    contents = oip.InferTensorContents(fp32_contents=[1.0])
    error = refused(request(tensor("x", shape=(1,), contents=contents), raw=[FLOATS[:1].tobytes()]))
    assert error.field == "inputs['x'].contents"


@pytest.mark.parametrize("entries", [1, 3])
def test_a_wrong_number_of_raw_contents_is_refused(entries: int) -> None:
    inputs = (tensor("a"), tensor("b"))
    error = refused(request(*inputs, raw=[FLOATS.tobytes()] * entries))
    assert "raw_input_contents" in str(error)


def test_raw_contents_of_a_wrong_length_name_the_tensor() -> None:
    error = refused(request(tensor("x"), raw=[b"abc"]))
    assert str(error) == "inputs['x']: has 3 bytes, but shape [4] of FP32 takes 16"


def test_an_input_given_twice_is_refused() -> None:
    error = refused(request(tensor("x"), tensor("x"), raw=[FLOATS.tobytes()] * 2))
    assert str(error) == "inputs['x']: is given twice"


def test_an_input_in_shared_memory_takes_no_entry_of_the_raw_contents() -> None:
    shared = parameters(
        shared_memory_region="r", shared_memory_offset=8, shared_memory_byte_size=16
    )
    inputs = (tensor("a", parameters=shared), tensor("b"))
    call = read(request(*inputs, raw=[FLOATS.tobytes()]))
    shared_input = call.inputs["a"]
    assert isinstance(shared_input, SharedTensor)
    assert shared_input.region == RegionPart("r", 8, 16, "inputs['a'].shared_memory_region")
    assert shared_input.dtype == np.float32
    assert shared_input.shape == (4,)
    np.testing.assert_array_equal(np.asarray(shared_input.decode(FLOATS.tobytes())), FLOATS)
    np.testing.assert_array_equal(call.inputs["b"], FLOATS)


def test_an_input_in_shared_memory_has_no_contents() -> None:
    shared = parameters(shared_memory_region="r", shared_memory_byte_size=16)
    contents = oip.InferTensorContents(fp32_contents=FLOATS)
    error = refused(request(tensor("a", parameters=shared, contents=contents)))
    assert error.field == "inputs['a'].contents"


def test_outputs_are_asked_for_by_name() -> None:
    wanted = [
        oip.ModelInferRequest.InferRequestedOutputTensor(name="y"),
        oip.ModelInferRequest.InferRequestedOutputTensor(
            name="z", parameters=parameters(classification=3)
        ),
    ]
    call = read(request(outputs=wanted))
    assert call.outputs == ("y", "z")
    assert call.wanted == {"z": WantedOutput(classification=3)}


def test_the_parameters_of_a_request() -> None:
    given = parameters(
        priority=1, timeout=2_500_000, sequence_id=7, sequence_start=True, sequence_end=False
    )
    call = read(request(id="a", model_version="1", parameters=given))
    assert (call.network, call.version, call.id) == ("m", "1", "a")
    assert (call.priority, call.timeout_seconds) == (10, 2.5)
    assert call.sequence == Sequence("7", start=True, end=False)


@pytest.mark.parametrize(("given", "expected"), [(0, 0), (1, 10), (11, 0), (21, -10)])
def test_priority_one_goes_first(given: int, expected: int) -> None:
    assert read(request(parameters=parameters(priority=given))).priority == expected


@pytest.mark.parametrize(
    "given",
    [
        {"priority": 22},
        {"priority": -1},
        {"priority": "1"},
        {"priority": True},
        {"timeout": 2**60},
        {"timeout": 1.5},
        {"sequence_id": True},
        {"sequence_id": "x" * 129},
        {"sequence_start": True},
        {"sequence_id": 1, "sequence_end": 1},
        {"triton_enable_empty_final_response": "yes"},
        {"temperature": 1.0},
    ],
)
def test_a_parameter_that_cannot_be_is_refused_by_name(given: dict[str, Any]) -> None:
    assert refused(request(parameters=parameters(**given))).field == (
        f"parameters[{list(given)[-1]!r}]"
    )


def test_a_parameter_without_a_value_is_refused() -> None:
    error = refused(request(parameters={"priority": oip.InferParameter()}))
    assert str(error) == "parameters['priority']: has no value"


@pytest.mark.parametrize(
    "given",
    [
        {"shared_memory_offset": 1},
        {"shared_memory_region": 5},
        {"shared_memory_region": "r"},
        {"shared_memory_region": "r", "shared_memory_byte_size": -1},
        {"priority": 1},
    ],
)
def test_a_parameter_of_a_tensor_that_cannot_be_is_refused(given: dict[str, Any]) -> None:
    error = refused(request(tensor("x", parameters=parameters(**given))))
    assert error.field.startswith("inputs['x'].parameters[")
    output = oip.ModelInferRequest.InferRequestedOutputTensor(
        name="y", parameters=parameters(**given)
    )
    assert refused(request(outputs=[output])).field.startswith("outputs['y'].parameters[")


def test_a_result_becomes_raw_contents() -> None:
    outputs = {"y": FLOATS.reshape(2, 2), "s": np.array(["a", b"\xff"], object)}
    reply = written(infer_result(outputs, identifier="a"))
    assert (reply.model_name, reply.model_version, reply.id) == ("m", "1", "a")
    described = [(each.name, each.datatype, list(each.shape)) for each in reply.outputs]
    assert described == [("y", "FP32", [2, 2]), ("s", "BYTES", [2])]
    assert list(reply.raw_output_contents) == [
        FLOATS.tobytes(),
        b"\x01\0\0\0a\x01\0\0\0\xff",
    ]


@pytest.mark.parametrize("value", [None, [FLOATS], np.zeros(1, np.complex64)])
def test_an_output_that_the_protocol_has_no_words_for_is_refused_by_name(value: Any) -> None:
    with pytest.raises(Unimplemented, match="output 'y'"):
        encode(infer_result({"y": value}))


def test_an_empty_message_of_typed_contents_beside_raw_ones_says_nothing() -> None:
    empty = tensor(contents=oip.InferTensorContents())
    call = read(request(empty, raw=[FLOATS.tobytes()]))
    np.testing.assert_array_equal(call.inputs["x"], FLOATS)


def test_what_clients_decode_tensors_to_is_nothing_to_the_server() -> None:
    described = tensor(parameters=parameters(content_type="np"))
    outputs = [
        oip.ModelInferRequest.InferRequestedOutputTensor(
            name="y", parameters=parameters(content_type="np")
        )
    ]
    call = read(
        request(
            described,
            raw=[FLOATS.tobytes()],
            outputs=outputs,
            parameters=parameters(content_type="np"),
        )
    )
    assert (call.outputs, call.wanted) == (("y",), {"y": WantedOutput()})
    np.testing.assert_array_equal(call.inputs["x"], FLOATS)
