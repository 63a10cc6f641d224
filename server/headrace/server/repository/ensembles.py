"""Ensembles of Triton as pipelines, and pipelines as ensembles."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network.network import Network
from headrace.runtime.pipelines.description import (
    MAX_STEPS,
    PipelineDescription,
    PipelineStep,
)
from headrace.runtime.pipelines.model import plan_in

PLATFORM: Final = "ensemble"
_NEWEST: Final = -1


def read_ensemble(config: oip.ModelConfig, file: str) -> PipelineDescription:
    """The pipeline that an ensemble is.

    Args:
        file: where the configuration stands, for errors.

    Raises:
        InvalidArgument: a value is wrong.
    """
    steps: list[PipelineStep] = []
    if len(config.ensemble_scheduling.step) > MAX_STEPS:
        raise _wrong("ensemble_scheduling", f"has more than {MAX_STEPS} steps")
    for said in config.ensemble_scheduling.step:
        steps.append(_step(said, {step.name for step in steps}))
    if not steps:
        raise _wrong("ensemble_scheduling", "has no step")
    outputs = {each.name: each.name for each in config.output}
    if not outputs:
        raise _wrong("output", "is missing")
    inputs = tuple(each.name for each in config.input)
    return PipelineDescription(tuple(steps), outputs, inputs, file)


def _step(said: Any, taken: Collection[str]) -> PipelineStep:
    where = "ensemble_scheduling.step"
    if not said.model_name:
        raise _wrong(f"{where}.model_name", "is missing")
    if said.model_version < _NEWEST:
        raise _wrong(f"{where}.model_version", f"is {said.model_version}; give -1, or a version")
    version = str(said.model_version) if said.model_version > 0 else ""
    outputs: dict[str, str] = {}
    for output, tensor in sorted(said.output_map.items()):
        if tensor in outputs:
            raise _wrong(f"{where}.output_map", f"makes the tensor {tensor!r} twice")
        outputs[tensor] = output
    step = PipelineStep(
        said.model_name,
        said.model_name,
        version,
        inputs=dict(sorted(said.input_map.items())),
        outputs=outputs,
    )
    number = 2
    while step.name in taken:
        step = replace(step, name=f"{said.model_name}-{number}")
        number += 1
    return step


def ensemble_of(network: Network) -> oip.ModelEnsembling | None:
    """A pipeline as an ensemble; None if an ensemble cannot say what its steps do."""
    said = oip.ModelEnsembling()
    for step in plan_in(network)[0].steps:
        tensors = {name: each for name, each in step.inputs.items() if isinstance(each, str)}
        if step.model or step.each or step.when or len(tensors) < len(step.inputs):
            return None
        outputs = {output: tensor for tensor, output in step.outputs.items()}
        said.step.add(
            model_name=step.network,
            model_version=int(step.version or _NEWEST),
            input_map=tensors,
            output_map=outputs,
        )
    return said


def _wrong(name: str, message: str) -> InvalidArgument:
    return InvalidArgument(f"the configuration's {name} {message}")
