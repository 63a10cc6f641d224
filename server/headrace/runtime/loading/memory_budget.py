"""How much memory the networks of each device may take, and which of them make room for others.

It reads no clock and no memory: the shell (`memory_room.py`) tells what is there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.runtime.errors import ResourceExhausted
from headrace.runtime.loading.entry import NetworkKey, owner_of, plain_name

SHARED: Final = ""
"""Stands for all devices together."""

_MIB: Final = 2**20
_PEAK: Final = 3
"""What a load takes at most, as a multiple of the weights in float32, beside pages of files.
Measured with ONNX Runtime and 100 MB: MatMul 1.1, Gemm and int8 1.7, Conv 3.1; float16 2.5 of 200
MB, because it becomes float32."""
_OTHERS: Final = 4 * _MIB
"""What a load takes beside the weights."""
_TOLD: Final = 5
_SHORTEST_DELAY_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """
    Attributes:
        bytes: the most of each device; of `SHARED`, of all devices together. Empty for no limit.
    """

    bytes: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.bytes)

    def counts(self, devices: Iterable[str]) -> frozenset[str]:
        """The budgets that a network on these devices counts for."""
        return frozenset(self.bytes.keys() & {SHARED, *devices})


NO_BUDGET: Final = MemoryBudget()


class Holder(NamedTuple):
    """A network that takes memory, or will.

    Attributes:
        budgets: those that it counts for.
        later: the bytes that it will take by itself: less than now while it is being loaded, none
            if it leaves already.
        stays: why it makes no room for others; empty if it may.
        stays_seconds: for how long it stays at least; infinite if it is pinned.
        awaited: whether it makes no room until the requests that waited for it, or for a pipeline
            that runs it, have begun.
        users: the pipelines that run it, at any depth, which leave before it.
        held: whether a pipeline still runs it that leaves already.
        busy: whether requests to it are under way.
        uses: how often it was used, as `NetworkEntry.uses_left` counts.
        last_used: when it was used last.
        who: the identity whose request has loaded it; empty for the server's own.
        idle: whether nobody has used it for some time. It then counts for nobody's share.
        sequences: the identities whose open sequences alone keep it.
    """

    key: NetworkKey
    budgets: frozenset[str]
    bytes: int
    later: int
    stays: str = ""
    stays_seconds: float = 0.0
    awaited: bool = False
    users: tuple[NetworkKey, ...] = ()
    held: bool = False
    busy: bool = False
    uses: float = 0.0
    last_used: float = 0.0
    who: str = ""
    idle: bool = False
    sequences: frozenset[str] = frozenset()


class WeightSize(NamedTuple):
    """The weights of a network.

    Attributes:
        widened_bytes: with those of 16 bits in float32.
        mapped: whether a loaded network maps the same ones, and counts for them.
        kept: whether the network's last load has mapped them, so that a file has them.
    """

    bytes: int
    widened_bytes: int
    mapped: bool = False
    kept: bool = False

    @property
    def own_bytes(self) -> int:
        """What a network counts for at least."""
        return 0 if self.mapped else self.bytes


class LoadSize(NamedTuple):
    """What a load takes while it lasts, at most, and what is left of that."""

    peak: int
    later: int

    @classmethod
    def of(cls, weights: WeightSize, known_bytes: int = 0) -> LoadSize:
        """
        Args:
            known_bytes: what the network took after its last load; 0 if it was not loaded before.
        """
        later = 0 if weights.mapped else max(weights.bytes, known_bytes)
        # Each weight that a file has is packed all the same, and then dropped.
        times = 1 if weights.mapped or weights.kept else _PEAK
        return cls(max(later, times * weights.widened_bytes) + _OTHERS, later)

    def and_more(self, size: int) -> LoadSize:
        return LoadSize(self.peak + size, self.later + size)


def make_room(
    name: str,
    size: LoadSize,
    budgets: Iterable[str],
    budget: MemoryBudget,
    there: Sequence[Holder],
    who: str = "",
    *,
    stays: bool = False,
) -> list[NetworkKey] | None:
    """The networks that leave so that another one may be loaded, the least used first. An empty
    list if it may be loaded now. None if it may be loaded later, without another one leaving.

    Networks of the identity that has the most memory leave first, and those of one that has less
    than the load's own last. So whoever asks for many networks drives out its own.

    Of one identity, not the least recently used first: single requests to many networks would drive
    out those that most requests ask for. With room for 16 of 100 networks and requests by Zipf's
    law (1.1), 17 of 100 requests to the ten most wanted would wait for a load, and less than 1 in
    1000 do so.

    Open sequences keep a network, as long as what each identity keeps so is no more than what is
    left for others.

    Networks without requests leave before busy ones, which leave after their last request. A
    network whose load takes more than the whole budget for a moment is loaded alone.

    Args:
        name: its full name.
        budgets: those that it counts for.
        who: the identity that asks for it.
        stays: whether it never makes room for others.

    Raises:
        ResourceExhausted: it does not fit, even if all leave that may; or it stays, and what stays
            of its owner would take more than is left for others.
    """
    leaving: list[NetworkKey] = []
    waits = False
    for device in budgets:
        most = budget.bytes[device]
        need = min(size.peak, max(most, size.later))
        holders = [each for each in there if device in each.budgets]
        if stays:
            _check_share(name, size.later, device, most, holders)
        later = {each.key: each.later for each in holders if each.key not in leaving}
        while sum(later.values()) + need > most:
            may = [each for each in holders if each.later and not each.stays and each.key in later]
            may += _beyond_share(holders, later, most, who)
            if not may:
                break
            each = _first_to_leave(may, later, who, size.later)
            del later[each.key]
            if each.awaited or each.held:
                waits = True
            elif each.users:
                for user in each.users:
                    later.pop(user, None)
                leaving += [user for user in each.users if user not in leaving]
                waits = True
            else:
                leaving.append(each.key)
        after = sum(later.values())
        if after + need > most:
            raise _no_room(name, device, need, most, [each for each in holders if each.later])
        waits = waits or sum(each.bytes for each in holders) + need > most
    if leaving:
        return leaving
    return None if waits else []


def _beyond_share(
    holders: Iterable[Holder], later: Mapping[NetworkKey, int], most: int, who: str
) -> list[Holder]:
    """The networks that stay for the open sequences of identities alone that keep more than what
    stays leaves free. Of who asks itself, all sequences stay."""
    stay = [each for each in holders if each.stays and later.get(each.key)]
    kept: Counter[str] = Counter()
    for each in stay:
        kept.update(dict.fromkeys(each.sequences, later[each.key]))
    free = most - sum(later[each.key] for each in stay)
    beyond = {each for each, size in kept.items() if each not in ("", who) and size > free}
    return [each for each in stay if each.sequences and each.sequences <= beyond]


def _first_to_leave(
    may: Sequence[Holder], later: Mapping[NetworkKey, int], who: str, size: int
) -> Holder:
    """
    Args:
        may: the networks that may leave.
        later: the bytes of those that have not left yet.
        who: the identity that asks for a load of `size` bytes.
    """
    held = Counter({who: size})
    for each in may:
        held[each.who] += 0 if each.idle else later[each.key]
    top = max(held.values())

    def key(each: Holder) -> tuple[bool, bool, int, bool, float, float]:
        share = top if each.idle else held[each.who]
        less = each.who != who and share < held[who]
        return each.awaited, less, -share, each.busy, each.uses, each.last_used

    return min(may, key=key)


def _check_share(name: str, size: int, device: str, most: int, holders: Iterable[Holder]) -> None:
    """
    Raises:
        ResourceExhausted: what stays of the network's owner would take more than is left, or the
            first of it more than half of all.
    """
    owner = owner_of(name)
    if not owner:
        return
    stay = [each for each in holders if each.stays]
    mine = sum(each.later for each in stay if owner_of(each.key.name) == owner)
    if not mine and 2 * size > most:
        raise ResourceExhausted(
            f"network {plain_name(name)!r} takes {_shown(size)}, and one client may have half of "
            f"the {_shown(most)} of the memory budget of {device or 'all devices'}; load a smaller "
            "one, or ask for a larger --memory-budget"
        )
    if mine and mine + size > most - sum(each.later for each in stay):
        raise ResourceExhausted(
            f"network {plain_name(name)!r} takes {_shown(size)}, and your networks have "
            f"{_shown(mine)} of the memory budget of {device or 'all devices'}, as much as one "
            "client may have now; unload one of them"
        )


def _no_room(name: str, device: str, need: int, most: int, stay: list[Holder]) -> ResourceExhausted:
    text = (
        f"network {plain_name(name)!r} needs {_shown(need)} to load, and the memory budget of "
        f"{device or 'all devices'} has {_shown(most)}"
    )
    if need > most:
        return ResourceExhausted(f"{text}; give --memory-budget more")
    owners = "", owner_of(name)  # nobody hears of another tenant's networks
    stay = sorted((each for each in stay if each.stays), key=lambda each: -each.later)
    told = [each for each in stay if owner_of(each.key.name) in owners][:_TOLD]
    held = [f"{plain_name(each.key.name)!r} {_shown(each.later)} ({each.stays})" for each in told]
    if others := [each.later for each in stay if each not in told]:
        held.append(f"{_shown(sum(others))} of {len(others)} more")
    text += f", of which stay {', '.join(held)}"
    left, seconds = need - most + sum(each.later for each in stay), 0.0
    for each in sorted(stay, key=lambda each: each.stays_seconds):
        if left <= 0:
            break
        left, seconds = left - each.later, each.stays_seconds
    if math.isinf(seconds):
        return ResourceExhausted(f"{text}; unload one of them, or give --memory-budget more")
    error = ResourceExhausted(f"{text}; try again later")
    error.retry_delay_seconds = max(seconds, _SHORTEST_DELAY_SECONDS)
    return error


def _shown(size: int) -> str:
    return f"{size / _MIB:.0f} MiB"


class MemoryMeter:
    """Finds out what loads take, although they overlap. While one is under way, nobody can tell
    what of the memory it will give back. So the loads that overlap are measured together, when the
    last of them has ended, and what they took is shared out in proportion to their weights.
    Requests and a device's start take memory meanwhile, too. So no network counts for more than its
    load may take.

    Not thread-safe. `total` is the memory of all processes now.
    """

    def __init__(self) -> None:
        self._before = 0
        self._under_way: dict[NetworkKey, WeightSize] = {}
        self._ended: dict[NetworkKey, WeightSize] = {}

    def begin(self, key: NetworkKey, weights: WeightSize, total: int) -> None:
        if not self._under_way:
            self._before = total
        self._under_way[key] = weights

    def end(self, key: NetworkKey, total: int) -> dict[NetworkKey, int]:
        """Notes that a network is loaded. Returns what each network takes of which it is known now,
        at least its weights."""
        self._ended[key] = self._under_way.pop(key)
        return self._measured(total)

    def give_up(self, key: NetworkKey, total: int) -> dict[NetworkKey, int]:
        """Notes that a load has failed, maybe before it was noted. Returns the same as `end`."""
        self._under_way.pop(key, None)
        return self._measured(total)

    def freed(self, count: int) -> None:
        """Notes that a network is gone that took `count` bytes."""
        self._before -= count

    def _measured(self, total: int) -> dict[NetworkKey, int]:
        if self._under_way:
            return {}
        ended, self._ended = self._ended, {}
        whole = sum(max(weights.bytes, 1) for weights in ended.values())
        beside = max(total - self._before - sum(each.own_bytes for each in ended.values()), 0)
        return {
            key: min(each.own_bytes + beside * max(each.bytes, 1) // whole, LoadSize.of(each).peak)
            for key, each in ended.items()
        }
