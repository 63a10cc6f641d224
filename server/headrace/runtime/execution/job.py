"""A job: one inference on one network, from submission to its single outcome.

`ExecutableNetwork.submit(job)` returns at once. Whoever finishes the job calls `complete`, `fail`
or `settle`, on any thread, and the first call wins. Then the observers run, latest first, and
`done` runs last. There is no lock: the right to settle is the single element of a list, and
`list.pop` is atomic.

A device may run the job of a caller that has given it to another network, for example to AUTO.
That network observes how the run ends, and may `reopen` the job if it has failed.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from headrace.runtime.errors import (
    Cancelled,
    DeadlineExceeded,
    HeadraceError,
    Internal,
    exhausted,
    forget_frames,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.trace import Span
from headrace.runtime.network.values import Array, Value

_log = logging.getLogger(__name__)


class Outcome(enum.StrEnum):
    """What became of an accepted job, exactly one of these. Metrics use the values as labels."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """What one layer cost in one inference. `origins` are layers of the network as loaded.
    `subgraph` is a number from 1 if the network is split over devices."""

    layer: str
    op_type: str
    device: str
    execution_type: str
    seconds: float
    origins: tuple[str, ...] = ()
    subgraph: int = 0


@dataclass(frozen=True, slots=True)
class Ticket:
    """Proof that the outermost network admitted a request. The parts of the request carry it, and
    are never refused."""

    admitted_by: str


class Sequence(NamedTuple):
    """The sequence that a request belongs to, on a network that keeps states.

    Attributes:
        id: chosen by the client, 1 to 128 characters.
        start: begins the sequence, with states of zeros. An open sequence with this id ends.
        end: ends the sequence, if the request completes.
        key: tells sequences of the same id apart, if their clients do not share sequences.
    """

    id: str
    start: bool = False
    end: bool = False
    key: str = ""


CountParts: TypeAlias = Callable[[Collection[float], Collection[float]], None]
"""Counts parts that a device has completed: how many seconds each waited, and ran."""


class Delegation(Protocol):
    """How a virtual device has another device run jobs as they are."""

    count: CountParts
    """Counts what that device has completed, there."""

    @property
    def start(self) -> Callable[[Job], None]:
        """Starts a job there."""

    def completed(self, job: Job) -> None:
        """The job has completed."""

    def fails(self, job: Job) -> None:
        """The job is about to fail. It may be observed, to `reopen` it."""


class Job:
    """Inputs, conditions and time stamps of one inference, and its result.

    Args:
        inputs: a value for every input of the network, by name.
        done: called once with the job when it has an outcome.
        output_names: outputs to compute, in order; empty for all.
        deadline: on `time.monotonic`'s clock, or None.
        priority: -10 to 10; higher goes first, within the bound of the queue's ageing.
        token: cancels the job; a new one if None.
        ticket: the ticket of the request that this job is a part of; None for a whole request.
        profile: fill `layers` with what each layer cost.
        may_run_inline: the submitting thread can spare the fraction of a millisecond that a
            tiny network takes, which saves the hop to a stream's thread.
        trace: identifies the request in logs.
        sequence: the sequence that the request belongs to; None if it belongs to none.
        span: the span of the request or part; None if it is not traced.
        owner: the identity that sends the request, for a network that `knows_callers`. Empty if it
            has none.

    Time stamps (seconds, `time.monotonic`; 0.0 until reached): `queued`, `started`, then the
    ends of the stages: `prepared`, `inferred`; `finished`.

    Attributes:
        observe: ``observe(observer)`` has `observer` called with the job before `done` and before
            earlier observers.
        conclude: called with the job before it completes, on the thread that settles it. It may
            change `outputs`, and returns an error if the job is to fail after all. Whoever sets it
            removes it when the job has ended.
        delegation: set by a virtual device that has another device run the job as it is.
        in_flight: how many other requests its device had accepted and not finished when this one
            ended. Clients that balance choose by it.
        room: memory for outputs, by name: arrays of the types and shapes that these may have. A
            device may compute into them, and `outputs` then has the same arrays. If somebody else
            may write to the inputs meanwhile, it is not None; that needs a network whose
            `inputs_may_change`.
        backend, waiter: data that the device keeps between its stages, and data of the front-end.
    """

    __slots__ = (
        "_observers",
        "_right_to_settle",
        "backend",
        "conclude",
        "deadline",
        "delegation",
        "error",
        "finished",
        "generation",
        "in_flight",
        "inferred",
        "inputs",
        "layers",
        "may_run_inline",
        "network",
        "observe",
        "outcome",
        "output_names",
        "outputs",
        "owner",
        "prepared",
        "priority",
        "profile",
        "queued",
        "room",
        "sequence",
        "span",
        "started",
        "ticket",
        "token",
        "trace",
        "version",
        "waiter",
    )

    def __init__(
        self,
        inputs: Mapping[str, Value],
        done: Callable[[Job], None],
        *,
        output_names: tuple[str, ...] = (),
        deadline: float | None = None,
        priority: int = 0,
        token: CancelToken | None = None,
        ticket: Ticket | None = None,
        profile: bool = False,
        may_run_inline: bool = False,
        trace: str = "",
        sequence: Sequence | None = None,
        span: Span | None = None,
        owner: str = "",
    ) -> None:
        self.inputs = inputs
        self.output_names = output_names
        self.deadline = deadline
        self.priority = priority
        self.token = token if token is not None else CancelToken()
        self.ticket = ticket
        self.profile = profile
        self.may_run_inline = may_run_inline
        self.trace = trace
        self.sequence = sequence
        self.span = span
        self.owner = owner
        self.outputs: dict[str, Value] = {}
        self.layers: list[LayerProfile] = []
        self.room: Mapping[str, Array] | None = None
        self.network, self.version, self.generation = "", "", 0  # set by the registry
        self.in_flight = 0
        self.conclude: Callable[[Job], HeadraceError | None] | None = None
        self.delegation: Delegation | None = None
        self.backend: Any = None
        self.waiter: Any = None
        self.error: BaseException | None = None
        self.outcome: Outcome | None = None
        self.queued = self.started = self.prepared = self.inferred = self.finished = 0.0
        observers: list[Callable[[Job], None]] = [done]
        self._observers = observers
        # The list's own method: `observe` is called so often that a wrapper would cost time.
        self.observe: Callable[[Callable[[Job], None]], None] = observers.append
        self._right_to_settle = [True]

    @property
    def queue_seconds(self) -> float:
        """From acceptance to the start, or to the end if the job never started, or until now."""
        if not self.queued:
            return 0.0
        return (self.started or self.finished or time.monotonic()) - self.queued

    @property
    def execution_seconds(self) -> float:
        """From the start to the end, or until now."""
        return (self.finished or time.monotonic()) - self.started if self.started else 0.0

    @property
    def inference_seconds(self) -> float:
        """In the backend."""
        return self.inferred - (self.prepared or self.started) if self.inferred else 0.0

    def forget(self, observer: Callable[[Job], None]) -> None:
        """Undoes `observe`, for a job that was refused and may be submitted to another network."""
        self._observers.remove(observer)

    def follow(self, callback: Callable[[Job], None]) -> None:
        """Has `callback` called with the job after `done`."""
        self._observers.insert(0, callback)

    def complete(self) -> bool:
        """Ends the job with its `outputs`, or as cancelled if its token is cancelled."""
        return self.settle()

    def fail(self, error: BaseException) -> bool:
        """Ends the job with `error`, or as cancelled if its token is cancelled."""
        return self.settle(error)

    def settle(self, error: BaseException | None = None) -> bool:
        """Does what `fail` does, or `complete` if there is no error. Returns False if the job has
        its outcome already. A job that lacks an output fails."""
        try:
            self._right_to_settle.pop()
        except IndexError:
            return False
        error = self.token.error or error or self._lacks_outputs()
        if error is None and self.conclude is not None:
            try:
                error = self.conclude(self)
            except Exception as failure:  # noqa: BLE001 - the job must get an outcome in any case
                error = failure
        self.finished = time.monotonic()
        if error is None:
            self.outcome = Outcome.COMPLETED
        else:
            error = exhausted(error) or error
            self.outputs = {}
            self.error = error
            if isinstance(error, HeadraceError):  # the log needs the frames of any other error
                forget_frames(error)
            if isinstance(error, DeadlineExceeded):
                self.outcome = Outcome.EXPIRED
            elif isinstance(error, Cancelled):
                self.outcome = Outcome.CANCELLED
            else:
                self.outcome = Outcome.FAILED
            if self.delegation is not None:
                self.delegation.fails(self)
                self.delegation = None
        # Empty the list, because an observer that refers to the job would otherwise keep the job's
        # tensors until the next garbage collection.
        observers = self._observers
        while observers:
            try:
                observers.pop()(self)
            except BaseException:  # noqa: BLE001 - an observer's bug must not lose the reply
                _log.exception("job observer failed", extra={"request_id": self.trace})
        return True

    def _lacks_outputs(self) -> Internal | None:
        """The error of a job whose device has not given all outputs that it was asked for."""
        outputs = self.outputs
        for name in self.output_names:
            if name not in outputs:
                return Internal(f"the device gave {sorted(outputs)}, not {self.output_names}")
        return None

    def reopen(self) -> None:
        """Takes back the outcome of a job that has failed, to run it again. Only an observer may
        call this. The observers before it hear of the next outcome instead of this one."""
        observers = self._observers
        self._observers = observers.copy()
        self.observe = self._observers.append
        observers.clear()  # which ends the loop in `settle`
        self.error = self.outcome = self.backend = None
        self.prepared = self.inferred = self.finished = 0.0
        self.layers = []
        self._right_to_settle.append(True)

    def drop_values(self) -> None:
        """Drops all values of a job that has ended, because a thread may refer to the job until it
        gets another one. Use it for values in memory that somebody else wants back."""
        self.inputs, self.outputs, self.room = {}, {}, None

    def take_error(self) -> BaseException:
        """Removes and returns the failed job's `error`. Use it if you raise the error where a local
        variable holds the job. Otherwise they keep each other until the next garbage
        collection."""
        error, self.error = self.error, None
        assert error is not None
        return error


def nobody_waits(_: Job) -> None:
    """The `done` of a job that is computed on the calling thread."""
