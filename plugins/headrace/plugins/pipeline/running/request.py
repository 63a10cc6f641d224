"""One request on its way through the steps of a pipeline, each of which is a part of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import ClassVar

import numpy as np

from headrace.plugins.pipeline.running.rows import RowsRun, empty, gathered, places_of
from headrace.plugins.pipeline.running.step import StepNetwork
from headrace.runtime.errors import FailedPrecondition, HeadraceError, InvalidArgument
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job, LayerProfile
from headrace.runtime.network.network import Port
from headrace.runtime.network.values import Value, size_bytes
from headrace.runtime.pipelines.description import PipelineStep, StepConstant
from headrace.runtime.pipelines.ports import Rows
from headrace.runtime.virtual.flow import Ends, PartsFlow
from headrace.runtime.virtual.part_job import PartJob, submit
from headrace.runtime.virtual.parts_request import PartsRequest, named
from headrace.runtime.virtual.subgraph_counters import SubgraphCounters

MAX_DEPTH = 8
"""How many pipelines may run each other."""
MAX_PARTS = 20_000
"""How many runs one request of a pipeline may need, those of pipelines within it included. Without
this bound a short request could need any number: pipelines that each run another one many times."""


@dataclass(frozen=True, slots=True)
class LoadedStep:
    """A step whose network is loaded.

    Attributes:
        number: from 1, in execution order.
        device: what the metrics call the device of its network.
        ports: of the tensors that it makes.
        rows: how it takes tensors apart; None if its network runs once.
    """

    number: int
    step: PipelineStep
    network: StepNetwork
    device: str
    ports: Mapping[str, Port]
    rows: Rows | None = None

    @property
    def known_as(self) -> str:
        """The network of the server that it runs, with its version."""
        return f"{self.network.name}:{self.step.version}" if self.network.name else ""

    @property
    def ends(self) -> Ends:
        return Ends(self.step.reads, tuple(self.step.outputs))

    def wanted(self, tensors: Sequence[str]) -> tuple[str, ...]:
        """The outputs of its network that make these tensors, each once."""
        return tuple(dict.fromkeys(self.step.outputs[tensor] for tensor in tensors))


def too_deep() -> FailedPrecondition:
    return FailedPrecondition(f"more than {MAX_DEPTH} pipelines run each other; use fewer")


class StepJob(PartJob):
    """What a step, or one row of it, gives its network to run.

    Args:
        at: the step's place among all.
        row: the row that it runs; -1 if the step's network runs once.

    Attributes:
        numbers: numbers the parts of the outermost request.
    """

    __slots__ = ("at", "depth", "numbers", "row")

    kind: ClassVar[str] = "step"

    def __init__(
        self,
        request: Job,
        at: int,
        row: int,
        inputs: Mapping[str, Value],
        done: Callable[[Job], None],
        output_names: tuple[str, ...],
        token: CancelToken,
        *,
        inline: bool,
        depth: int,
        numbers: count[int],
    ) -> None:
        self.at = at
        self.row = row
        self.depth = depth
        self.numbers = numbers
        super().__init__(request, inputs, done, output_names, token, inline=inline)


class PipelineRequest(PartsRequest):
    """A job, and the steps that run it.

    Args:
        counters: one for each step; empty if nothing is counted.
    """

    def __init__(
        self,
        job: Job,
        steps: Sequence[LoadedStep],
        flow: PartsFlow,
        counters: Sequence[SubgraphCounters],
    ) -> None:
        super().__init__(job, flow, {})
        self._steps = steps
        self._counters = counters
        self._depth, self._numbers = 1, count(1)
        if isinstance(job, StepJob):  # of a pipeline that runs this one
            self._depth, self._numbers = job.depth + 1, job.numbers

    def _begin(self, at: int, handed: dict[str, Value], *, inline: bool) -> None:
        try:
            self._run(at, handed, inline=inline)
        except Exception as error:  # noqa: BLE001 - as the outcome of the part
            self._fail(self._named(at, error))

    def _run(self, at: int, handed: dict[str, Value], *, inline: bool) -> None:
        loaded = self._steps[at]
        step = loaded.step
        if step.when and not self._holds(step.when, handed):
            outputs = {name: empty(loaded.ports[name]) for name in self._flow.outputs[at]}
            self._finish(at, outputs, (), [])
            return
        inputs: dict[str, Value] = {}
        for name, given in step.inputs.items():
            if isinstance(given, StepConstant):
                inputs[name] = given.array
            elif given in handed:
                inputs[name] = handed[given]
            elif given in self._job.inputs:  # others may be absent
                inputs[name] = self._job.inputs[given]
        if loaded.rows is None:
            self.submit_part(at, -1, inputs, self._part_ended, self._token, inline=inline)
            return
        places = places_of(step, loaded.rows, inputs)
        if 0 in places:
            outputs = {name: empty(loaded.ports[name], places) for name in self._flow.outputs[at]}
            self._finish(at, outputs, (), [])
            return
        RowsRun(self, at, loaded.rows, step, inputs, places, self._token.child()).start(
            inline=inline
        )

    def submit_part(
        self,
        at: int,
        row: int,
        inputs: Mapping[str, Value],
        done: Callable[[Job], None],
        token: CancelToken,
        *,
        inline: bool,
    ) -> None:
        """Gives the network of a step all that it takes, or one row of it."""
        loaded = self._steps[at]
        part = StepJob(
            self._job,
            at,
            row,
            inputs,
            done,
            loaded.wanted(self._flow.outputs[at]),
            token.child(),
            inline=inline,
            depth=self._depth,
            numbers=self._numbers,
        )
        if part.depth > MAX_DEPTH:
            part.fail(too_deep())
            return
        if next(self._numbers) > MAX_PARTS:  # atomic
            part.fail(
                FailedPrecondition(
                    f"the request needs more than {MAX_PARTS} runs of networks; send fewer rows"
                )
            )
            return
        if part.span is not None:
            part.span.name = f"step {loaded.step.name}"
            if row >= 0:
                part.span.facts["headrace.row"] = row
        submit(part, loaded.network)

    def rows_ended(
        self,
        at: int,
        parts: Sequence[Job],
        outputs: Sequence[dict[str, Value]],
        places: tuple[int, ...],
    ) -> None:
        """Puts the outputs of all rows together."""
        loaded = self._steps[at]
        assert loaded.rows is not None
        try:
            made = {
                name: gathered(
                    name,
                    [each[loaded.step.outputs[name]] for each in outputs],
                    loaded.rows,
                    places,
                )
                for name in self._flow.outputs[at]
            }
        except Exception as error:  # noqa: BLE001 - a want of memory, too
            self._fail(self._named(at, error))
            return
        seconds = sum(each.execution_seconds for each in parts)
        layers = [layer for each in parts for layer in self._profile(at, each)]
        self._count(at, seconds, made)
        self._finish(at, made, parts, layers)

    def row_failed(self, at: int, row: int, error: BaseException) -> None:
        """Ends the request, because a row has failed, when none of the step's rows is left."""
        self._fail(self._named(at, error, row))

    # -- inside --

    def _holds(self, tensor: str, handed: Mapping[str, Value]) -> bool:
        value = handed[tensor] if tensor in handed else self._job.inputs.get(tensor)
        if not isinstance(value, np.ndarray) or value.dtype != np.bool_ or value.size != 1:
            told = (
                f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else "absent"
            )
            message = f"the condition {tensor!r} must be one boolean, and is {told}"
            if tensor in self._job.inputs:
                raise InvalidArgument(message, field=f"inputs[{tensor!r}]")
            raise FailedPrecondition(message)
        return bool(value.reshape(-1)[0])

    def _part_ended(self, part: Job) -> None:
        assert isinstance(part, StepJob)
        at = part.at
        loaded = self._steps[at]
        made, error = part.take_outputs()
        if error is not None:
            self._fail(self._named(at, error))
            return
        outputs = {name: made[loaded.step.outputs[name]] for name in self._flow.outputs[at]}
        made.clear()
        layers = self._profile(at, part)
        self._count(at, part.execution_seconds, outputs)
        self._finish(at, outputs, (part,), layers)

    def _profile(self, at: int, part: Job) -> list[LayerProfile]:
        """The profiles of its layers, as layers of the step."""
        if not part.layers:
            return []
        loaded = self._steps[at]
        name = loaded.step.name
        return [
            replace(layer, layer=f"{name}/{layer.layer}", origins=(name,), subgraph=loaded.number)
            for layer in part.layers
        ]

    def _count(self, at: int, seconds: float, outputs: Mapping[str, Value]) -> None:
        if self._counters:
            self._counters[at].observe(seconds, sum(map(size_bytes, outputs.values())))

    def _named(self, at: int, error: BaseException, row: int = -1) -> HeadraceError:
        """The error of a step, which names the step, and blames the caller only for what the caller
        gave."""
        loaded = self._steps[at]
        step = loaded.step
        place = f"step {step.name!r}{f', row {row}' if row >= 0 else ''} on {loaded.device}"
        placed = named(error, place, step=step.name, device=loaded.device)
        if not isinstance(placed, InvalidArgument):
            return placed
        for name, given in (*step.inputs.items(), (step.when, step.when)):
            field = f"inputs[{name!r}]"
            if placed.field and placed.field.startswith(field):
                if isinstance(given, str) and given in self._job.inputs:
                    placed.field = f"inputs[{given!r}]{placed.field[len(field) :]}"
                    return placed
                break
        refused = FailedPrecondition(placed.message, metadata=placed.metadata)
        refused.__cause__ = error
        return refused
