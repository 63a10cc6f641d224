"""Carries out what the scheduler decides: a state machine that requests and completions advance.

It has no thread of its own. The thread that submits a request, ends a batch or fires the timer
starts the batches that are due then.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.plugins.batch.running import rows as rows_of
from headrace.plugins.batch.running.request import BatchJob, BatchMember, BatchRun, reason
from headrace.plugins.batch.running.scheduler import BatchScheduler
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import Cancelled, QueueFull, Unavailable
from headrace.runtime.execution.alarm import Alarm
from headrace.runtime.execution.job import Job, LayerProfile, Ticket
from headrace.runtime.execution.timer import Timer
from headrace.runtime.execution.trampoline import Trampoline
from headrace.runtime.network.values import Value
from headrace.runtime.virtual.part_job import submit

_NOT_THE_VALUES = (Cancelled, QueueFull, Unavailable)
"""Errors of a batch that its members' values cannot have caused."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a network's batches.

    Attributes:
        inputs: the names of the inputs. Each input has the batch dimension first.
        shared: the outputs without a batch dimension.
        padded_to: the rows of every run if the device takes only that number. 0: it takes any.
    """

    inputs: tuple[str, ...]
    shared: frozenset[str] = frozenset()
    padded_to: int = 0


class Collector:
    """Runs the requests of one network in batches. Thread-safe: `_lock` guards the scheduler, the
    state of members and runs, and the alarm. No job is submitted, cancelled or settled under it.

    A member that is cancelled or expires gets its outcome at once. Its batch runs on, without the
    member's rows if they have not been copied yet. A member that runs alone is different, because
    the device reads its values in place: its run is cancelled, and the member ends with its run.

    Args:
        network: the network that runs the batches.
        origins: layer names of the batched network to those of the network as it was loaded.
        count: called with every batch that ran and its rows.
    """

    def __init__(
        self,
        scheduler: BatchScheduler[BatchMember],
        shape: Shape,
        network: ExecutableNetwork,
        ticket: Ticket,
        timer: Timer,
        origins: Mapping[str, Sequence[str]],
        count: Callable[[Job, int], None],
    ) -> None:
        self._scheduler = scheduler
        self._shape = shape
        self._network = network
        self._ticket = ticket
        self._alarm = Alarm(timer, self._tick)
        self._origins = origins
        self._count = count
        self._lock = threading.Lock()
        self._trampoline: Trampoline[BatchRun] = Trampoline()

    @property
    def timeout(self) -> float:
        return self._scheduler.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        with self._lock:
            self._scheduler.timeout = seconds
            runs = self._runs(self._scheduler.tick(time.monotonic()))
        self._start(runs)

    def set_slots(self, count: int) -> None:
        """Sets how many batches the device runs at once from now on."""
        with self._lock:
            self._scheduler.slots = count
            runs = self._runs(self._scheduler.tick(time.monotonic()))
        self._start(runs)

    def take(self, job: Job) -> None:
        """Takes a request and gives it its outcome later."""
        group, rows = rows_of.fit(job, self._shape.inputs)
        member = BatchMember(job, group if group is not None else job, rows, self._leave)
        with self._lock:
            runs = self._runs(self._scheduler.arrive(member, time.monotonic()))
        member.listen()
        self._start(runs, inline=job.may_run_inline)

    def close(self) -> None:
        """Stops the alarm, and drops what refers back to the network. No request may be left."""
        with self._lock:
            self._alarm.close()
        self._count = _uncounted

    # -- what is due --

    def _runs(self, batches: Sequence[Sequence[BatchMember]]) -> list[BatchRun]:
        """Makes runs of the batches, and sets the alarm for the waiting members. Called under the
        lock."""
        wakes_at = self._scheduler.wakes_at
        self._alarm.set(math.inf if wakes_at is None else wakes_at)
        return [BatchRun(batch) for batch in batches]

    def _tick(self) -> None:
        with self._lock:
            self._alarm.rang()
            runs = self._runs(self._scheduler.tick(time.monotonic()))
        self._start(runs)

    def _start(self, runs: Sequence[BatchRun], *, inline: bool = False) -> None:
        self._trampoline(self._submit, runs, inline=inline)

    def _submit(self, run: BatchRun, inline: bool) -> None:
        """Submits a run. A run that ends at once makes other runs due, which are submitted next."""
        inline = inline and run.alone
        with self._lock:
            members = [member for member in run.members if run.alone or not member.left]
        error: BaseException | None = None
        inputs: Mapping[str, Value] = {}
        try:
            inputs = self._inputs(run, [member.job for member in members])
        except Exception as raised:  # noqa: BLE001 - each request needs an outcome
            error = raised
        self._joined(run)
        if not members:
            self._over(run)
            return
        batch = BatchJob(run, members, inputs, self._ended, self._ticket, inline=inline)
        if error is not None:
            batch.fail(error)
        else:
            submit(batch, self._network)

    def _inputs(self, run: BatchRun, jobs: Sequence[Job]) -> Mapping[str, Value]:
        if not jobs or (run.alone and not self._shape.padded_to):
            return jobs[0].inputs if jobs else {}
        return rows_of.join(jobs, self._shape.inputs, self._shape.padded_to)

    def _joined(self, run: BatchRun) -> None:
        """Notes that the members' inputs are not read any more, and ends members that have left."""
        if run.alone:
            return
        with self._lock:
            run.joined = True
            gone = [member for member in run.members if member.left]
        for member in gone:
            self._settle(member, reason(member.job))

    # -- ends --

    def _leave(self, member: BatchMember) -> None:
        """Handles a request that was cancelled or whose deadline has passed."""
        job, cancel_run, settle = member.job, False, False
        with self._lock:
            run = member.run
            if self._scheduler.leave(member):
                settle = True
            elif run is not None and not member.left:
                member.left = True
                run.present -= 1
                cancel_run = not run.present
                settle = run.joined
        if run is not None and cancel_run:
            run.token.cancel(reason(job))
        if settle:
            self._settle(member, reason(job))

    def _ended(self, batch: Job) -> None:
        assert isinstance(batch, BatchJob)
        run, outputs, error = batch.run, batch.outputs, batch.error
        batch.inputs, batch.outputs = {}, {}  # other objects may hold the job for a while
        if batch.started and batch.rows:
            self._count(batch, sum(batch.rows))
        batch.tell_times()
        if batch.started and error is None and not self._shape.padded_to:
            with self._lock:
                self._scheduler.ran(sum(batch.rows), time.monotonic() - batch.started)
        parted: list[dict[str, Value]] = []
        if error is None:
            try:
                parted = self._parted(batch, outputs)
            except Exception as raised:  # noqa: BLE001 - treated as a failure of the device
                error = raised
        if error is not None and not run.alone and not isinstance(error, _NOT_THE_VALUES):
            self._over(run, again=batch.members)
            return
        with self._lock:
            for member in batch.members:
                member.left = True  # it ends now, so a cancel that comes late changes nothing
        layers = self._profile(batch.layers)
        for at, member in enumerate(batch.members):
            if error is None:
                member.job.outputs = parted[at]
                member.job.layers = layers if member.job.profile else []
            self._settle(member, error)
        self._over(run)

    def _over(self, run: BatchRun, again: Sequence[BatchMember] = ()) -> None:
        """Handles the end of a run, and starts what is due now."""
        with self._lock:
            left = [member for member in again if not member.left]
            for member in left:
                member.run = None
            runs = self._runs(self._scheduler.finished(time.monotonic(), left))
        self._start(runs)

    def _parted(self, batch: BatchJob, outputs: Mapping[str, Value]) -> list[dict[str, Value]]:
        total = max(sum(batch.rows), self._shape.padded_to)
        if len(batch.rows) == 1 and total == batch.rows[0]:
            return [dict(outputs)]
        return rows_of.part(outputs, batch.rows, self._shape.shared, total)

    def _profile(self, layers: Sequence[LayerProfile]) -> list[LayerProfile]:
        return [
            replace(
                layer,
                origins=tuple(
                    x for name in layer.origins for x in self._origins.get(name, (name,))
                ),
            )
            for layer in layers
        ]

    @staticmethod
    def _settle(member: BatchMember, error: BaseException | None) -> None:
        if error is None:
            member.job.complete()
        else:
            member.job.fail(error)
        member.stop_listening()  # after the outcome; see `BatchMember.listen`


def _uncounted(batch: Job, rows: int) -> None:
    """Takes the place of `count` when the network is closed."""
