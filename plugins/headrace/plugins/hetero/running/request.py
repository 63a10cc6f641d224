"""One request on its way through the subgraphs: a state machine that completions advance.

It has no thread. The thread that submits the request starts the subgraphs that wait for nothing;
the thread that finishes a subgraph starts those that waited only for it. So independent subgraphs
run at the same time, and the next request enters the first device while this one is on the second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from headrace.plugins.hetero.running.flow import SubgraphFlow
from headrace.plugins.hetero.running.others import Other
from headrace.plugins.hetero.running.subgraph import (
    LoadedSubgraph,
    SubgraphCounters,
    named,
    not_the_callers,
)
from headrace.runtime.errors import Cancelled, HeadraceError, InvalidArgument
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.inline_budget import LIMIT_SECONDS
from headrace.runtime.execution.job import Job, LayerProfile
from headrace.runtime.execution.trampoline import Trampoline
from headrace.runtime.network.values import Value, size_bytes
from headrace.runtime.virtual.networks import taken_by
from headrace.runtime.virtual.part_job import PartJob, submit


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


class HeteroRequest:
    """A job and its parts. Thread-safe: `_lock` guards all fields that change. No thread submits,
    cancels or settles a part while it holds the lock.

    The job ends when no part is left on any device, even after a failure. Until then a backend may
    still read its inputs.

    Args:
        counters: one for each subgraph; empty if nothing is counted.
        constants: outputs that no subgraph computes.
    """

    def __init__(
        self,
        job: Job,
        subgraphs: Sequence[LoadedSubgraph],
        flow: SubgraphFlow,
        constants: dict[str, Value],
        counters: Sequence[SubgraphCounters],
    ) -> None:
        self._job = job
        self._subgraphs = subgraphs
        self._flow = flow
        self._constants = constants
        self._counters = counters
        self._lock = threading.Lock()
        self._token = job.token.child()
        self._values: dict[str, Value] = {}  # between subgraphs
        self._reads = dict(flow.reads)
        self._waits = list(flow.waits)
        self._unfinished = len(flow.first)  # parts that are on a device, or about to be
        self._layers: dict[int, list[LayerProfile]] = {}
        self._failure: HeadraceError | None = None
        # A thread may run several tiny subgraphs, for no longer than one tiny network may take.
        self._trampoline: Trampoline[int] = Trampoline(inline_seconds=LIMIT_SECONDS)

    def start(self) -> None:
        self._job.observe(self._say_where)
        if self._flow.count:
            self._go_on(self._flow.first, inline=self._job.may_run_inline)
        else:
            self._end()

    # -- on the way --

    def _go_on(self, ready: Sequence[int], *, inline: bool) -> None:
        self._trampoline(self._submit, ready, inline=inline)

    def _submit(self, at: int, inline: bool) -> None:
        job, subgraph = self._job, self._subgraphs[at]
        with self._lock:
            inputs = {name: self._values[name] for name in self._flow.handed[at]}
        for name in (*subgraph.ends.inputs, *subgraph.defaults):
            if name not in inputs and name in job.inputs:  # others may be absent
                inputs[name] = job.inputs[name]
        self._run(at, inputs, None, inline=inline)

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
        at, inputs = part.at, part.inputs
        outputs, error = part.take_outputs(self._flow.outputs[at])
        if error is not None:
            self._failed(part, inputs, error)
            return
        with self._lock:
            self._take(part, outputs)
            self._free(at)
            ready = self._released(at) if self._failure is None else []
            self._unfinished += len(ready) - 1
            ended = not self._unfinished
        self._count(at, part, inputs)
        del inputs, outputs  # free the arrays: this stack frame lives while other subgraphs run
        if ended:
            self._end()
        elif ready:
            self._go_on(ready, inline=True)

    def _failed(self, part: SubgraphJob, inputs: Mapping[str, Value], error: BaseException) -> None:
        """If the device refuses the values, has the next device of the list run the part."""
        if not isinstance(error, InvalidArgument) or self._token.error is not None:
            self._fail(part, error)
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
            self._fail(part, error)
        elif inputs.keys() <= taken_by(other.executable):
            self._run(part.at, inputs, other, inline=False)
        else:
            then = partial(self._run_on, part, inputs, error)
            self._subgraphs[part.at].others.after(other.rank, then)

    def _fail(self, part: SubgraphJob, error: BaseException) -> None:
        with self._lock:
            is_first = self._failure is None
            if is_first:
                self._failure = self._named(part, error)
            self._unfinished -= 1
            ended = not self._unfinished
        if is_first:
            self._token.cancel(Cancelled("another subgraph of the request failed"))
        if ended:
            self._end()

    def _take(self, part: SubgraphJob, outputs: dict[str, Value]) -> None:
        job, at = self._job, part.at
        self._values.update((name, outputs[name]) for name in self._flow.outputs[at])
        job.prepared = job.prepared or part.prepared
        job.inferred = max(job.inferred, part.inferred)
        if part.layers:
            self._layers[at] = self._subgraphs[at].profile(part.layers)

    def _free(self, at: int) -> None:
        """Drops the values that no other subgraph reads after this one."""
        for name in self._flow.handed[at]:
            self._reads[name] -= 1
            if not self._reads[name]:
                del self._values[name]

    def _released(self, at: int) -> list[int]:
        """The subgraphs that waited for this one last."""
        ready = []
        for follower in self._flow.followers[at]:
            self._waits[follower] -= 1
            if not self._waits[follower]:
                ready.append(follower)
        return ready

    def _count(self, at: int, part: SubgraphJob, inputs: Mapping[str, Value]) -> None:
        if self._counters:
            crossed = sum(size_bytes(inputs[name]) for name in self._flow.handed[at])
            self._counters[at].observe(part.execution_seconds, crossed)

    # -- the end --

    def _end(self) -> None:
        """No part is left, so no other thread reads the fields."""
        job = self._job
        self._token.close()
        for at in sorted(self._layers):
            job.layers += self._layers[at]
        if self._failure is not None:
            self._values.clear()
            job.fail(self._failure)
            return
        job.outputs = {name: self._output(name) for name in job.output_names}
        self._values.clear()
        job.complete()

    def _output(self, name: str) -> Value:
        if name in self._values:
            return self._values[name]
        return copied(self._job.inputs[name] if name in self._job.inputs else self._constants[name])

    def _named(self, part: SubgraphJob, error: BaseException) -> HeadraceError:
        at = part.at
        number = self._subgraphs[at].number
        device = part.other.device if part.other else self._subgraphs[at].device
        place = f"subgraph {number} of {len(self._subgraphs)} on {device}"
        placed = named(error, place, subgraph=str(number), device=device)
        return not_the_callers(placed, self._flow.handed[at])

    def _say_where(self, job: Job) -> None:
        """Replaces the reason of a cancelled request with the error that names the subgraph."""
        if job.error is not None and type(self._failure) is type(job.error):
            job.error = self._failure


def copied(value: Value) -> Value:
    """A copy of the value."""
    if isinstance(value, list):
        return [copied(element) for element in value]
    return None if value is None else np.array(value)
