"""Shapes are judged once, and what is refused names the layer."""

from __future__ import annotations

import inspect
import json
from typing import Any
from unittest import mock

import numpy as np
import onnx_ir as ir
import pytest

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network.shapes import formulas, ledger
from headrace.runtime.network.shapes.formulas import FUNCTIONS, Formulas
from headrace.runtime.network.shapes.ledger import (
    AT_LEAST,
    AT_MOST,
    EQUAL,
    RELATIONS,
    Ledger,
    Requirement,
)
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


def test_fewer_verdicts_are_remembered_of_a_network_with_many_inputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = judging()
    monkeypatch.setattr(given._program, "inputs", ("x",) * 512)
    monkeypatch.setattr(given, "judge", lambda _: None)
    for columns in range(100):
        given.check({"x": np.ones((1, columns))})
    assert len(given._verdicts) == 32


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


# -- as data --


def by_text(told: Any) -> Any:
    return json.loads(json.dumps(told))


def test_a_ledger_judges_as_before_after_it_was_written_down() -> None:
    given = judging()
    again = Ledger.from_json(by_text(given.to_json()))
    for key in [((2, 3),), ((2, 2),), ((0, 9),), ((1, 6),)]:
        assert again.judge(key) == given.judge(key)
    assert again.to_json() == given.to_json()


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_each_function_and_relation_is_the_same_after_it_was_written_down(function: Any) -> None:
    made = Formulas()
    made.layer = "here"
    count = len(inspect.signature(function).parameters)
    term = made.apply(function, *(made.size_of_input("x", axis) for axis in range(count)))
    assert term is not None
    holds = {AT_LEAST: "too few", AT_MOST: "too many", EQUAL: "other"}
    given = Ledger(
        tuple(Requirement("l", why, relation, term, 2) for relation, why in holds.items())
    )
    again = Ledger.from_json(by_text(given.to_json()))
    sizes = (0, 1, 2, 3, 7, 2**40)
    for key in [(tuple(np.roll(sizes, turn)[:count].tolist()),) for turn in range(len(sizes))]:
        assert again.judge(key) == given.judge(key)


def test_every_function_of_sizes_can_be_written_down() -> None:
    made = [
        each
        for name, each in vars(formulas).items()
        if inspect.isfunction(each)
        and each.__module__ == formulas.__name__
        and set(inspect.get_annotations(each).values()) == {"int"}
    ]
    assert set(made) == set(FUNCTIONS.values())


def test_a_function_that_has_no_name_is_not_written_down() -> None:
    made = Formulas()
    term = made.apply(lambda size: size + 1, made.size_of_input("x", 0))
    assert term is not None
    with pytest.raises(ValueError, match="has no name"):
        Ledger((Requirement("y", "why", EQUAL, term, 1),)).to_json()


_SOUND = {"terms": [["x", 0], ["not_negative", "l", [[0]]]], "requirements": []}
_ASKS = ["y", "why", "equal", [1], 4]


@pytest.mark.parametrize(
    "changes",
    [
        {"terms": None},
        {"terms": [["x", -1]]},
        {"terms": [["x", "0"]]},
        {"terms": [["x", 0, 1]]},
        {"terms": [["eval", "l", [1]]]},
        {"terms": [["plus", "l", [1]]]},
        {"terms": [["plus", "l", [1, [0]]]]},
        {"terms": [["plus", "l", [1, [1]]], ["x", 0]]},
        {"terms": [["x", 0], ["plus", "l", [[0], [-1]]]]},
        {"terms": [["plus", "l", [1, 1.5]]]},
        {"terms": [["plus", "l", [True, 1]]]},
        {"terms": [["plus", "l", [1, 2**80]]]},
        {"requirements": None},
        {"requirements": [_ASKS[:4]]},
        {"requirements": [["y", "why", "never", [1], 4]]},
        {"requirements": [["y", "why", "equal", [2], 4]]},
        {"requirements": [["y", "why", "equal", None, 4]]},
        {"requirements": [[None, "why", "equal", 4, 4]]},
    ],
)
def test_data_that_no_ledger_wrote_is_refused(changes: dict[str, Any]) -> None:
    assert Ledger.from_json({**_SOUND, "requirements": [_ASKS]}).judge(((4,),)) is None
    with pytest.raises(ValueError, match=r"no |neither|not there"):
        Ledger.from_json({**_SOUND, **changes})


def test_the_relations_are_those_that_requirements_have() -> None:
    assert set(RELATIONS.values()) == {AT_LEAST, AT_MOST, EQUAL}
