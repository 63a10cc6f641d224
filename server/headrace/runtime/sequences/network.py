"""A network that keeps states, in front of the network that a device has compiled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import ClassVar

from headrace.runtime.config.schema import Configuration, ParameterValue
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.front import NetworkInFront
from headrace.runtime.errors import HeadraceError, InvalidArgument
from headrace.runtime.execution.alarm import Alarm
from headrace.runtime.execution.job import Job, Outcome
from headrace.runtime.execution.ports import PortCheck
from headrace.runtime.execution.trampoline import Trampoline
from headrace.runtime.metrics.counters import NetworkCounters
from headrace.runtime.metrics.series import Family, SeriesSnapshot, SeriesTable
from headrace.runtime.sequences import keys
from headrace.runtime.sequences.keys import SEQUENCE_CAPACITY, SEQUENCE_IDLE_TIMEOUT, STATES
from headrace.runtime.sequences.memory import StateMemory
from headrace.runtime.sequences.states import States
from headrace.runtime.sequences.table import Ending, SequenceTable, SequenceTurn

MAX_ID_LENGTH = 128


def load_with_states(
    config: Mapping[str, str],
    preprocessed: Iterable[str],
    memory: StateMemory,
    load: Callable[[dict[str, str]], ExecutableNetwork],
) -> ExecutableNetwork:
    """Loads a network. If its configuration names states, puts a `SequenceNetwork` in front of it.

    Args:
        config: the whole configuration of the load.
        preprocessed: the names of the inputs and outputs that the caller has options for.
        memory: the bound on the states' bytes.
        load: loads the network with the rest of `config`.

    Raises:
        InvalidArgument: a tensor cannot be a state. The error names the key and the tensor.
        As `load`.
    """
    own, rest = keys.split(config)
    if own is None:
        return load(rest)
    network = load(rest)
    try:
        states = States(own[STATES], network.inputs, network.outputs, preprocessed)
        return SequenceNetwork(network, own, states, memory)
    except BaseException:
        network.close()
        raise


OPEN = Family("network_sequences_open", "gauge", (), "Sequences that are open.")
STATE_BYTES = Family(
    "network_sequences_state_bytes", "gauge", (), "What the states of open sequences take."
)
STARTED = Family("network_sequences_started_total", "counter", (), "Sequences that were begun.")
ENDED = Family(
    "network_sequences_ended_total",
    "counter",
    ("how",),
    "Sequences by their end: ended by a request, restarted under the same id, expired after "
    "SEQUENCE_IDLE_TIMEOUT, or unloaded with the network.",
)


FAMILIES = (OPEN, STATE_BYTES, STARTED, ENDED)


class SequenceCounters:
    """Thread-safe."""

    def __init__(self, series: SeriesTable) -> None:
        self._started = series.get(STARTED)
        self._ended = {how: series.get(ENDED, how) for how in Ending}

    def note(self, how: Ending | None) -> None:
        """Counts the end of a sequence. With None it counts the start of a sequence."""
        (self._started if how is None else self._ended[how]).add(1)


class SequenceNetwork(NetworkInFront):
    """Runs the requests of each sequence one at a time. Thread-safe: `_lock` guards the table and
    the alarm. The locks of the memory, the series and the timer are taken under it.

    A request whose turn has come starts on the thread that submits it. A request that waits starts
    on the thread that ended the request before it, after the outcome of that request was reported.
    Before it is reported, the table knows of it: whoever hears that a sequence has ended finds it
    ended.
    Sequences that are idle for too long end on the timer's thread.

    Args:
        inner: the compiled network. It is open, and is closed with this network.
        own: the configuration of the states and their limits.
        memory: the bound on the states' bytes.
    """

    knows_callers: ClassVar[bool] = True

    def __init__(
        self, inner: ExecutableNetwork, own: Configuration, states: States, memory: StateMemory
    ) -> None:
        super().__init__(inner, own)
        self.states = states.outputs_by_input
        self.inputs, self.outputs = states.inputs, states.outputs
        self._check = self._turn_check = _TurnCheck(self, states)
        self._kept = states
        self._lock = threading.Lock()
        self._table = SequenceTable(
            states, memory, own[SEQUENCE_CAPACITY], own[SEQUENCE_IDLE_TIMEOUT], self._note
        )
        self._alarm = Alarm(inner.place.timer, self._expire)
        self._trampoline: Trampoline[SequenceTurn] = Trampoline()
        self._sequence_counters: SequenceCounters | None = None
        self._end_series: Callable[[], None] = lambda: None

    # -- everything except requests --

    def count_as(self, name: str, counters: NetworkCounters) -> None:
        super().count_as(name, counters)
        self._table.network = name
        self._sequence_counters = SequenceCounters(counters.series)
        self._end_series = counters.series.add(self._gauges)

    def _configured(self) -> None:
        with self._lock:
            self._table.capacity = self._own[SEQUENCE_CAPACITY]
            self._table.idle_seconds = self._own[SEQUENCE_IDLE_TIMEOUT]
            self._alarm.set(self._table.next_expiry)

    def has_sequence(self, identifier: str) -> bool:
        return identifier in self._table

    @property
    def sequence_owners(self) -> frozenset[str]:
        return self._table.owners

    def _metrics(self) -> Mapping[str, Callable[[], ParameterValue]]:
        return {"OPEN_SEQUENCES": lambda: len(self._table)}

    def _close(self) -> None:
        with self._lock:
            self._table.close()
            self._alarm.close()
        self._end_series()
        self.inner.close()

    # -- requests --

    def _start(self, job: Job) -> None:
        turn = self._turn_check.turn(job, self._give_up)
        with self._lock:
            begins = self._table.enter(turn)
        if begins:
            self._trampoline(self._begin, [turn], inline=job.may_run_inline)
            return
        job.token.attach(turn.give_up)
        if turn.begun:  # on another thread, and perhaps before the hook was there
            job.token.detach(turn.give_up)

    def _begin(self, turn: SequenceTurn, inline: bool) -> None:
        """Starts a request whose turn has come on the device."""
        job = turn.job
        turn.begun = True
        job.token.detach(turn.give_up)
        job.observe(partial(self._ended, turn))
        if turn.only_ends:
            job.complete()
            return
        sequence = turn.sequence
        if sequence.states is None:
            sequence.states = self._kept.initial(sequence.sizes)
        wanted = job.output_names
        job.inputs = {**job.inputs, **sequence.states}
        job.output_names = (*wanted, *self._kept.output_names)
        job.conclude = partial(self._keep, turn, wanted)
        job.may_run_inline = inline
        try:
            self.inner.start(job)
        except Exception as error:  # noqa: BLE001 - an accepted job has an outcome, whatever happens
            job.fail(error)

    def _keep(self, turn: SequenceTurn, wanted: tuple[str, ...], job: Job) -> HeadraceError | None:
        """Takes the states out of the outputs. No other thread touches the sequence's states
        meanwhile."""
        turn.sequence.states = self._kept.take(job.outputs, turn.sequence.sizes)
        job.output_names = wanted
        return None

    def _ended(self, turn: SequenceTurn, job: Job) -> None:
        job.conclude = None  # it refers to the job
        with self._lock:
            following = self._table.end(
                turn, time.monotonic(), completed=job.outcome is Outcome.COMPLETED
            )
            self._alarm.set(self._table.next_expiry)
        if following is not None:
            job.follow(lambda _: self._trampoline(self._begin, [following]))

    def _give_up(self, turn: SequenceTurn) -> None:
        with self._lock:
            waited = self._table.leave(turn)
        error = turn.job.token.error
        if waited and error is not None:
            turn.job.fail(error)

    # -- inside --

    def _expire(self) -> None:
        with self._lock:
            self._alarm.rang()
            self._table.expire(time.monotonic())
            self._alarm.set(self._table.next_expiry)

    def _note(self, how: Ending | None) -> None:
        if self._sequence_counters is not None:
            self._sequence_counters.note(how)

    def _gauges(self) -> Iterable[SeriesSnapshot]:
        with self._lock:
            count, size = len(self._table), self._table.bytes
        return (SeriesSnapshot(OPEN, (), count), SeriesSnapshot(STATE_BYTES, (), size))


class _TurnCheck(PortCheck):
    """Checks a request's sequence. It also checks the request's values against the network's ports
    that are left for clients."""

    def __init__(self, network: ExecutableNetwork, states: States) -> None:
        super().__init__(states.inputs, states.outputs)
        self._network = network
        self._states = states
        self._kept_inputs = frozenset(states.outputs_by_input)
        self._kept_outputs = frozenset(states.outputs_by_input.values())

    def __call__(self, job: Job) -> None:
        sequence = job.sequence
        if sequence is None:
            raise InvalidArgument(
                f"network {self._network.name!r} keeps states between the requests of a sequence: "
                "say which sequence the request belongs to",
                field="session",
            )
        if not 1 <= len(sequence.id) <= MAX_ID_LENGTH:
            raise InvalidArgument(
                f"the id of a sequence has 1 to {MAX_ID_LENGTH} characters", field="session.id"
            )
        if self._only_ends(job):
            job.output_names = ()
            return
        for name in self._kept_inputs & job.inputs.keys():
            raise InvalidArgument(
                f"input {name!r} is a state, which the server keeps: leave it out",
                field=f"inputs[{name!r}]",
            )
        for name in self._kept_outputs.intersection(job.output_names) if job.output_names else ():
            raise InvalidArgument(
                f"output {name!r} is a state, which the server keeps: leave it out",
                field="outputs",
            )
        super().__call__(job)

    def turn(self, job: Job, give_up: Callable[[SequenceTurn], object]) -> SequenceTurn:
        assert job.sequence is not None
        if self._only_ends(job):
            return SequenceTurn(job, job.sequence, (), give_up, only_ends=True)
        return SequenceTurn(job, job.sequence, self._states.sizes(job.inputs), give_up)

    def _only_ends(self, job: Job) -> bool:
        sequence = job.sequence
        return (
            sequence is not None
            and sequence.end
            and not sequence.start
            and not job.inputs
            and bool(self._required)
        )
