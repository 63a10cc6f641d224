"""Which pipelines can run, and in which order."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from headrace.runtime.errors import HeadraceError, InvalidArgument, NotFound
from headrace.runtime.pipelines.description import StepConstant, read_pipeline
from headrace.runtime.pipelines.order import PipelinePlan, plan_of


def step(name: str, inputs: str, outputs: str, more: str = "") -> str:
    return f"""
[[step]]
name = "{name}"
network = "net"
inputs = {{{inputs}}}
outputs = {{{outputs}}}
{more}
"""


def plan(text: str) -> PipelinePlan:
    return plan_of(read_pipeline(tomllib.loads(text)))


def refused(text: str) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        plan(text)
    return caught.value


def test_a_step_comes_after_those_whose_tensors_it_takes() -> None:
    steps = step("last", 'x="b"', 'c="y"') + step("middle", 'x="a"', 'b="y"')
    made = plan(steps + step("first", 'x="image"', 'a="y"') + '[outputs]\nc = "c"')
    assert [each.name for each in made.steps] == ["first", "middle", "last"]
    assert (made.inputs, made.outputs) == (("image",), ("c",))


def test_a_condition_is_waited_for_like_an_input() -> None:
    steps = step("second", 'x="image"', 'b="y"', 'when = "found"')
    made = plan(steps + step("first", 'x="image"', 'found="y"') + '[outputs]\nb = "b"')
    assert [each.name for each in made.steps] == ["first", "second"]


def test_a_tensor_gets_the_name_of_the_output_that_it_is() -> None:
    steps = step("first", 'x="image"', 'a="y"') + step("second", 'x="a"', 'b="y"')
    made = plan(steps + '[outputs]\nfirst_result = "a"\nresult = "b"')
    assert made.outputs == ("first_result", "result")
    assert made.steps[0].outputs == {"first_result": "y"}
    assert made.steps[1].inputs == {"x": "first_result"}


def test_two_outputs_may_exchange_the_names_of_their_tensors() -> None:
    steps = step("first", 'x="image"', 'a="y"') + step("second", 'x="a"', 'b="y"')
    made = plan(steps + '[outputs]\nb = "a"\na = "b"')
    assert made.steps[0].outputs == {"b": "y"}
    assert made.steps[1].inputs == {"x": "b"}
    assert made.steps[1].outputs == {"a": "y"}


def test_steps_that_wait_for_each_other_are_refused_with_the_way_around() -> None:
    steps = step("p", 'x="c"', 'a="y"') + step("q", 'x="a"', 'b="y"') + step("r", 'x="b"', 'c="y"')
    error = refused(steps + '[outputs]\nc = "c"')
    assert error.message == (
        "takes the tensor 'c', but the steps wait for each other: p -> q -> r -> p"
    )
    assert error.field == "pipeline.toml: step 'p'"


def test_an_error_calls_a_tensor_as_its_file_does_and_not_as_the_output_that_it_is() -> None:
    steps = step("p", 'x="b"', 'a="y"') + step("q", 'x="a"', 'b="y"')
    assert refused(steps + '[outputs]\nresult = "b"').message.startswith("takes the tensor 'b', ")


def test_a_step_that_waits_for_itself_is_refused() -> None:
    error = refused(step("p", 'x="a"', 'a="y"') + '[outputs]\na = "a"')
    assert "'a'" in error.message
    assert "p -> p" in error.message


OUT = '[outputs]\na = "a"'
ONE = step("p", 'x="image"', 'a="y"')


@pytest.mark.parametrize(
    ("text", "kind", "says", "field"),
    [
        (ONE + step("p", 'x="a"', 'b="y"') + OUT, InvalidArgument, "the same name", "step 'p'"),
        (ONE + step("q", 'x="a"', 'a="y"') + OUT, InvalidArgument, "by step 'p'", "step 'q'"),
        (ONE + '[outputs]\nz = "b"', InvalidArgument, "no step makes the tensor 'b'", "outputs.z"),
        (f'inputs = ["img"]{ONE}{OUT}', InvalidArgument, "did you mean 'img'", "step 'p'"),
        (f'inputs = ["image", "b"]{ONE}{OUT}', InvalidArgument, "takes the input 'b'", "inputs"),
        (f'inputs = ["image", "a"]{ONE}{OUT}', InvalidArgument, "step 'p' makes", "inputs"),
        (ONE + '[outputs]\na = "a"\nb = "a"', InvalidArgument, "give it once", "outputs.b"),
        (ONE + '[outputs]\na = "a"\nb = "image"', InvalidArgument, "is an input", "outputs.b"),
        (ONE, InvalidArgument, "needs an output", "outputs"),
        (OUT, InvalidArgument, "at least one", "step"),
        (step("p/q", 'x="image"', 'a="y"') + OUT, InvalidArgument, "not a name", "step 1: name"),
        (step("p", "x=3", 'a="y"') + OUT, InvalidArgument, "name of a tensor", "inputs.x"),
        (step("p", 'x="i"', 'a="y"', 'ech="i"') + OUT, NotFound, "did you mean 'each'", "step 1"),
        (step("p", 'x="i"', 'a="y"', 'each="j"') + OUT, InvalidArgument, "not among", "each"),
        (step("p", 'x="i"', 'a="y"', "each={i=[]}") + OUT, InvalidArgument, "1 to 16", "each.i"),
        (step("p", 'x="i"', 'a="y"', "each={i=[-2]}") + OUT, InvalidArgument, "1 to 16", "each.i"),
        (step("p", 'x="i"', 'a="y"', 'device="CPU"') + OUT, InvalidArgument, "loaded", "step 'p'"),
        (step("p", 'x="i"', 'a="y"', 'model="m"') + OUT, InvalidArgument, "either", "step 'p'"),
        (step("p", "x={value=1}", 'a="y"') + OUT, NotFound, "dtype", "inputs.x.dtype"),
        (
            step("p", 'x={value=[[1],[2,3]], dtype="FP32"}', 'a="y"') + OUT,
            InvalidArgument,
            "not a value of FP32",
            "inputs.x",
        ),
    ],
)
def test_what_is_wrong_is_named(text: str, kind: type, says: str, field: str) -> None:
    error = refused(text)
    assert type(error) is kind
    assert says in error.message
    assert error.field is not None
    assert field in error.field


def test_a_constant_has_the_type_that_it_says() -> None:
    text = step(
        "p", 'x="i", k={value=[1, 2], dtype="INT64"}, s={value="é", dtype="BYTES"}', 'a="y"'
    )
    inputs = plan(text + OUT).steps[0].inputs
    number, letters = inputs["k"], inputs["s"]
    assert isinstance(number, StepConstant)
    assert isinstance(letters, StepConstant)
    assert (number.array.dtype.name, number.array.tolist()) == ("int64", [1, 2])
    assert letters.array.shape == ()


def test_no_more_steps_than_a_server_can_bear() -> None:
    facts: dict[str, Any] = {"step": [{}] * 257, "outputs": {"a": "a"}}
    with pytest.raises(InvalidArgument, match="at most 256"):
        read_pipeline(facts)
