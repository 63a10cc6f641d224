"""Bodies of requests and replies: JSON, binary data behind it, and what is refused by name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from headrace.server.http.rest.messages import RestReply, decode
from headrace.server.serving.call import (
    NOTHING_MORE,
    InferCall,
    RegionPart,
    SharedTensor,
    WantedOutput,
)
from headrace.wire.codec import CodecError
from tests.support.infer_results import infer_result

X = {"name": "x", "shape": [2], "datatype": "INT32", "data": [1, 2]}
BINARY = {"name": "y", "shape": [2], "datatype": "FP16", "parameters": {"binary_data_size": 4}}
HALVES = np.array([1.5, -2], np.float16)


def read(document: dict[str, Any], binary: bytes = b"") -> InferCall:
    return decode("m", "", json.dumps(document).encode(), memoryview(binary))


def test_tensors_are_read_from_json_and_from_behind_it() -> None:
    shared = {
        "name": "z",
        "shape": [3],
        "datatype": "UINT8",
        "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 3},
    }
    call = read({"id": "i", "inputs": [BINARY, X, shared]}, HALVES.tobytes())
    assert (call.network, call.version, call.id) == ("m", "", "i")
    np.testing.assert_array_equal(np.asarray(call.inputs["x"]), np.array([1, 2], np.int32))
    np.testing.assert_array_equal(np.asarray(call.inputs["y"]), HALVES)
    z = call.inputs["z"]
    assert isinstance(z, SharedTensor)
    assert z.region == RegionPart("r", 0, 3, "inputs['z'].shared_memory_region")
    assert z.dtype == np.uint8
    assert z.shape == (3,)


def test_outputs_and_parameters_are_read() -> None:
    outputs = [
        {"name": "a"},
        {"name": "b", "parameters": {"binary_data": False}},
        {"name": "c", "parameters": {"classification": 2}},
    ]
    parameters = {"priority": 1, "timeout": 2_000_000, "binary_data_output": True}
    call = read({"inputs": [X], "outputs": outputs, "parameters": parameters})
    assert call.outputs == ("a", "b", "c")
    assert call.wanted == {"b": WantedOutput(binary=False), "c": WantedOutput(classification=2)}
    assert (call.timeout_seconds, call.binary_outputs) == (2.0, True)
    assert call.priority > 0


def test_a_member_that_is_null_is_as_good_as_absent() -> None:
    null: dict[str, Any] = {"id": None, "model_name": None, "model_version": None}
    parameters = {"binary_data_size": 0, "shared_memory_region": None}
    empty = {"name": "e", "shape": [0], "datatype": "FP32", "data": None, "parameters": parameters}
    call = read(
        {
            **null,
            "inputs": [{**X, "parameters": None}, empty],
            "outputs": [{"name": "a", "parameters": {"classification": None}}],
            "parameters": {"priority": None},
        }
    )
    assert (call.id, call.version, list(call.inputs)) == ("", "", ["x", "e"])
    assert call.outputs == ("a",)
    assert read({"inputs": [X], "outputs": None, "parameters": None}).outputs == ()


def of_x(**changes: Any) -> dict[str, Any]:
    tensor = {key: value for key, value in (X | changes).items() if value is not ...}
    return {"inputs": [tensor]}


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"input": []}, "input"),
        ({"inputs": {}}, "inputs"),
        ({"inptus": None}, "inptus"),
        ({"inputs": [{**X, "name": None}]}, "inputs[0].name"),
        (of_x(data=None), "inputs['x'].data"),
        ({"inputs": [1]}, "inputs[0]"),
        ({"inputs": [{}]}, "inputs[0].name"),
        ({"inputs": [X] * 4097}, "inputs"),
        ({"inputs": [X, X]}, "inputs['x']"),
        ({"id": 1}, "id"),
        ({"parameters": []}, "parameters"),
        ({"parameters": {"a": []}}, "parameters['a']"),
        ({"parameters": {"prority": 1}}, "parameters['prority']"),
        ({"parameters": {"priority": -1}}, "parameters['priority']"),
        ({"parameters": {"timeout": 1e300}}, "parameters['timeout']"),
        ({"outputs": [{"name": 1}]}, "outputs[0].name"),
        ({"outputs": [{"name": "a", "data": []}]}, "outputs[0].data"),
        (
            {"outputs": [{"name": "a", "parameters": {"binary": True}}]},
            "outputs['a'].parameters['binary']",
        ),
        (of_x(datatype=...), "inputs['x'].datatype"),
        (of_x(datatype="INT"), "inputs['x'].datatype"),
        (of_x(shape=...), "inputs['x'].shape"),
        (of_x(shape=[2.0]), "inputs['x'].shape"),
        (of_x(shape=[True]), "inputs['x'].shape"),
        (of_x(shape=[-2]), "inputs['x'].shape"),
        (of_x(shape=[2**64 - 1]), "inputs['x'].shape"),
        (of_x(data=...), "inputs['x'].data"),
        (of_x(dta=1), "inputs[0].dta"),
        (of_x(parameters={"binary_data_size": 8}), "inputs['x'].data"),
        (
            of_x(parameters={"binary_data_size": 8}, data=...),
            "inputs['x'].parameters['binary_data_size']",
        ),
        (
            of_x(parameters={"binary_data_size": "8"}, data=...),
            "inputs['x'].parameters['binary_data_size']",
        ),
        (of_x(parameters={"shared_memory_region": "r"}), "inputs['x'].parameters"),
    ],
)
def test_what_breaks_the_protocol_is_refused_and_named(
    document: dict[str, Any], field: str
) -> None:
    with pytest.raises(CodecError) as caught:
        read(document)
    assert caught.value.field.startswith(field)


def test_bytes_that_no_input_names_are_refused() -> None:
    with pytest.raises(CodecError, match="1 bytes that no input"):
        read({"inputs": [BINARY]}, HALVES.tobytes() + b"x")
    with pytest.raises(CodecError, match="2 bytes, but shape"):
        read({"inputs": [BINARY | {"parameters": {"binary_data_size": 2}}]}, b"xx")


def replied(
    outputs: dict[str, Any],
    wanted: Mapping[str, WantedOutput] = NOTHING_MORE,
    *,
    binary: bool = False,
    identifier: str = "",
) -> tuple[Any, list[bytes]]:
    result = infer_result(outputs, wanted, identifier=identifier, version="3", binary=binary)
    reply = RestReply(result)

    async def text() -> bytes:
        return b"".join([piece async for piece in reply.text()])

    return json.loads(asyncio.run(text())), [bytes(part) for part in reply.binary]


def test_an_output_in_json_has_no_parameters_at_all() -> None:
    outputs = {"a": np.array([[1.5], [2]], np.float32)}
    assert replied(outputs, identifier="i") == (
        {
            "model_name": "m",
            "model_version": "3",
            "id": "i",
            "outputs": [{"name": "a", "datatype": "FP32", "shape": [2, 1], "data": [1.5, 2.0]}],
        },
        [],
    )


def test_binary_outputs_say_their_sizes_and_come_in_their_order() -> None:
    outputs = {"a": HALVES, "b": np.array([True]), "c": np.array(["xy", ""], object)}
    document, binary = replied(
        outputs, {"a": WantedOutput(binary=True), "c": WantedOutput(binary=True)}
    )
    assert "id" not in document
    sizes = [each.get("parameters") for each in document["outputs"]]
    assert sizes == [{"binary_data_size": 4}, None, {"binary_data_size": 10}]
    assert binary == [HALVES.tobytes(), b"\x02\0\0\0xy\0\0\0\0"]


def test_the_request_says_what_outputs_are_that_say_nothing() -> None:
    outputs = {"a": np.array([1]), "b": np.array([1])}
    document, binary = replied(outputs, {"b": WantedOutput(binary=False)}, binary=True)
    assert ["data" in each for each in document["outputs"]] == [False, True]
    assert len(binary) == 1


def test_an_output_in_shared_memory_has_neither_data_nor_a_size() -> None:
    wanted = {"a": WantedOutput(region=RegionPart("r", 0, 8, "outputs['a']"))}
    document, binary = replied({"a": np.array([1])}, wanted, binary=True)
    assert document["outputs"] == [{"name": "a", "datatype": "INT64", "shape": [1]}]
    assert binary == []


def test_the_body_may_repeat_the_model_of_the_path_and_name_a_version() -> None:
    call = read({"model_name": "m", "model_version": "2", "inputs": [X]})
    assert (call.network, call.version) == ("m", "2")


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"model_name": "other"}, "model_name"),
        ({"model_name": 7}, "model_name"),
        ({"model_version": "2"}, "model_version"),
        ({"model_version": 2}, "model_version"),
    ],
)
def test_a_body_that_contradicts_the_path_is_refused(said: dict[str, Any], field: str) -> None:
    body = json.dumps({**said, "inputs": [X]}).encode()
    with pytest.raises(CodecError) as refused:
        decode("m", "1", body, memoryview(b""))
    assert refused.value.field == field
