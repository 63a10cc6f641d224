"""The memory that networks take, and the room that loads wait for.

A load waits on its own thread until there is room for it. Networks that were used least leave for
it. Afterwards it is measured what the network has taken.

Loads get room in their order. But while one waits for a request to end, on a network that is to
leave, or for those that keep a network, those behind it go on: nobody knows how long that request
takes, and a pipeline whose steps are kept may be behind it.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from headrace.runtime.errors import ResourceExhausted
from headrace.runtime.loading.cold_loads import ColdLoads
from headrace.runtime.loading.entry import NetworkEntry, NetworkKey, NetworkState, plain_name
from headrace.runtime.loading.memory_budget import (
    Holder,
    LoadSize,
    MemoryBudget,
    MemoryMeter,
    WeightSize,
    make_room,
)
from headrace.runtime.transform.options import LoadRequest, options_to_json

_IDLE_SECONDS: Final = 300.0
"""A network that nobody has used for so long counts for nobody's share."""
_PATIENCE_SECONDS: Final = 300.0
"""For how long a load waits for networks to end their requests, and so to make room for it."""


class _Same(NamedTuple):
    """Equal for loads that map the same weights, if they map any.

    Attributes:
        how: device, configuration and options, and the size of the weights.
        digest: of the network.
    """

    how: Hashable
    digest: str

    @staticmethod
    def way(entry: NetworkEntry, weights: WeightSize) -> Hashable:
        request: LoadRequest = entry.record.request
        options = json.dumps(options_to_json(request.options), sort_keys=True)
        return request.device, tuple(sorted(request.config.items())), options, weights.bytes


@dataclass(slots=True)
class _Charge:
    """What one load counts for.

    Attributes:
        weights: of its model. If they are `mapped`, another load counts for them.
        same: as which other loads it maps its weights; None if it maps none, or nobody knows.
        size: as estimated; None once the network was measured.
        bytes: as measured.
        inherited: what the other load counted for, since that is gone. What they share is not.
        copies: the bytes of further copies that it keeps.
    """

    entry: NetworkEntry
    budgets: frozenset[str]
    weights: WeightSize
    same: _Same | None
    size: LoadSize | None
    bytes: int = 0
    inherited: int = 0
    copies: int = 0

    @property
    def counts_for_shared(self) -> int:
        """The bytes that it counts for and that may be shared: mapped weights, and a session."""
        if self.weights.mapped:
            return self.inherited
        return self.bytes - self.copies if self.size is None and self.same is not None else 0

    def grow(self, more: int) -> None:
        """Counts it for so many bytes more, or less."""
        if self.size is not None:
            self.size = self.size.and_more(more)
        else:
            self.bytes = self.entry.memory_bytes = self.bytes + more


@dataclass(eq=False, slots=True)
class _Turn:
    """A load that waits for room.

    Attributes:
        awaited: networks that leave, or that requests have waited for. It waits for these requests
            alone.
    """

    awaited: Collection[NetworkEntry] = ()


class MemoryRoom:
    """Thread-safe: `_changed` guards the charges and the meter. The registry's lock and that of the
    loads of cold networks are taken under it.

    Args:
        evict: takes a loaded network out of memory once its last request has ended, with the open
            sequences of these identities. Returns whether it does.
        cold: tells which networks requests wait for.
        measure: the memory of the server and of its processes.

    Attributes:
        evictions: how many networks have left for others, by budget.
    """

    def __init__(
        self,
        budget: MemoryBudget,
        evict: Callable[[NetworkEntry, Collection[str]], bool],
        cold: ColdLoads,
        measure: Callable[[], int],
    ) -> None:
        self.budget = budget
        self.evictions = dict.fromkeys(budget.bytes, 0)
        self._evict = evict
        self._cold = cold
        self._measure = measure
        self._changed = threading.Condition()
        self._charges: dict[NetworkKey, _Charge] = {}
        self._queue: list[_Turn] = []  # the loads that wait for room, in their order
        self._meter = MemoryMeter()
        self._loans: dict[object, tuple[str, frozenset[str], int]] = {}

    def take(self, entry: NetworkEntry, budgets: frozenset[str], weights: WeightSize) -> None:
        """Waits until there is room for a load, and takes it. Does nothing if none is counted.

        Args:
            budgets: those that the network counts for.
            weights: those of its model.

        Raises:
            ResourceExhausted: there is no room. The error says what is needed, and who has it.
            What cancels the load.
        """
        if not budgets:
            return
        how, network = _Same.way(entry, weights), entry.record.network
        weights = weights._replace(kept=entry.maps_weights)
        with self._changed:
            may_map = any(each.how == how for each in self._mapped())
        same = _Same(how, network.digest) if may_map else None
        until = time.monotonic() + _PATIENCE_SECONDS
        with self._in_turn() as turn, self._heeding(entry):
            while True:
                if entry.token.error is not None:
                    raise entry.token.error
                leaving = None
                if self._is_next(turn):
                    weights = weights._replace(mapped=same in self._mapped())
                    size = LoadSize.of(weights, entry.memory_bytes)
                    leaving = self._room_for(turn, entry, size, budgets)
                if leaving == {}:
                    break
                for key, sequences in (leaving or {}).items():
                    if self._evict(self._charges[key].entry, sequences):
                        for budget in self._charges[key].budgets:
                            self.evictions[budget] += 1
                if leaving is None:
                    self._wait(entry.key, until)
            self._charges[entry.key] = _Charge(entry, budgets, weights, same, size)
        total = self._measure()
        with self._changed:
            self._meter.begin(entry.key, weights, total)

    def measured(self, entry: NetworkEntry) -> None:
        """Counts a network that has been loaded, when what only its load needed is free."""
        if entry.key not in self._charges:
            return
        total, executable, network = self._measure(), entry.executable, entry.record.network
        with self._changed:
            charge = self._charges.get(entry.key)
            if charge is None or charge.size is None:
                return
            entry.memory_bytes = charge.bytes = charge.size.later
            charge.size = None
            if executable is not None and network is not None:  # it has not left already
                entry.maps_weights = executable.maps_weights
                digest = network.known_digest if entry.maps_weights else ""
                how = _Same.way(entry, charge.weights)
                charge.same = _Same(how, digest) if digest else None
            self._found(self._meter.end(entry.key, total))
            self._changed.notify_all()

    def give_back(self, entry: NetworkEntry) -> None:
        """Counts a network no more: its memory is free, or it was not loaded."""
        charge = self._charges.get(entry.key)
        if charge is None:
            return
        total = self._measure() if charge.size is not None else 0
        with self._changed:
            if self._charges.pop(entry.key, None) is None:
                return
            stays = self._pass_on(charge)
            if charge.size is None:
                self._meter.freed(charge.bytes - stays)
            else:
                self._found(self._meter.give_up(entry.key, total))
            self._changed.notify_all()

    @contextmanager
    def lent(
        self, name: str, budgets: frozenset[str], weights: WeightSize
    ) -> Iterator[Callable[[], Callable[[], None]]]:
        """Room for one more copy of a network for a while, if there is room without another network
        leaving and no load waits for it. A load that comes meanwhile waits.

        Args:
            name: the network's full name.

        Returns:
            A function that has the network keep the copy: it counts for what that takes, until it
            ends or what the function returns is called.

        Raises:
            ResourceExhausted: there is no room.
        """
        size = LoadSize.of(weights)
        with self._changed:
            there = self._holders() if budgets else []
            for device in budgets:
                taken = sum(each.bytes for each in there if device in each.budgets)
                if self._queue or taken + size.peak > self.budget.bytes[device]:
                    raise ResourceExhausted(
                        f"the memory budget of {device or 'all devices'} has no room for it"
                    )
            loan = object()
            if budgets:
                self._loans[loan] = name, budgets, size.peak
        try:
            yield partial(self._keep, name, size.later)
        finally:
            with self._changed:
                self._loans.pop(loan, None)
                self._changed.notify_all()

    def _keep(self, name: str, size: int) -> Callable[[], None]:
        with self._changed:
            for charge in self._charges.values():
                if charge.entry.key.name == name:
                    charge.copies += size
                    charge.grow(size)
                    return partial(self._keep_no_more, charge, size)
        return lambda: None

    def _keep_no_more(self, charge: _Charge, size: int) -> None:
        with self._changed:
            charge.copies -= size
            charge.grow(-size)
            self._changed.notify_all()

    def look_again(self) -> None:
        """Has loads look again whether there is room."""
        with self._changed:
            self._changed.notify_all()

    # -- inside --

    @contextmanager
    def _in_turn(self) -> Iterator[_Turn]:
        """Waits for room after the loads that wait already. The caller holds the lock within it."""
        turn = _Turn()
        with self._changed:
            self._queue.append(turn)
            try:
                yield turn
            finally:
                self._queue.remove(turn)
                self._changed.notify_all()

    def _is_next(self, turn: _Turn) -> bool:
        """Whether all loads before it wait for requests. The caller holds the lock."""
        return next(each for each in self._queue if each is turn or not self._stuck(each)) is turn

    def _stuck(self, turn: _Turn) -> bool:
        """Whether a load waits for requests to end. The caller holds the lock."""
        kept = self._cold.awaited() if turn.awaited else ()
        return any(each.references > 0 or each.key[:2] in kept for each in turn.awaited)

    def _room_for(
        self, turn: _Turn, entry: NetworkEntry, size: LoadSize, budgets: frozenset[str]
    ) -> dict[NetworkKey, frozenset[str]] | None:
        """As `make_room`, with the identities whose sequences end. Wakes the loads behind one that
        waits for requests. The caller holds the lock."""
        holders, stays = self._holders(entry.key), bool(_why_it_stays(entry, time.monotonic()))
        room = partial(
            make_room,
            entry.key.name,
            size,
            budgets,
            self.budget,
            who=entry.tenancy.asker.name,
            stays=stays,
        )
        leaving = room(holders)
        was_stuck, turn.awaited = self._stuck(turn), ()
        if leaving is None:
            kept = [
                each
                for each in holders
                if (each.busy and not each.later)
                or (each.awaited and self._charges[each.key].entry.state is NetworkState.READY)
            ]
            others = [each for each in holders if each not in kept]
            if kept and room(others) == []:
                turn.awaited = [self._charges[each.key].entry for each in kept]
        if self._stuck(turn) and not was_stuck:
            self._changed.notify_all()
        sequences = {each.key: each.sequences for each in holders}
        return None if leaving is None else {key: sequences[key] for key in leaving}

    @contextmanager
    def _heeding(self, entry: NetworkEntry) -> Iterator[None]:
        """Wakes a load that is cancelled while it waits."""
        entry.token.attach(self.look_again)
        try:
            yield
        finally:
            entry.token.detach(self.look_again)

    def _found(self, took: Mapping[NetworkKey, int]) -> None:
        """Notes what loads have taken. The caller holds the lock."""
        for key, size in took.items():
            charge = self._charges.get(key)
            if charge is not None:
                charge.bytes = charge.entry.memory_bytes = size + charge.inherited

    def _mapped(self) -> Collection[_Same]:
        """What is the same for the networks that map their weights. The caller holds the lock."""
        return {
            charge.same
            for charge in self._charges.values()
            if charge.size is None
            and charge.same is not None
            and charge.entry.state is NetworkState.READY
        }

    def _pass_on(self, gone: _Charge) -> int:
        """Has another network that maps the same weights count for them, and for the session that
        it may share. The caller holds the lock.

        Returns:
            The bytes that the one that is gone has counted for and that stay in memory: others
            share them, or they are weights of a file.
        """
        size = gone.counts_for_shared
        others = [each for each in self._charges.values() if each.same == gone.same] if size else []
        heirs = [each for each in others if each.weights.mapped]
        if not heirs:
            return min(size, gone.weights.bytes)
        if not any(each.counts_for_shared for each in others):
            heir = heirs[0]
            heir.inherited = size
            heir.grow(size)
        return size

    def _wait(self, key: NetworkKey, until: float) -> None:
        """Waits for a change. Another load that somebody wants is waited for however long it takes.

        Args:
            until: when to give up.

        Raises:
            ResourceExhausted: the load has waited too long.
        """
        charges = self._charges.values()
        loads = any(each.size is not None and each.entry.given_up is None for each in charges)
        left = math.inf if loads else until - time.monotonic()
        if left <= 0:
            error = ResourceExhausted(
                f"network {plain_name(key.name)!r} was not loaded: the networks that were to make "
                f"room for it are in use since {_PATIENCE_SECONDS:g} s; try again later"
            )
            error.retry_delay_seconds = 1.0
            raise error
        self._changed.wait(min(left, _PATIENCE_SECONDS))

    def _holders(self, key: NetworkKey | None = None) -> list[Holder]:
        """
        Args:
            key: of a network that is to be loaded. If a pipeline needs it, the networks stay that
                are kept for that pipeline: it waits for its own load.
        """
        awaited, now = self._cold.awaited(), time.monotonic()
        together = self._cold.kept_together()
        if key is None or key[:2] not in together:
            together = ()
        readers: dict[tuple[str, str], list[NetworkEntry]] = {}
        for charge in self._charges.values():
            executable = charge.entry.executable
            for run in executable.runs if executable is not None else ():
                readers.setdefault(run, []).append(charge.entry)

        def users(entry: NetworkEntry) -> list[NetworkEntry]:
            found = [entry]
            for name, version, _ in (each.key for each in found):
                new = (*readers.get((name, version), ()), *readers.get((name, ""), ()))
                found += [each for each in dict.fromkeys(new) if each not in found]
            return found[1:]

        return [
            *(
                _holder(charge, now, users(charge.entry), awaited, together)
                for charge in self._charges.values()
            ),
            *(
                Holder(NetworkKey(name, "", 0), budgets, size, 0)
                for name, budgets, size in self._loans.values()
            ),
        ]


def _holder(
    charge: _Charge,
    now: float,
    users: Collection[NetworkEntry],
    awaited: Collection[tuple[str, str]],
    together: Collection[tuple[str, str]],
) -> Holder:
    """
    Args:
        users: the pipelines that run it, at any depth.
        awaited: the networks that requests wait for, or have waited for and take now.
        together: those that stay for a pipeline.
    """
    entry, size = charge.entry, charge.size
    there = charge.bytes if size is None else size.peak
    later = charge.bytes if size is None else size.later
    loads = entry.state is NetworkState.LOADING and entry.given_up is None
    if entry.state is not NetworkState.READY:
        later = later if loads else 0
    reasons = [each for each in (_why_it_stays(each, now) for each in (entry, *users)) if each]
    stays, seconds = max(reasons, key=lambda each: each[1], default=("", 0.0))
    if entry.state is NetworkState.READY and entry.key[:2] in together:
        stays = stays or "the same pipeline needs it"
    sequences: frozenset[str] = frozenset()
    for each in (entry, *users) if not stays else ():
        executable = each.executable
        if executable is not None and executable.states:
            sequences |= executable.sequence_owners
            if sequences or each.references:  # one may be about to open
                stays = "a sequence is open on it"
    return Holder(
        entry.key,
        charge.budgets,
        there,
        later,
        stays,
        seconds,
        awaited=loads or any(each.key[:2] in awaited for each in (entry, *users)),
        users=tuple(each.key for each in users if each.state is NetworkState.READY),
        held=any(each.state is not NetworkState.READY for each in users),
        busy=entry.references > 0,
        uses=entry.uses_left(now),
        last_used=entry.last_used,
        who=entry.tenancy.asker.name,
        idle=now - entry.last_used > _IDLE_SECONDS,
        sequences=sequences,
    )


def _why_it_stays(entry: NetworkEntry, now: float) -> tuple[str, float] | None:
    """The reason, and for how many seconds at least; None if it makes room."""
    residence = entry.tenancy.residence
    idle = max(now - entry.last_used, 0.0)  # it may be used just now
    if entry.tenancy.again is None:
        return "it is a client's", 0.0
    if residence.pinned:
        return "it is pinned", math.inf
    if idle < residence.min_idle_seconds:
        seconds = residence.min_idle_seconds
        return f"it was used less than {seconds:g} s ago", seconds - idle
    return None
