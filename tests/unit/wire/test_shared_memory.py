"""Tensors that lie in shared memory are named by their place, and decoded once their bytes are
there."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import Array, Buffer, CodecError, decode_values
from headrace.wire.shared_memory import attach, describe, in_regions

PLACE = pb.SharedMemory(region="r", offset=64, bytes=1000)


def placed(array: Array) -> pb.InferRequest:
    request = pb.InferRequest()
    describe(array, PLACE, request.inputs.add(name="x").tensor, "inputs['x']")
    return request


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array([True, False]),
        np.array(7, np.int64),
        np.zeros((0, 3), np.uint8),
        np.array([1, 2], ml_dtypes.bfloat16),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_a_tensor_is_what_it_was_once_its_bytes_are_fetched(array: Array) -> None:
    request = placed(array)
    (value,) = request.inputs
    assert value.tensor.shared_memory == pb.SharedMemory(region="r", offset=64, bytes=array.nbytes)
    fetched: list[Buffer] = [b"another attachment"]
    for field, tensor in in_regions(request.inputs, "inputs"):
        assert field == "inputs['x'].shared_memory"
        attach(tensor, array.tobytes(), fetched)
    assert not request.inputs[0].tensor.HasField("shared_memory")
    (decoded,) = decode_values(request.inputs, fetched).values()
    assert isinstance(decoded, np.ndarray)
    assert (decoded.dtype, decoded.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(decoded, array)


@pytest.mark.parametrize("other", [{"data": b"x"}, {"attachment": 1}])
def test_a_tensor_has_its_bytes_in_one_place(other: dict[str, object]) -> None:
    request = placed(np.ones(3))
    request.inputs[0].tensor.MergeFrom(pb.Tensor(**other))  # type: ignore[arg-type]
    with pytest.raises(CodecError, match="must not be set where data or attachment is"):
        list(in_regions(request.inputs, "inputs"))


def test_strings_and_elements_of_sequences_do_not_travel_so() -> None:
    with pytest.raises(CodecError, match="strings do not travel in shared memory"):
        placed(np.array(["a"], object))
    request = placed(np.ones(3))
    request.inputs[0].tensor.dtype = pb.STRING
    with pytest.raises(CodecError, match="strings do not travel in shared memory"):
        list(in_regions(request.inputs, "inputs"))
    request = pb.InferRequest()
    element = request.inputs.add(name="x").sequence.elements.add().tensor
    describe(np.ones(3), PLACE, element, "")
    assert not list(in_regions(request.inputs, "inputs"))
    with pytest.raises(CodecError, match="an input by itself") as raised:
        decode_values(request.inputs)
    assert raised.value.field == "inputs['x'][0].shared_memory"


def test_bytes_that_do_not_fit_the_shape_are_an_error_as_in_a_message() -> None:
    request = placed(np.ones(3))
    fetched: list[Buffer] = []
    attach(request.inputs[0].tensor, bytes(23), fetched)
    with pytest.raises(CodecError, match="has 23 bytes"):
        decode_values(request.inputs, fetched)
