"""The list of what OPENVINO claims is what `make claims` writes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from headrace.plugins.openvino.claims.allowed import ALLOWED
from headrace.plugins.openvino.claims.forms import LayerForm
from headrace.plugins.openvino.claims.table import Claims
from tools.claims.__main__ import layers, telling, types_of
from tools.claims.layer import Layer
from tools.claims.neighbours import converted, neighbours
from tools.claims.pool import try_all
from tools.claims.reference import Reference
from tools.claims.seeds import seed
from tools.claims.summary import row, rows
from tools.claims.trial import Trial, Verdict

OPERATOR = "LogSoftmax"


@pytest.mark.long
def test_a_sample_of_the_list_is_made_again_as_it_is() -> None:
    trials: list[Trial] = []
    try_all(layers([OPERATOR]), "CPU", 1, lambda _, trial: trials.append(trial))
    listed = [each for each in Claims(ALLOWED).rows.values() if each.operator == OPERATOR]
    assert sorted(map(str, rows(trials))) == sorted(map(str, listed))


def test_neighbours_are_of_other_sets_types_ranks_and_constants() -> None:
    added = seed("(float[2,3]; float[2,3]) => (y) Add @14")
    found = [*neighbours(added, {})]
    assert {each.opset for each in found} >= {14, 13, 12}
    assert len({each.inputs[0].dtype for each in found if each.inputs[0] is not None}) > 3
    assert {each.inputs[0].ndim for each in found if each.inputs[0] is not None} >= {0, 1, 2, 6}
    assert {each.constants for each in found} == {*map(frozenset, ((), (0,), (1,)))}


def test_inputs_of_one_type_keep_one() -> None:
    raised = seed("(float[2]; float[2]) => (y) Pow @15")
    assert all(
        one is not None and other is not None and one.dtype == other.dtype
        for one, other in (each.inputs for each in neighbours(raised, {}))
    )


def test_a_scalar_in_another_type_is_an_array() -> None:
    for name in ("int32", "float16", "float64", "bool"):
        assert isinstance(converted(np.array(2.5, np.float32), np.dtype(name)), np.ndarray)


def test_of_layers_that_have_nothing_new_two_are_tried() -> None:
    line, other = "(float[2,3]) => (y) Relu @14", seed("(float[2,3,4]) => (y) Relu @14")
    alike = [seed(line) for _ in range(5)]
    assert [*telling([*alike, other], types_of, 2, lambda _: True)] == [*alike[:2], other]


def test_layers_that_are_not_valid_do_not_keep_others_from_a_trial() -> None:
    alike = [seed("(float[2,3]) => (y) Relu @14") for _ in range(3)]
    assert [*telling(alike, types_of, 1, lambda layer: layer is not alike[0])] == [alike[1]]


def test_what_onnx_runtime_does_not_run_is_not_tried() -> None:
    with Reference() as reference:
        assert reference.is_valid(seed("(float[2,3]; float[3,2]) => (y) MatMul @13"))
        assert not reference.is_valid(seed("(float[2,3]; float[2,3]) => (y) MatMul @13"))


def test_what_became_an_input_is_an_attribute_in_older_sets() -> None:
    summed = seed("(float[2,3]; int64[1] = 1) => (y) ReduceSum @13")
    older = [each for each in neighbours(summed, {}) if each.opset == 12]
    assert older
    assert all(len(each.inputs) == 1 for each in older)
    assert [1] in [each.attribute("axes") for each in older]


def test_a_layer_of_a_type_that_the_device_does_not_take_does_not_end_the_process() -> None:
    cast = seed("(float[2]) => (y) Cast<to=1> @25")
    four_bits = cast.changed("int4", inputs=(np.array([1, 2], ml_dtypes.int4),))
    found: list[Verdict] = []
    try_all(iter([[four_bits]]), "CPU", 1, lambda _, trial: found.append(trial.verdict))
    assert found == [Verdict.FAILED]


@pytest.fixture
def right() -> list[Trial]:
    return [trial(since, rank) for since in (7, 13) for rank in (1, 2, 3)]


def trial(since: int, rank: int, verdict: Verdict = Verdict.RIGHT) -> Trial:
    return Trial(verdict, LayerForm("Foo", since, "f32>f32", "0", "-", rank))


def test_what_is_wrong_in_one_set_is_not_claimed_in_that_set(right: list[Trial]) -> None:
    found = row("Foo", "f32>f32", [*right, trial(7, 1, Verdict.WRONG), trial(7, 2, Verdict.WRONG)])
    assert found is not None
    assert found.since == {13}
    assert found.ranks == {1, 2, 3}


def test_what_is_wrong_with_some_axes_is_not_claimed_with_them(right: list[Trial]) -> None:
    wrong = [trial(since, 5, Verdict.ENDED) for since in (7, 13)]
    found = row("Foo", "f32>f32", [*right, *wrong])
    assert found is not None
    assert found.since == {7, 13}
    assert 5 not in found.ranks


def test_what_lies_between_two_that_were_right_is_claimed_unless_it_was_wrong() -> None:
    wrong = [trial(14, 4, Verdict.WRONG), trial(19, 3, Verdict.WRONG)]
    found = row("Abs", "f32>f32", [trial(6, 2), trial(13, 6)])
    assert found is not None
    assert found.ranks == {2, 3, 4, 5, 6}
    found = row("Relu", "f32>f32", [trial(6, 2), trial(14, 6), *wrong])
    assert found is not None
    assert found.since == {6, 13, 14}
    assert 4 not in found.ranks


def test_a_refusal_before_a_run_harms_nothing_and_proves_nothing(right: list[Trial]) -> None:
    found = row("Foo", "f32>f32", [*right, trial(14, 2, Verdict.REFUSED)])
    assert found is not None
    assert found.since == {7, 13}
    assert row("Foo", "f32>f32", [trial(7, 1, Verdict.REFUSED)]) is None


def test_a_layer_keeps_the_values_of_its_text() -> None:
    layer: Layer = seed("(int64[4] = 1 2 3 4; int64 = 2) => (y) Gather<axis=0> @13")
    first, second = layer.inputs
    assert first is not None
    assert second is not None
    assert first.tolist() == [1, 2, 3, 4]
    assert second == 2
    assert layer.attribute("axis") == 0
