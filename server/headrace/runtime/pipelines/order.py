"""Brings the steps of a pipeline into an order in which they can run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from headrace.runtime.errors import InvalidArgument, did_you_mean
from headrace.runtime.pipelines.description import PipelineDescription, PipelineStep, in_file


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """A pipeline whose steps can run.

    Attributes:
        steps: each comes after the steps whose tensors it takes.
        inputs: the tensors that a request gives.
        outputs: the tensors that a request gets. Their names are those of the pipeline's outputs.
        file: the file that describes the pipeline, for errors.
    """

    steps: tuple[PipelineStep, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    file: str


def plan_of(description: PipelineDescription) -> PipelinePlan:
    """The plan of a pipeline.

    Raises:
        InvalidArgument: steps have the same name, two steps make the same tensor, a tensor is
            missing, or steps wait for each other. The error names the step and the tensor.
    """
    with in_file(description.file):
        return _plan_of(description)


def _plan_of(description: PipelineDescription) -> PipelinePlan:
    steps = description.steps
    makers: dict[str, PipelineStep] = {}
    names: set[str] = set()
    for step in steps:
        if step.name in names:
            raise _wrong("another step has the same name", step)
        names.add(step.name)
        for tensor in step.outputs:
            if tensor in makers:
                raise _wrong(
                    f"tensor {tensor!r} is already made by step {makers[tensor].name!r}", step
                )
            makers[tensor] = step
    inputs = _inputs(description, steps, makers)
    for output, tensor in description.outputs.items():
        if tensor not in makers and tensor not in inputs:
            known = [*makers, *inputs]
            raise InvalidArgument(
                f"no step makes the tensor {tensor!r}{did_you_mean(tensor, known)}",
                field=f"outputs.{output}",
            )
    steps = _named_as_outputs(_in_order(steps, makers), description.outputs)
    return PipelinePlan(steps, inputs, tuple(description.outputs), description.file)


def _inputs(
    description: PipelineDescription,
    steps: tuple[PipelineStep, ...],
    makers: Mapping[str, PipelineStep],
) -> tuple[str, ...]:
    needed = dict.fromkeys(
        tensor for step in steps for tensor in step.reads if tensor not in makers
    )
    if description.inputs is None:
        return tuple(needed)
    for name in description.inputs:
        if name in makers:
            raise InvalidArgument(
                f"step {makers[name].name!r} makes the tensor {name!r}; no request gives it",
                field="inputs",
            )
    for step in steps:
        for tensor in step.reads:
            if tensor not in makers and tensor not in description.inputs:
                known = [*makers, *description.inputs]
                raise _wrong(
                    f"takes the tensor {tensor!r}, which no step makes and no request gives"
                    f"{did_you_mean(tensor, known)}",
                    step,
                )
    for name in description.inputs:
        if name not in needed:
            raise InvalidArgument(f"no step takes the input {name!r}", field="inputs")
    return description.inputs


def _in_order(
    steps: tuple[PipelineStep, ...], makers: Mapping[str, PipelineStep]
) -> tuple[PipelineStep, ...]:
    """The steps in an order in which each has what it takes, otherwise as they were given."""
    waits = {
        step.name: {makers[tensor].name for tensor in step.reads if tensor in makers}
        for step in steps
    }
    followers: dict[str, list[PipelineStep]] = {step.name: [] for step in steps}
    for step in steps:
        for name in waits[step.name]:
            followers[name].append(step)
    ready = [step for step in steps if not waits[step.name]]
    ordered: list[PipelineStep] = []
    while ready:
        step = ready.pop(0)
        ordered.append(step)
        for follower in followers[step.name]:
            waits[follower.name].discard(step.name)
            if not waits[follower.name]:
                ready.append(follower)
    if len(ordered) < len(steps):
        raise _cycle({name: left for name, left in waits.items() if left}, steps, makers)
    return tuple(ordered)


def _cycle(
    waits: Mapping[str, set[str]],
    steps: tuple[PipelineStep, ...],
    makers: Mapping[str, PipelineStep],
) -> InvalidArgument:
    """The error for steps that wait for each other. It names one cycle."""
    by_name = {step.name: step for step in steps}
    at = next(iter(waits))
    path: list[str] = []
    while at not in path:
        path.append(at)
        at = min(waits[at] & waits.keys())
    cycle = path[path.index(at) :]
    told = " -> ".join([cycle[0], *reversed(cycle)])
    step, before = by_name[cycle[0]], cycle[1] if len(cycle) > 1 else cycle[0]
    tensor = next(each for each in step.reads if each in makers and makers[each].name == before)
    return _wrong(f"takes the tensor {tensor!r}, but the steps wait for each other: {told}", step)


def _named_as_outputs(
    steps: tuple[PipelineStep, ...], outputs: Mapping[str, str]
) -> tuple[PipelineStep, ...]:
    """The steps with the tensors that are outputs under the outputs' names."""
    names: dict[str, str] = {}
    for output, tensor in outputs.items():
        if tensor in names:
            raise InvalidArgument(
                f"the tensor {tensor!r} is the output {names[tensor]!r} already; give it once",
                field=f"outputs.{output}",
            )
        names[tensor] = output
    changed = {tensor: output for tensor, output in names.items() if tensor != output}
    made = {tensor for step in steps for tensor in step.outputs}
    read = {tensor for step in steps for tensor in step.reads}
    for tensor, output in changed.items():
        if tensor in read - made:
            raise InvalidArgument(
                f"{tensor!r} is an input of the pipeline, and can only be the output {tensor!r}",
                field=f"outputs.{output}",
            )
        if tensor in made and output in read | made and output not in changed:
            raise InvalidArgument(
                f"another tensor has the name {output!r}; rename one of them",
                field=f"outputs.{output}",
            )
    return tuple(_renamed(step, lambda tensor: changed.get(tensor, tensor)) for step in steps)


def _renamed(step: PipelineStep, name: Callable[[str], str]) -> PipelineStep:
    return replace(
        step,
        inputs={
            key: name(each) if isinstance(each, str) else each for key, each in step.inputs.items()
        },
        outputs={name(tensor): output for tensor, output in step.outputs.items()},
        when=name(step.when) if step.when else "",
    )


def _wrong(message: str, step: PipelineStep) -> InvalidArgument:
    return InvalidArgument(message, field=f"step {step.name!r}")
