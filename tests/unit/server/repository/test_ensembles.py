"""Ensembles of Triton, as their files describe them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.runtime.errors import HeadraceError, InvalidArgument, Unimplemented
from headrace.runtime.pipelines.order import plan_of
from headrace.server.repository.model_config import ModelSettings, read_text

STEPS = """
ensemble_scheduling {
  step [
    { model_name: "classify" model_version: 3
      input_map { key: "x" value: "prepared" }
      output_map { key: "y" value: "SCORES" } },
    { model_name: "prepare" model_version: -1
      input_map { key: "raw" value: "IMAGE" }
      output_map { key: "y" value: "prepared" } }
  ]
}
"""
ENDS = """
platform: "ensemble"
max_batch_size: 8
input [ { name: "IMAGE" data_type: TYPE_UINT8 dims: [ 3, -1 ] } ]
output [ { name: "SCORES" data_type: TYPE_FP32 dims: [ 10 ] } ]
"""


def read(text: str) -> ModelSettings:
    return read_text(text.encode(), "both", Path("/nonexistent"))


def test_an_ensemble_is_a_pipeline() -> None:
    settings = read(ENDS + STEPS)
    assert settings.pipeline is not None
    plan = plan_of(settings.pipeline)
    assert (settings.device, settings.max_batch_size) == ("PIPELINE", 8)
    assert (plan.inputs, plan.outputs) == (("IMAGE",), ("SCORES",))
    assert [(each.network, each.version) for each in plan.steps] == [
        ("prepare", ""),
        ("classify", "3"),
    ]
    assert plan.steps[1].inputs == {"x": "prepared"}


def test_a_model_may_be_in_several_steps() -> None:
    twice = STEPS.replace('"prepare"', '"classify"').replace('"raw"', '"x"')
    pipeline = read(ENDS + twice).pipeline
    assert pipeline is not None
    assert [each.name for each in pipeline.steps] == ["classify", "classify-2"]


def test_steps_that_do_not_fit_together_are_a_fault_of_the_file() -> None:
    pipeline = read(ENDS + STEPS.replace('"prepared"', '"other"', 1)).pipeline
    assert pipeline is not None
    with pytest.raises(InvalidArgument, match="takes the tensor 'other'") as caught:
        plan_of(pipeline)
    assert caught.value.field == "config.pbtxt: step 'classify'"


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        (ENDS, InvalidArgument, "ensemble_scheduling has no step"),
        (f'name: "other" {ENDS}{STEPS}', InvalidArgument, "name is 'other'"),
        (ENDS.replace("output", "input") + STEPS, InvalidArgument, "output is missing"),
        (f"{ENDS}{STEPS}instance_group {{ count: 2 }}", Unimplemented, "instance_group"),
        (
            ENDS + STEPS.replace("model_version: 3", 'model_namespace: "n"'),
            Unimplemented,
            "ensemble_scheduling.step.model_namespace",
        ),
        (ENDS + STEPS.replace('"classify"', '""'), InvalidArgument, "model_name is missing"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(text: str, kind: type, says: str) -> None:
    with pytest.raises(HeadraceError) as caught:
        read(text)
    assert type(caught.value) is kind
    assert says in caught.value.message
    assert caught.value.field == "config.pbtxt"
