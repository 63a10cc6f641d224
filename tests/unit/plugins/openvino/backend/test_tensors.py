"""Arrays are passed to OpenVINO without a copy where that is possible."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from headrace.plugins.openvino.backend import tensors


def test_a_read_only_array_is_taken_where_it_lies() -> None:
    given = np.frombuffer(bytes(64), np.float32)
    taken, kept = tensors.tensor(given, ir.DataType.FLOAT)
    assert kept is given
    assert np.shares_memory(taken.data, given)


@pytest.mark.parametrize(
    ("kind", "dtype"), [(np.longlong, ir.DataType.INT64), (np.ulonglong, ir.DataType.UINT64)]
)
def test_both_types_of_64_bits_that_numpy_has_are_taken_where_they_lie(
    kind: type[np.generic], dtype: ir.DataType
) -> None:
    """ONNX Runtime answers with these, and another subgraph of HETERO's hands them over."""
    given = np.array([3, 4], kind)
    for array in (given, np.frombuffer(given.tobytes(), kind)):
        taken, kept = tensors.tensor(array, dtype)
        assert kept is array
        assert taken.data.tolist() == [3, 4]
        assert np.shares_memory(taken.data, array)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4).T,
        np.frombuffer(b"\0" + bytes(16), np.uint8)[1:].view(np.float32),
    ],
    ids=["strided", "unaligned"],
)
def test_what_does_not_lie_as_it_must_is_copied(array: np.ndarray[Any, Any]) -> None:
    taken, kept = tensors.tensor(array, ir.DataType.FLOAT)
    assert not np.shares_memory(kept, array)
    np.testing.assert_array_equal(taken.data, array)


@pytest.mark.parametrize("dtype", sorted(tensors.PASSED))
def test_elements_of_every_type_that_is_passed_stay_the_same(dtype: ir.DataType) -> None:
    given = np.array([[1, 2], [2, 1]]).astype(dtype.numpy())
    given.flags.writeable = False
    taken, _ = tensors.tensor(given, dtype)
    back = tensors.array(taken, dtype)
    assert back.dtype == given.dtype
    np.testing.assert_array_equal(back, given)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_scalars_and_nothing_at_all_are_tensors(shape: tuple[int, ...]) -> None:
    given = np.zeros(shape, np.int64)
    given.flags.writeable = False
    assert tuple(tensors.tensor(given, ir.DataType.INT64)[0].shape) == shape
