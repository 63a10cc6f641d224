"""Rows apart and together: what a trial finds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import pytest

from headrace.plugins.batch.claims.trial import ROWS, Inconclusive, Run, sample, try_out
from headrace.runtime.errors import Cancelled, InvalidArgument
from headrace.runtime.network.network import Dimension, Port
from headrace.runtime.network.values import Array, Value


def port(*shape: Dimension, dtype: ir.DataType = ir.DataType.FLOAT) -> Port:
    return Port("x", dtype, shape)


def of(function: object, *shape: Dimension) -> Run:
    assert callable(function)

    def run(inputs: Mapping[str, Value]) -> Mapping[str, Value]:
        return {"y": function(np.asarray(inputs["x"]))}

    return run


def tried(function: object) -> tuple[str, frozenset[str]]:
    run = of(function)
    return try_out(sample([port("N", 4)], run), run)


def test_rows_by_themselves_pass() -> None:
    assert tried(lambda x: x * 2) == ("", frozenset())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - x.mean(axis=0),
        lambda x: x / np.abs(x).max(),
        lambda x: np.cumsum(x, axis=0),
        lambda x: x[::-1],
        lambda x: np.round(x * 127 / np.abs(x).max()) / 127 * np.abs(x).max(),
        lambda x: x + 2e-4 * x.mean(axis=0),
        lambda x: x + 2e-4 * np.roll(x, 1, axis=0),
        lambda x: x * (1 + 2e-4 * len(x)),
        lambda x: x * (1 + 2e-4 * np.arange(len(x))[:, None]),
    ],
    ids=[
        "mean",
        "largest",
        "running sum",
        "order",
        "a scale for all",
        "a little of the mean",
        "a little of a neighbour",
        "a little of the number",
        "a little of the place",
    ],
)
def test_rows_that_meet_are_found(function: object) -> None:
    why, _ = tried(function)
    assert why == "a row's 'y' depends on the other rows"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + np.isnan(x).any(),
        lambda x: x + np.maximum(x.mean() - 50, 0),
        lambda x: x + np.minimum(x.min() + 1000, 0),
        lambda x: x * np.where((x == 0).all(axis=1).any(), 2, 1),
    ],
    ids=["any NaN", "a large mean", "a small least", "a row of zeros"],
)
@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT, ir.DataType.FLOAT16])
def test_rows_that_meet_only_for_extreme_values_are_found(
    function: object, dtype: ir.DataType
) -> None:
    assert callable(function)
    run = of(lambda x: function(x).astype(x.dtype))
    why, _ = try_out(sample([port("N", 4, dtype=dtype)], run), run)
    assert why.startswith("a row's 'y' depends on the other rows, if one is of ")


def test_a_row_that_the_network_does_not_take_says_nothing() -> None:
    def refusing(x: Array) -> Array:
        if not np.isfinite(x).all():
            raise InvalidArgument("not a number")
        return x * 2

    assert tried(refusing) == ("", frozenset())


def test_other_rounding_is_no_mixing() -> None:
    noise = np.random.default_rng(1)
    assert tried(lambda x: x * (1 + 1e-5 * noise.standard_normal(x.shape)))[0] == ""


def test_an_output_that_is_the_same_for_every_row_needs_another_that_is_not() -> None:
    def run(inputs: Mapping[str, Value]) -> Mapping[str, Value]:
        return {"y": np.asarray(inputs["x"]), "limit": np.array(3.0)}

    assert try_out(sample([port("N", 4)], run), run) == ("", frozenset(["limit"]))


def test_a_device_that_computes_with_16_bits_rounds_more() -> None:
    run = of(lambda x: x * (1 + 1e-3 * len(x)))
    given = sample([port("N", 4)], run)
    assert "depends on the other rows" in try_out(given, run)[0]
    assert try_out(given, run, precise=False)[0] == ""


def test_the_same_for_all_rows_says_nothing() -> None:
    with pytest.raises(Inconclusive, match="the same for all"):
        tried(lambda x: np.zeros_like(x))


def test_an_output_without_rows_is_found() -> None:
    why, _ = tried(lambda x: x.sum(axis=1)[:1])
    assert "no batch dimension" in why


def test_a_network_that_fails_with_several_rows_says_how() -> None:
    def run(x: Array) -> Array:
        if len(x) > 1:
            raise InvalidArgument("one at a time")
        return x

    assert tried(run)[0] == f"it fails with a batch of {ROWS} rows (one at a time)"


def test_sizes_are_tried_until_the_network_takes_one() -> None:
    def picky(x: Array) -> Array:
        if x.shape[1] != 224:
            raise InvalidArgument("images only")
        return x

    assert sample([port("N", "side")], of(picky)).rows[0].inputs["x"].shape == (1, 224)


def test_a_network_that_takes_nothing_says_nothing() -> None:
    def never(x: Array) -> Array:
        raise InvalidArgument("no")

    with pytest.raises(Inconclusive, match=r"none of the values that were tried \(no\)"):
        sample([port("N", "side")], of(never))


@pytest.mark.parametrize("size", [2**27, 2**63 - 1])
def test_rows_that_would_fill_the_memory_are_not_tried(size: int) -> None:
    with pytest.raises(Inconclusive, match=f"a row has {size} elements; at most 67108864"):
        sample([port("N", size)], of(lambda x: x))


def test_a_smaller_size_is_tried_where_a_larger_one_is_too_large() -> None:
    found = sample([port("N", 2**21, "side")], of(lambda x: x), 1)
    assert found.rows[0].inputs["x"].shape == (1, 2**21, 16)


def test_a_cancelled_run_ends_the_trial() -> None:
    def gone(x: Array) -> Array:
        raise Cancelled("nobody waits")

    with pytest.raises(Cancelled):
        sample([port("N", 2)], of(gone))


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (ir.DataType.INT64, "i"),
        (ir.DataType.BOOL, "b"),
        (ir.DataType.STRING, "O"),
        (ir.DataType.FLOAT16, "f"),
    ],
)
def test_every_type_has_random_values(dtype: ir.DataType, kind: str) -> None:
    (row, *_) = sample([port("N", 8, dtype=dtype)], of(lambda x: x)).rows
    assert row.inputs["x"].dtype.kind == kind
    assert row.inputs["x"].shape == (1, 8)


def test_rows_are_drawn_until_their_results_differ() -> None:
    found = sample([port("N", 4, dtype=ir.DataType.INT64)], of(lambda x: x // 8))
    assert found.different == ROWS


def test_a_longer_signal_is_tried_where_short_ones_give_the_same() -> None:
    found = sample([port("N", "samples")], of(lambda x: x[:, 1000:]))
    assert found.rows[0].inputs["x"].shape == (1, 4096)
