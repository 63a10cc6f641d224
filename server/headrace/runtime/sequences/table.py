"""Tracks the open sequences and whose turn it is, without threads. Not thread-safe.

A sequence opens and closes when its requests arrive. Its requests take turns. If a sequence begins
again while requests of the old one wait, it is another sequence, and the waiting requests end as
they would have.
"""

from __future__ import annotations

import enum
import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.runtime.errors import FailedPrecondition, ResourceExhausted
from headrace.runtime.execution.job import Job, Sequence
from headrace.runtime.network.values import Array
from headrace.runtime.sequences.memory import StateMemory, may_take
from headrace.runtime.sequences.states import Sizes, States


class Ending(enum.StrEnum):
    """How a sequence ended. Metrics use these words."""

    ENDED = "ended"
    RESTARTED = "restarted"
    EXPIRED = "expired"
    UNLOADED = "unloaded"


@dataclass(slots=True, eq=False, repr=False)
class OpenSequence:
    """An open sequence, or one that has requests left.

    Attributes:
        owner: the identity that has begun it.
        sizes: the sizes of the axes that its first request decided.
        bytes: the bytes that its states take.
        states: the states by input after the last completed request; None before the first.
        running: the request whose turn it is.
        waiting: the requests whose turn has not come, in order.
        ending: the request that ends the sequence, once it has arrived.
        idle_since: since when no request runs, by the table's clock.
    """

    id: str
    owner: str
    sizes: Sizes
    bytes: int
    states: dict[str, Array] | None = None
    running: SequenceTurn | None = None
    waiting: OrderedDict[SequenceTurn, None] = field(default_factory=OrderedDict)
    ending: SequenceTurn | None = None
    idle_since: float = 0.0


@dataclass(slots=True, eq=False, repr=False)
class SequenceTurn:
    """A request of a sequence.

    Attributes:
        asked: what the request says about its sequence.
        sizes: the sizes of the request's axes.
        only_ends: whether the request only ends the sequence and is not run.
        begun: whether its turn has come.
    """

    job: Job
    asked: Sequence
    sizes: Sizes
    _give_up: Callable[[SequenceTurn], object]
    only_ends: bool = False
    begun: bool = False
    sequence: OpenSequence = field(init=False)

    def give_up(self) -> None:
        """The request was cancelled."""
        self._give_up(self)


class SequenceTable:
    """The sequences of one network.

    Args:
        states: the network's states.
        memory: counts the states' bytes.
        capacity: the most sequences that may be open.
        idle_seconds: how long a sequence stays open without a request.
        note: called with how a sequence ended, or with None when a sequence began.

    Attributes:
        network: the network's name, for messages.
    """

    def __init__(
        self,
        states: States,
        memory: StateMemory,
        capacity: int,
        idle_seconds: float,
        note: Callable[[Ending | None], object] = lambda _: None,
    ) -> None:
        self.network = ""
        self.capacity = capacity
        self.idle_seconds = idle_seconds
        self.bytes = 0
        self._states = states
        self._memory = memory
        self._note = note
        self._open: dict[str, OpenSequence] = {}
        self._of: Counter[str] = Counter()  # open sequences by owner
        self._idle: OrderedDict[OpenSequence, None] = OrderedDict()  # the longest idle one first

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, identifier: object) -> bool:
        """Whether a sequence is open. Safe on any thread, but the answer may be out of date."""
        return identifier in self._open

    @property
    def owners(self) -> frozenset[str]:
        """The identities that have sequences open. Safe as `__contains__`."""
        return frozenset(self._of)

    def enter(self, turn: SequenceTurn) -> bool:
        """Gives a request its place in its sequence, which it may open.

        Returns:
            Whether its turn has come.

        Raises:
            FailedPrecondition: the request's sequence is not open.
            InvalidArgument: the request has other sizes than its sequence.
            ResourceExhausted: no further sequence may be opened.
        """
        sequence = turn.sequence = self._start(turn) if turn.asked.start else self._find(turn)
        if turn.asked.end:
            sequence.ending = turn
        if sequence.running is not None:
            sequence.waiting[turn] = None
            return False
        self._idle.pop(sequence, None)
        sequence.running = turn
        return True

    def leave(self, turn: SequenceTurn) -> bool:
        """Removes a cancelled request. Returns False if the request does not wait."""
        sequence = turn.sequence
        if turn not in sequence.waiting:
            return False
        del sequence.waiting[turn]
        if sequence.ending is turn:
            sequence.ending = None
        return True

    def end(self, turn: SequenceTurn, now: float, *, completed: bool) -> SequenceTurn | None:
        """Ends the turn of a request that has its outcome.

        Returns:
            The request whose turn it is now.
        """
        sequence = turn.sequence
        sequence.running = None
        if sequence.ending is turn:
            sequence.ending = None
            if completed and self._is_open(sequence):
                self._close(sequence, Ending.ENDED)
        if sequence.waiting:
            sequence.running, _ = sequence.waiting.popitem(last=False)
        elif self._is_open(sequence):
            sequence.idle_since = now
            self._idle[sequence] = None
        else:
            self._forget(sequence)
        return sequence.running

    @property
    def next_expiry(self) -> float:
        """When the first sequence will have been idle for too long; infinite if none is idle."""
        oldest = next(iter(self._idle), None)
        return math.inf if oldest is None else oldest.idle_since + self.idle_seconds

    def expire(self, now: float) -> None:
        """Ends the sequences that have been idle for too long."""
        while self.next_expiry <= now:
            self._close(next(iter(self._idle)), Ending.EXPIRED)

    def close(self) -> None:
        """Ends all sequences."""
        for sequence in list(self._open.values()):
            self._close(sequence, Ending.UNLOADED)

    def _start(self, turn: SequenceTurn) -> OpenSequence:
        identifier, size = turn.asked.key or turn.asked.id, self._states.size_bytes(turn.sizes)
        old, owner = self._open.get(identifier), turn.job.owner
        if old is None:
            self._check_room(owner)
        freed = old.bytes if old is not None and old.running is None else 0
        if old is not None and freed and old.owner != owner:
            self._memory.take(size, owner)
            self._memory.take(-freed, old.owner)
        else:
            self._memory.take(size - freed, owner)
        self.bytes += size - freed
        if old is not None:
            old.bytes -= freed
            self._close(old, Ending.RESTARTED)
        sequence = self._open[identifier] = OpenSequence(identifier, owner, turn.sizes, size)
        self._of[owner] += 1
        self._note(None)
        return sequence

    def _check_room(self, owner: str) -> None:
        """
        Raises:
            ResourceExhausted: as many sequences are open as may be, or `owner` has its share.
        """
        free, mine = self.capacity - len(self._open), self._of[owner]
        if free <= 0:
            raise ResourceExhausted(
                f"network {self.network!r} has {len(self._open)} open sequences, SEQUENCE_CAPACITY "
                f"is {self.capacity}; end one, or load the network with a larger capacity",
                field="session",
            )
        if owner and mine and not may_take(mine + 1, free - 1):
            raise ResourceExhausted(
                f"you have {mine} open sequences on network {self.network!r}, SEQUENCE_CAPACITY is "
                f"{self.capacity}, and an eighth of it stays for others; end one of yours",
                field="session",
            )

    def _find(self, turn: SequenceTurn) -> OpenSequence:
        identifier = turn.asked.id
        sequence = self._open.get(turn.asked.key or identifier)
        if sequence is None:
            raise FailedPrecondition(
                f"sequence {identifier!r} is not open on network {self.network!r}: it never began, "
                f"or it has ended (by a request, after {self.idle_seconds:g} s without one, which "
                "is SEQUENCE_IDLE_TIMEOUT, or because the network was loaded again); begin it with "
                "start",
                field="session.id",
            )
        if sequence.ending is not None:
            raise FailedPrecondition(
                f"sequence {identifier!r} is ending: an earlier request ends it; begin it again "
                "with start",
                field="session.id",
            )
        if not turn.only_ends:
            self._states.check_sizes(identifier, sequence.sizes, turn.sizes)
        return sequence

    def _is_open(self, sequence: OpenSequence) -> bool:
        return self._open.get(sequence.id) is sequence

    def _close(self, sequence: OpenSequence, how: Ending) -> None:
        del self._open[sequence.id]
        self._of[sequence.owner] -= 1
        if not self._of[sequence.owner]:
            del self._of[sequence.owner]
        self._idle.pop(sequence, None)
        if sequence.running is None and not sequence.waiting:
            self._forget(sequence)
        self._note(how)

    def _forget(self, sequence: OpenSequence) -> None:
        """Releases the states of a sequence that is closed and has no requests left."""
        sequence.states = None
        self._memory.take(-sequence.bytes, sequence.owner)
        self.bytes -= sequence.bytes
        sequence.bytes = 0
