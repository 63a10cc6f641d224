"""The types and shapes of a pipeline's tensors, and those that cannot fit."""

from __future__ import annotations

import tomllib
from typing import Any

import onnx_ir as ir
import pytest

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network.network import Dimension, Port
from headrace.runtime.pipelines.description import read_pipeline
from headrace.runtime.pipelines.order import plan_of
from headrace.runtime.pipelines.ports import PipelinePorts, StepPorts, check_same, ports_of
from tests.unit.runtime.pipelines.test_order import step

FLOAT, INT, BOOL = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.BOOL


def port(name: str, *shape: Dimension, dtype: ir.DataType = FLOAT, **more: Any) -> Port:
    return Port(name, dtype, shape, **more)


def ports(text: str, **networks: StepPorts) -> PipelinePorts:
    return ports_of(plan_of(read_pipeline(tomllib.loads(text))), networks)


def refused(text: str, **networks: StepPorts) -> str:
    with pytest.raises(InvalidArgument) as caught:
        ports(text, **networks)
    assert caught.value.field is not None
    return f"{caught.value.field}: {caught.value.message}"


TWO = step("p", 'x="image"', 'a="y"') + step("q", 'x="a"', 'b="y"') + '[outputs]\nb = "b"'


def test_a_tensor_has_the_port_of_the_network_that_makes_it() -> None:
    found = ports(
        TWO,
        p=StepPorts((port("x", "N", 3),), (port("y", "N", 4),)),
        q=StepPorts((port("x", "M", 4),), (port("y", "M", dtype=INT),)),
    )
    assert found.tensors["image"] == port("image", None, 3)
    assert found.tensors["b"] == port("b", None, dtype=INT)


def test_an_input_that_two_steps_take_has_the_sizes_that_either_fixes() -> None:
    text = (
        step("p", 'x="image"', 'a="y"')
        + step("q", 'x="image"', 'b="y"')
        + '[outputs]\na="a"\nb="b"'
    )
    found = ports(
        text,
        p=StepPorts((port("x", "N", 3),), (port("y", "N"),)),
        q=StepPorts((port("x", 2, "C"),), (port("y", "N"),)),
    )
    assert found.tensors["image"].shape == (2, 3)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (port("x", "M", 5), "[?, 4], and float[?, 5]"),
        (port("x", "M"), "[?, 4], and float[?]"),
        (port("x", "M", 4, dtype=INT), "float[?, 4], and int64[?, 4]"),
        (port("x", "M", 4, kind="sequence"), "a sequence of float[?, 4]"),
    ],
)
def test_a_tensor_that_cannot_fit_is_refused_with_its_step(wanted: Port, says: str) -> None:
    told = refused(
        TWO,
        p=StepPorts((port("x", "N", 3),), (port("y", "N", 4),)),
        q=StepPorts((wanted,), (port("y", "M"),)),
    )
    assert told.startswith("pipeline.toml: step 'q': the tensor 'a' does not fit its input 'x'")
    assert says in told


def test_what_a_network_does_not_have_is_named() -> None:
    good = StepPorts((port("x"),), (port("y"),))
    assert "no input 'x'; did you mean 'x1'" in refused(
        TWO, p=StepPorts((port("x1"),), (port("y"),)), q=good
    )
    assert "no output 'y' for the tensor 'a'" in refused(
        TWO, p=StepPorts((port("x"),), (port("z"),)), q=good
    )
    assert "input 'k' of its network gets no tensor" in refused(
        TWO, p=StepPorts((port("x"), port("k")), (port("y"),)), q=good
    )


def test_an_optional_input_may_be_left_out() -> None:
    good = StepPorts((port("x"), port("k", optional=True)), (port("y"),), (port("d"),))
    assert "image" in ports(TWO, p=good, q=good).tensors


EACH = step("p", 'x="rows"', 'a="y"', 'each = "rows"') + '[outputs]\na = "a"'


def test_rows_keep_their_axis_if_the_network_s_first_axis_may_be_one() -> None:
    found = ports(EACH, p=StepPorts((port("x", 1, 3),), (port("y", 1, 2),)))
    assert (found.tensors["rows"].shape, found.tensors["a"].shape) == ((None, 3), (None, 2))
    assert (found.rows["p"].kept, found.rows["p"].joined) == (frozenset("x"), frozenset("a"))


def test_rows_lose_their_axis_if_the_network_has_none_for_them() -> None:
    found = ports(EACH, p=StepPorts((port("x", 3),), (port("y", 2),)))
    assert (found.tensors["rows"].shape, found.tensors["a"].shape) == ((None, 3), (None, 2))
    assert (found.rows["p"].kept, found.rows["p"].joined) == (frozenset(), frozenset())


def test_the_rank_of_the_tensor_says_what_its_rows_are() -> None:
    text = (
        step("p", 'x="image"', 'a="y"')
        + step("q", 'x="a"', 'b="y"', 'each = "a"')
        + '[outputs]\nb = "b"'
    )
    found = ports(
        text,
        p=StepPorts((port("x"),), (port("y", "N", 1, 3),)),
        q=StepPorts((port("x", "B", 3),), (port("y", "B", 2),)),
    )
    assert found.rows["q"].kept == frozenset()
    assert found.tensors["b"].shape == (None, None, 2)


AXES = (
    step("p", 'x="places", z="rows"', 'a="y"', "each = {places = [2, -1], rows = [2]}")
    + '[outputs]\na = "a"'
)


def test_a_network_may_run_at_each_place_of_several_axes() -> None:
    network = StepPorts((port("x", 1, 3), port("z", 4)), (port("y", 1),))
    found = ports(AXES, p=network)
    assert found.tensors["places"].shape == (2, None, 1, 3)
    assert found.tensors["rows"].shape == (2, 4)
    assert found.tensors["a"].shape == (2, None, 1)
    assert found.rows["p"].kept == found.rows["p"].joined == frozenset()


def test_axes_of_another_size_are_refused() -> None:
    text = (
        step("p", 'x="image"', 'a="y"')
        + step("q", 'x="a"', 'b="y"', "each = {a = [3]}")
        + '[outputs]\nb = "b"'
    )
    told = refused(
        text,
        p=StepPorts((port("x"),), (port("y", 2, 5),)),
        q=StepPorts((port("x", 5),), (port("y"),)),
    )
    assert "it is float[2, 5], and float[3, 5] is needed" in told


def test_a_sequence_has_no_rows() -> None:
    told = refused(EACH, p=StepPorts((port("x", 3, kind="sequence"),), (port("y", 2),)))
    assert "no plain tensor" in told


WHEN = step("p", 'x="image"', 'a="y"', 'when = "found"') + '[outputs]\na = "a"'


def test_a_condition_that_a_request_gives_is_a_boolean() -> None:
    found = ports(WHEN, p=StepPorts((port("x", 3),), (port("y", 2),)))
    assert found.tensors["found"] == Port("found", BOOL, None)
    assert found.tensors["a"].shape == (None,)


def test_a_condition_of_another_type_is_refused() -> None:
    text = step("q", 'x="image"', 'found="y"') + WHEN
    networks = {"p": StepPorts((port("x"),), (port("y", 2),))}
    told = refused(text, q=StepPorts((port("x"),), (port("y", 2, dtype=BOOL),)), **networks)
    assert "'found' must be one boolean, and is bool[2]" in told
    told = refused(text, q=StepPorts((port("x"),), (port("y"),)), **networks)
    assert "is float[]" in told


def test_a_scalar_cannot_be_empty() -> None:
    told = refused(WHEN, p=StepPorts((port("x", 3),), (port("y"),)))
    assert "output 'y' has no axis" in told


def test_a_constant_has_to_fit() -> None:
    text = step("p", 'x="image", k={value=[1.0], dtype="FP32"}', 'a="y"') + '[outputs]\na = "a"'
    fits = StepPorts((port("x"), port("k", "N")), (port("y"),))
    assert "k" not in ports(text, p=fits).tensors
    told = refused(text, p=StepPorts((port("x"), port("k", 2)), (port("y"),)))
    assert "the value of input 'k' does not fit" in told


def test_a_network_that_took_the_place_of_another_has_to_fit_too() -> None:
    plan = plan_of(read_pipeline(tomllib.loads(TWO)))
    before = StepPorts((port("x", "N", 3),), (port("y", "N", 4),))
    check_same(plan.steps[0], before, StepPorts((port("x", "K", 3),), (port("y", 1, 4),)))
    with pytest.raises(InvalidArgument, match="load the pipeline again"):
        check_same(plan.steps[0], before, StepPorts((port("x", "N", 3),), (port("y", "N", 5),)))
    with pytest.raises(InvalidArgument, match="no output 'y'"):
        check_same(plan.steps[0], before, StepPorts((port("x", "N", 3),), (port("z", "N", 4),)))


def test_elements_of_a_sequence_and_rows_of_a_tensor_are_not_taken_together() -> None:
    makes = StepPorts((port("x", "N"),), (port("y", "M", kind="sequence"), port("z", "N", 3)))
    text = step("p", 'x="image"', 'a="y", b="z"') + step(
        "q", 'x="a", w="b"', 'c="y"', 'each=["a", "b"]'
    )
    takes = StepPorts((port("x", "M"), port("w", 3)), (port("y", "M"),))
    assert "rows of tensors or elements of sequences, not both" in refused(
        text + '[outputs]\nc = "c"', p=makes, q=takes
    )
