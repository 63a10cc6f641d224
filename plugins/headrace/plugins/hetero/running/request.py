"""One request on its way through the subgraphs, each of which is a part of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from headrace.plugins.hetero.running.others import Other
from headrace.plugins.hetero.running.subgraph import LoadedSubgraph, not_the_callers
from headrace.runtime.errors import HeadraceError, InvalidArgument
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job
from headrace.runtime.network.values import Value, size_bytes
from headrace.runtime.virtual.flow import PartsFlow
from headrace.runtime.virtual.networks import taken_by
from headrace.runtime.virtual.part_job import PartJob, submit
from headrace.runtime.virtual.parts_request import PartsRequest, named
from headrace.runtime.virtual.subgraph_counters import SubgraphCounters


class SubgraphJob(PartJob):
    """The part of a request that one subgraph runs.

    Args:
        at: the subgraph's place among all.
        other: the further device that runs it; None for the subgraph's own.
    """

    __slots__ = ("at", "other")

    kind: ClassVar[str] = "subgraph"

    def __init__(
        self,
        request: Job,
        at: int,
        inputs: Mapping[str, Value],
        done: Callable[[Job], None],
        output_names: tuple[str, ...],
        token: CancelToken,
        *,
        inline: bool,
        other: Other | None = None,
    ) -> None:
        self.at = at
        self.other = other
        super().__init__(request, inputs, done, output_names, token, inline=inline)


class HeteroRequest(PartsRequest):
    """A job, and the subgraphs that run it.

    Args:
        counters: one for each subgraph; empty if nothing is counted.
        constants: outputs that no subgraph computes.
    """

    def __init__(
        self,
        job: Job,
        subgraphs: Sequence[LoadedSubgraph],
        flow: PartsFlow,
        constants: Mapping[str, Value],
        counters: Sequence[SubgraphCounters],
    ) -> None:
        super().__init__(job, flow, constants)
        self._subgraphs = subgraphs
        self._counters = counters

    def _begin(self, at: int, handed: dict[str, Value], *, inline: bool) -> None:
        job, subgraph = self._job, self._subgraphs[at]
        for name in (*subgraph.ends.inputs, *subgraph.defaults):
            if name not in handed and name in job.inputs:  # others may be absent
                handed[name] = job.inputs[name]
        self._run(at, handed, None, inline=inline)

    def _run(
        self, at: int, inputs: Mapping[str, Value], other: Other | None, *, inline: bool
    ) -> None:
        subgraph, names = self._subgraphs[at], self._flow.outputs[at]
        part = SubgraphJob(
            self._job,
            at,
            inputs,
            self._part_ended,
            names,
            self._token.child(),
            inline=inline,
            other=other,
        )
        if part.span is not None:
            part.span.facts["headrace.subgraph"] = subgraph.number
        submit(part, subgraph.executable if other is None else other.executable)

    def _part_ended(self, part: Job) -> None:
        assert isinstance(part, SubgraphJob)
        at, inputs, names = part.at, part.inputs, self._flow.outputs[part.at]
        outputs, error = part.take_outputs()
        if error is not None:
            self._refused(part, inputs, error)
            return
        if self._counters:
            crossed = sum(size_bytes(inputs[name]) for name in self._flow.handed[at])
            self._counters[at].observe(part.execution_seconds, crossed)
        del inputs  # free the arrays: this stack frame lives while other subgraphs run
        wanted = {name: outputs.pop(name) for name in names}
        outputs.clear()
        layers = self._subgraphs[at].profile(part.layers) if part.layers else []
        self._finish(at, wanted, (part,), layers)

    def _refused(
        self, part: SubgraphJob, inputs: Mapping[str, Value], error: BaseException
    ) -> None:
        """If the device refuses the values, has the next device of the list run the part."""
        if not isinstance(error, InvalidArgument) or self._token.error is not None:
            self._fail(self._named(part, error))
            return

        rank = part.other.rank if part.other is not None else 0
        then = partial(self._run_on, part, inputs, error)
        self._subgraphs[part.at].others.after(rank, then)

    def _run_on(
        self,
        part: SubgraphJob,
        inputs: Mapping[str, Value],
        error: InvalidArgument,
        other: Other | None,
    ) -> None:
        """Runs a part on another device, after it has ended with `error` on one."""
        if other is None or self._token.error is not None:
            self._fail(self._named(part, error))
        elif inputs.keys() <= taken_by(other.executable):
            self._run(part.at, inputs, other, inline=False)
        else:
            then = partial(self._run_on, part, inputs, error)
            self._subgraphs[part.at].others.after(other.rank, then)

    def _named(self, part: SubgraphJob, error: BaseException) -> HeadraceError:
        at = part.at
        device = part.other.device if part.other else self._subgraphs[at].device
        placed = named_part(error, self._subgraphs[at].number, len(self._subgraphs), device)
        return not_the_callers(placed, self._flow.handed[at])


def named_part(error: BaseException, number: int, count: int, device: str) -> HeadraceError:
    place = f"subgraph {number} of {count} on {device}"
    return named(error, place, subgraph=str(number), device=device)
