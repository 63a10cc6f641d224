"""Which requests are the same."""

from __future__ import annotations

import copy
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from headrace.runtime.network.values import Value
from headrace.runtime.responses.digest import digest_of, work_of

ONES = np.ones((2, 3), np.float32)


def texts(*values: str | bytes, shape: tuple[int, ...] | None = None) -> Value:
    made = np.empty(len(values), object)
    made[:] = values
    return made if shape is None else made.reshape(shape)


def digest(**inputs: Value) -> bytes:
    return digest_of(b"s", (), inputs)


@pytest.mark.parametrize(
    "other",
    [
        {"y": ONES},
        {"x": np.zeros((2, 3), np.float32)},
        {"x": ONES.reshape(3, 2)},
        {"x": ONES.reshape(6)},
        {"x": np.ones((2, 3), np.int32)},
        {"x": ONES.view(np.int32)},
        {"x": ONES.astype(">f4")},
        {"x": [ONES]},
        {"x": None},
        {"x": ONES, "y": None},
        {},
    ],
    ids=repr,
)
def test_inputs_that_differ_in_anything_are_not_the_same(other: Any) -> None:
    assert digest(x=ONES) != digest(**other)


def test_types_of_the_same_bytes_are_told_apart() -> None:
    bits = np.array([1, 2, 3], np.uint16)
    made = [bits.view(kind) for kind in (np.float16, np.int16, ml_dtypes.bfloat16)]
    assert len({digest(x=each) for each in (bits, *made)}) == 4


def test_bits_count_and_not_values() -> None:
    assert digest(x=np.array([0.0])) != digest(x=np.array([-0.0]))
    assert digest(x=np.array([np.nan])) == digest(x=np.array([np.nan]))


def test_it_does_not_matter_how_a_tensor_lies_in_memory_or_in_which_order_inputs_come() -> None:
    lies = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    copied = np.ascontiguousarray(lies)
    assert digest(a=lies, b=ONES) == digest(b=ONES.copy(), a=copied)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (texts("ab", "c"), texts("a", "bc")),
        (texts("a", ""), texts("", "a")),
        (texts("a"), texts(b"a")),
        (texts("a", "b"), texts("a", "b", shape=(2, 1))),
        ([texts("a"), texts("b")], [texts("a", "b")]),
    ],
)
def test_texts_are_told_apart_wherever_they_end(one: Value, other: Value) -> None:
    assert digest(x=one) != digest(x=other)
    assert digest(x=one) == digest(x=copy.deepcopy(one))


def test_bytes_of_one_input_are_not_taken_for_those_of_another() -> None:
    whole = np.array([1, 2, 3], np.uint8)
    assert digest(x=whole[:2], y=whole[2:]) != digest(x=whole[:1], y=whole[1:])


def test_what_a_reply_follows_from_besides_its_inputs_counts() -> None:
    assert digest_of(b"s", ("y",), {"x": ONES}) != digest_of(b"s", ("z",), {"x": ONES})


def test_no_other_process_knows_the_digest() -> None:
    assert digest_of(b"one", (), {"x": ONES}) != digest_of(b"other", (), {"x": ONES})


def test_an_empty_tensor_and_a_scalar_have_a_digest() -> None:
    made = [np.zeros((0, 2), np.float32), np.zeros((2, 0), np.float32), np.float32(1).reshape(())]
    assert len({digest(x=np.asarray(each)) for each in made}) == 3


def test_the_work_is_about_the_bytes() -> None:
    assert work_of({"x": ONES, "y": [ONES, ONES], "z": None}) == 3 * ONES.nbytes
    assert work_of({"x": texts("a" * 1000)}) >= 1000
    assert work_of({"x": texts(*["a"] * 10_000)}) >= 10_000


TENSORS = arrays.arrays(
    st.sampled_from([np.float32, np.int64, np.uint8, np.bool_]),
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
TEXTS = st.lists(st.text(max_size=3), max_size=3).map(lambda values: texts(*values))
VALUES: Any = st.one_of(TENSORS, TEXTS, st.none(), st.lists(TENSORS, max_size=2))


def same(one: Value, other: Value) -> bool:
    if one is None or other is None or isinstance(one, list) or isinstance(other, list):
        if isinstance(one, list) and isinstance(other, list):
            return len(one) == len(other) and all(map(same, one, other))
        return one is other
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype == object:
        return bool(one.tolist() == other.tolist())
    return one.tobytes() == other.tobytes()


@given(one=st.dictionaries(st.text(max_size=2), VALUES, max_size=3), data=st.data())
def test_digests_are_equal_exactly_if_the_inputs_are(
    one: dict[str, Value], data: st.DataObject
) -> None:
    assert digest_of(b"s", (), one) == digest_of(b"s", (), copy.deepcopy(one))
    other = data.draw(st.dictionaries(st.sampled_from(sorted(one) or ["x"]), VALUES, max_size=3))
    equal = one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    assert (digest_of(b"s", (), one) == digest_of(b"s", (), other)) == equal
