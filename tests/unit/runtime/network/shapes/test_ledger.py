"""Shapes are judged once, and what is refused names the layer."""

from __future__ import annotations

from unittest import mock

import numpy as np
import onnx_ir as ir
import pytest

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network.shapes import ledger
from headrace.runtime.network.shapes.ledger import AT_LEAST, EQUAL, Ledger, Requirement
from headrace.runtime.network.shapes.sizes import Sizes
from headrace.testing.case import network_of


def values_of(text: str) -> tuple[Sizes, dict[str, ir.Value]]:
    model = network_of(text).model
    values = {value.name or "": value for node in model.graph for value in node.outputs}
    return Sizes(model), values


def judging() -> Ledger:
    """Takes `x` if it has at least six elements."""
    sizes, values = values_of(
        "g (float[n, t] x, float[n] z) => (float[1, m] y) { s = Flatten<axis = 0>(x) y = Neg(s) }"
    )
    shape = sizes.of(values["y"])
    assert shape is not None
    assert shape[1] is not None
    return Ledger((Requirement("y", "it is too short", AT_LEAST, shape[1], 6),))


def test_shapes_that_meet_every_requirement_pass() -> None:
    judging().check({"x": np.ones((2, 3)), "z": np.ones(2)})


def test_shapes_that_do_not_are_refused_with_the_layer_and_the_reason() -> None:
    with pytest.raises(InvalidArgument, match="layer 'y': it is too short") as refused:
        judging().check({"x": np.ones((2, 2)), "z": np.ones(2)})
    assert refused.value.field == "inputs"


def test_shapes_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given = judging()
    judge = mock.Mock(wraps=given.judge)
    monkeypatch.setattr(given, "judge", judge)
    for _ in range(3):
        given.check({"x": np.ones((2, 3))})
        with pytest.raises(InvalidArgument):
            given.check({"x": np.ones((1, 3))})
    assert judge.mock_calls == [mock.call(((2, 3),)), mock.call(((1, 3),))]


def test_the_shapes_that_were_used_least_recently_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledger, "_REMEMBERED", 2)
    given = judging()
    judge = mock.Mock(wraps=given.judge)
    monkeypatch.setattr(given, "judge", judge)
    for columns in (6, 7, 6, 8, 6, 7):
        given.check({"x": np.ones((1, columns))})
    assert judge.mock_calls == [mock.call(((1, columns),)) for columns in (6, 7, 8, 7)]


def test_only_inputs_that_a_requirement_speaks_of_count() -> None:
    judging().check({"x": np.ones((2, 3)), "z": None})


def test_sizes_that_no_run_takes_are_refused() -> None:
    sizes, values = values_of(
        "g (float[n] x, float[m] z) => (float[a] y) { t = Add(x, z) y = Neg(t) }"
    )
    shape = sizes.of(values["y"])
    assert shape is not None
    assert shape[0] is not None
    given = Ledger((Requirement("y", "it is not four", EQUAL, shape[0], 4),))
    given.check({"x": np.ones(4), "z": np.ones(1)})
    with pytest.raises(InvalidArgument, match="layer 't': the shapes of the inputs do not fit"):
        given.check({"x": np.ones(4), "z": np.ones(2)})
