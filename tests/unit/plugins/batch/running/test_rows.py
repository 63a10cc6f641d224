"""Joining requests to one batch, and parting what comes out."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.plugins.batch.running.rows import fit, join, part
from headrace.runtime.errors import Internal
from headrace.runtime.execution.job import Job
from headrace.runtime.network.values import Value


def job(*outputs: str, **inputs: Value) -> Job:
    return Job(inputs, lambda _: None, output_names=outputs)


def test_requests_of_the_same_shape_but_for_the_rows_fit_together() -> None:
    one, other = job(x=np.zeros((1, 4))), job(x=np.zeros((3, 4)))
    assert fit(one, ["x"]).group == fit(other, ["x"]).group
    assert (fit(one, ["x"]).rows, fit(other, ["x"]).rows) == (1, 3)


def test_requests_of_other_shape_or_for_other_outputs_do_not() -> None:
    groups = [
        fit(job("y", x=np.zeros((1, 4))), ["x"]).group,
        fit(job("y", x=np.zeros((1, 5))), ["x"]).group,
        fit(job("z", x=np.zeros((1, 4))), ["x"]).group,
    ]
    assert len(set(groups)) == 3


@pytest.mark.parametrize(
    "inputs",
    [
        {"x": np.zeros((2, 4)), "m": np.zeros((1, 4))},
        {"x": np.zeros(()), "m": np.zeros((1,))},
        {"x": np.zeros((0, 4)), "m": np.zeros((0, 4))},
        {"x": [np.zeros(1)], "m": np.zeros((1,))},
        {"x": None, "m": np.zeros((1,))},
        {"x": np.zeros((1,))},
    ],
    ids=["other rows", "scalar", "no rows", "sequence", "absent", "left out"],
)
def test_what_has_no_rows_of_its_own_runs_alone(inputs: dict[str, Value]) -> None:
    assert fit(job(**inputs), ["x", "m"]).group is None


def test_rows_are_joined_in_order() -> None:
    a, b = job(x=np.array([[1], [2]])), job(x=np.array([[3]]))
    assert join([a, b], ["x"])["x"].tolist() == [[1], [2], [3]]  # type: ignore[union-attr]


def test_missing_rows_are_the_last_one_again() -> None:
    joined = join([job(x=np.array([[1], [2]]))], ["x"], padded_to=4)["x"]
    assert isinstance(joined, np.ndarray)
    assert joined.tolist() == [[1], [2], [2], [2]]


def test_each_gets_its_rows_without_a_copy() -> None:
    y = np.arange(6).reshape(3, 2)
    first, second = part({"y": y}, [2, 1], frozenset(), 3)
    assert np.array_equal(np.asarray(first["y"]), y[:2])
    assert np.shares_memory(np.asarray(second["y"]), y)


def test_an_output_may_have_several_lines_for_each_row() -> None:
    first, second = part({"y": np.arange(6)}, [1, 1], frozenset(), 2)
    assert np.asarray(first["y"]).tolist() == [0, 1, 2]
    assert np.asarray(second["y"]).tolist() == [3, 4, 5]


def test_padding_goes_to_nobody() -> None:
    (only,) = part({"y": np.arange(4)}, [1], frozenset(), 4)
    assert np.asarray(only["y"]).tolist() == [0]


def test_an_output_without_rows_goes_to_everybody() -> None:
    first, second = part({"y": np.array(7)}, [1, 1], frozenset(["y"]), 2)
    assert first["y"] is second["y"]


@pytest.mark.parametrize("shape", [(), (3,), (0, 2)])
def test_an_output_that_cannot_be_parted_is_the_devices_fault(shape: tuple[int, ...]) -> None:
    with pytest.raises(Internal, match="shape"):
        part({"y": np.zeros(shape)}, [1, 1], frozenset(), 2)
