"""One request on its way through its parts: a state machine that completions advance.

It has no thread. The thread that submits the request starts the parts that wait for nothing; the
thread that finishes a part starts those that waited only for it. So independent parts run at the
same time, and the next request enters the first device while this one is on the second.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from headrace.runtime.errors import Cancelled, HeadraceError, Internal
from headrace.runtime.execution.inline_budget import LIMIT_SECONDS
from headrace.runtime.execution.job import Job, LayerProfile
from headrace.runtime.execution.trampoline import Trampoline
from headrace.runtime.network.values import Value
from headrace.runtime.virtual.flow import PartsFlow


class PartsRequest(ABC):
    """A job and its parts. Thread-safe: `_lock` guards all fields that change. No thread submits,
    cancels or settles a job while it holds the lock.

    The job ends when no part is left on any device, even after a failure. Until then a backend may
    still read its inputs. A part ends with one call of `_finish` or of `_fail`.

    Args:
        constants: outputs that no part computes.
    """

    def __init__(self, job: Job, flow: PartsFlow, constants: Mapping[str, Value]) -> None:
        self._job = job
        self._flow = flow
        self._constants = constants
        self._lock = threading.Lock()
        self._token = job.token.child()
        self._values: dict[str, Value] = {}  # between parts
        self._reads = dict(flow.reads)
        self._waits = list(flow.waits)
        self._unfinished = len(flow.first)  # parts that are on a device, or about to be
        self._layers: dict[int, list[LayerProfile]] = {}
        self._failure: HeadraceError | None = None
        # A thread may run several tiny parts, for no longer than one tiny network may take.
        self._trampoline: Trampoline[int] = Trampoline(inline_seconds=LIMIT_SECONDS)

    def start(self) -> None:
        self._job.observe(self._say_where)
        if self._flow.count:
            self._go_on(self._flow.first, inline=self._job.may_run_inline)
        else:
            self._end()

    # -- hook --

    @abstractmethod
    def _begin(self, at: int, handed: dict[str, Value], *, inline: bool) -> None:
        """Begins a part and returns.

        Args:
            at: its place in the flow.
            handed: the tensors that it takes from other parts.
        """

    # -- on the way --

    def _go_on(self, ready: Sequence[int], *, inline: bool) -> None:
        self._trampoline(self._submit, ready, inline=inline)

    def _submit(self, at: int, inline: bool) -> None:
        with self._lock:
            handed = {name: self._values[name] for name in self._flow.handed[at]}
        self._begin(at, handed, inline=inline)

    def _finish(
        self, at: int, outputs: dict[str, Value], jobs: Sequence[Job], layers: list[LayerProfile]
    ) -> None:
        """Takes the outputs of a part that has ended, and goes on.

        Args:
            outputs: by tensor. It is emptied, because stack frames of callers live while others
                run.
            jobs: what the part ran, for their time stamps.
            layers: what its layers cost.
        """
        job = self._job
        with self._lock:
            self._values.update(outputs)
            outputs.clear()
            for inner_job in jobs:
                job.prepared = job.prepared or inner_job.prepared
                job.inferred = max(job.inferred, inner_job.inferred)
            if layers:
                self._layers[at] = layers
            self._free(at)
            ready = self._released(at) if self._failure is None else []
            self._unfinished += len(ready) - 1
            ended = not self._unfinished
        if ended:
            self._end()
        elif ready:
            self._go_on(ready, inline=True)

    def _fail(self, error: HeadraceError) -> None:
        """Takes the error of a part that has ended."""
        with self._lock:
            is_first = self._failure is None
            if is_first:
                self._failure = error
            self._unfinished -= 1
            ended = not self._unfinished
        if is_first:
            self._token.cancel(Cancelled("another part of the request failed"))
        if ended:
            self._end()

    def _free(self, at: int) -> None:
        """Drops the values that no other part reads after this one."""
        for name in self._flow.handed[at]:
            self._reads[name] -= 1
            if not self._reads[name]:
                del self._values[name]

    def _released(self, at: int) -> list[int]:
        """The parts that waited for this one last."""
        ready = []
        for follower in self._flow.followers[at]:
            self._waits[follower] -= 1
            if not self._waits[follower]:
                ready.append(follower)
        return ready

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
        error: BaseException | None = None
        try:
            job.outputs = {name: self._output(name) for name in job.output_names}
        except Exception as raised:  # noqa: BLE001 - a want of memory must end the job, too
            error = raised
        self._values.clear()
        job.settle(error)

    def _output(self, name: str) -> Value:
        if name in self._values:
            return self._values[name]
        return copied(self._job.inputs[name] if name in self._job.inputs else self._constants[name])

    def _say_where(self, job: Job) -> None:
        """Replaces the reason of a cancelled request with the error that names the part."""
        if job.error is not None and type(self._failure) is type(job.error):
            job.error = self._failure


def copied(value: Value) -> Value:
    """A copy of the value."""
    if isinstance(value, list):
        return [copied(element) for element in value]
    return None if value is None else np.array(value)


def named(error: BaseException, place: str, **facts: str) -> HeadraceError:
    """A copy of the error that also says where it happened. It has the same class; an error that
    is not a HeadraceError becomes an Internal.

    Args:
        place: for example ``subgraph 2 of 3 on CPU.0``.
        facts: the place as metadata, for programs to read.
    """
    if isinstance(error, Internal) or not isinstance(error, HeadraceError):
        text = error.message if isinstance(error, HeadraceError) else repr(error)
        copy: HeadraceError = Internal(f"{place}: {text}", metadata={"place": place, **facts})
    else:
        # The constructor cannot make the copy: each class has its own parameters.
        copy = type(error).__new__(type(error))
        copy.__dict__.update(error.__dict__)
        copy.message = f"{place}: {error.message}"
        copy.args = (copy.message,)
        copy.metadata = {**error.metadata, "place": place, **facts}
    copy.__cause__ = error
    return copy
