"""A tensor's data in JSON: each datatype, flat and nested, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headrace.runtime.errors import FailedPrecondition
from headrace.server.http.rest.tensors import decode_data, encode_data
from headrace.server.services.open_inference.datatypes import CHUNK, NUMPY_TYPES
from headrace.wire.codec import CodecError

IN_JSON = sorted(NUMPY_TYPES.keys() - {"FP16", "BF16", "BYTES"})


def encoded(array: np.ndarray[Any, Any], datatype: str) -> Any:
    return json.loads(b"".join(encode_data(array, datatype, "y")))


@given(st.data(), st.sampled_from(IN_JSON))
def test_a_tensor_is_the_same_after_its_way_through_json(data: Any, datatype: str) -> None:
    dtype = NUMPY_TYPES[datatype]
    said: dict[str, Any] = {"allow_nan": False, "allow_infinity": False}
    finite = said if dtype.kind == "f" else {}
    shape = data.draw(hnp.array_shapes(min_dims=0, min_side=0, max_side=4))
    array = data.draw(hnp.arrays(dtype, shape, elements=hnp.from_dtype(dtype, **finite)))
    flat = encoded(array, datatype)
    for sent in [flat, array.tolist()] if array.ndim else [flat]:
        found = decode_data(datatype, shape, sent)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, array)


def test_text_is_the_same_after_its_way_through_json() -> None:
    texts = ["", "a", "größer", "\x00", "🙂", '"\\']
    array = np.array(texts, object).reshape(2, 3)
    assert encoded(array, "BYTES") == texts
    found = decode_data("BYTES", [2, 3], [texts[:3], texts[3:]])
    np.testing.assert_array_equal(found, array)


def test_a_large_tensor_comes_in_pieces() -> None:
    array = np.arange(2 * CHUNK + 1, dtype=np.int32)
    pieces = list(encode_data(array, "INT32", "y"))
    assert len(pieces) == 4
    assert json.loads(b"".join(pieces)) == array.tolist()


def test_an_array_that_is_not_contiguous_or_not_native_is_written_right() -> None:
    array = np.arange(6, dtype=">i4").reshape(2, 3).T
    assert encoded(array, "INT32") == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize(
    ("datatype", "data", "says"),
    [
        ("INT8", [1, 128], "outside -128 to 127"),
        ("UINT8", [1, -1], "-1"),
        ("INT64", [1, 2**64 - 1], "INT64"),
        ("UINT64", [1, -1], "UINT64"),
        ("INT32", [1, 2.0], "holds a number with a point, and INT32 takes a whole number"),
        ("UINT64", orjson.loads("[1, 18446744073709551616]"), "too large for UINT64"),
        ("INT64", orjson.loads("[1, -9223372036854775809]"), "too large for INT64"),
        ("INT32", [1, True], "holds true or false, and INT32 takes a whole number"),
        ("INT32", [1, "2"], "holds text"),
        ("INT32", [1, None], "holds null"),
        ("INT32", [1, [2]], "a list or an object"),
        ("INT32", [1, {"a": 2}], "a list or an object"),
        ("INT32", [[1], 2], "nests deeper"),
        ("BOOL", [1, 0], "a whole number, and BOOL takes true or false"),
        ("BYTES", ["a", 1], "a whole number, and BYTES takes text"),
        ("FP32", [1.0, "2"], "holds text"),
        ("FP32", [1.0, 1e39], "too large for FP32"),
        ("FP64", [1.0, True], "true or false"),
        ("FP32", [1.0], "1 elements"),
        ("FP32", [1.0, 2.0, 3.0], "3 elements"),
        ("FP32", "12", "must be a list"),
        ("FP32", {"0": 1}, "must be a list"),
        ("FP32", 1.0, "must be a list"),
        ("FP16", [1.0, 2.0], "binary data"),
        ("BF16", [1.0, 2.0], "binary data"),
        ("FP8", [1.0, 2.0], "FP32, FP64"),
    ],
)
def test_data_that_do_not_fit_are_refused_and_named(datatype: str, data: Any, says: str) -> None:
    with pytest.raises(CodecError) as caught:
        decode_data(datatype, [2], data)
    assert says in str(caught.value)
    assert caught.value.field in (".data", ".datatype")


@pytest.mark.parametrize(
    "data",
    [
        [[1, 2, 3, 4, 5, 6]],
        [[1, 2], [3, 4], [5, 6]],
        [[1, 2, 3], [4, 5]],
        [[1, 2, 3], 4, 5, 6],
        [[1, 2, 3], "456"],
        [[[1, 2, 3], [4, 5, 6]]],
        [[[1], [2], [3]], [[4], [5], [6]]],
        [[], [1, 2, 3, 4, 5, 6]],
    ],
)
def test_data_that_nest_otherwise_than_their_shape_are_refused(data: Any) -> None:
    with pytest.raises(CodecError, match="nest"):
        decode_data("INT32", [2, 3], data)


def test_a_shape_of_strangers_is_bounded() -> None:
    with pytest.raises(CodecError, match="negative"):
        decode_data("INT32", [-1], [])
    with pytest.raises(CodecError, match="overflows"):
        decode_data("INT32", [2**40, 2**40], [])
    with pytest.raises(CodecError, match="dimensions"):
        decode_data("INT32", [1] * 1000, [1])


@pytest.mark.parametrize(
    ("array", "datatype"),
    [
        (np.array([1, np.nan], np.float32), "FP32"),
        (np.array([1, -np.inf]), "FP64"),
        (np.array([1], np.float16), "FP16"),
        (np.array([b"\xff"], object), "BYTES"),
    ],
)
def test_what_json_cannot_hold_is_refused_and_told_of_binary_data(
    array: np.ndarray[Any, Any], datatype: str
) -> None:
    with pytest.raises(FailedPrecondition, match=r"output 'y'.*binary_data: true"):
        encoded(array, datatype)
