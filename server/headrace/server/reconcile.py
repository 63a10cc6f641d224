"""The steps from what a server has of a network to what it should have.

The model repository's folder, the state directory and a cluster's desired state each say what it
should have. `steps` is the one decision for all of them. It reads no clock, no disk and no server.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from headrace.runtime.loading.shadows.shadow import NO_SHADOW, Shadow


class Condition(enum.Enum):
    """What became of the last load of a version."""

    LOADING = enum.auto()
    READY = enum.auto()
    FAILED = enum.auto()
    UNLOADED = enum.auto()


@dataclass(frozen=True, slots=True)
class LastLoad:
    """The last load of a version.

    Attributes:
        stamp: the stamp that the version had then.
        config: the keys that have been changed since.
        may_pass: whether the load failed for a reason that may pass without a change.
    """

    stamp: object
    condition: Condition = Condition.READY
    config: Mapping[str, Any] = field(default_factory=dict)
    may_pass: bool = False


@dataclass(frozen=True, slots=True)
class WantedVersion:
    """A version that the server should have.

    Attributes:
        stamp: differs as soon as the version has to be loaded again.
        config: the keys to change after the load.
        at_rest: whether its files are complete, as far as anybody can see.
    """

    stamp: object
    config: Mapping[str, Any] = field(default_factory=dict)
    at_rest: bool = True


@dataclass(frozen=True, slots=True)
class Have:
    """What the server has of a network.

    Attributes:
        loads: the last load of each version that is loaded, or that somebody tried to load.
        shares: how the versions share the requests, in per cent.
        shadow: what gets a share of the requests too, if a client has said it.
        anothers: whether the name belongs to somebody else's network.
    """

    loads: Mapping[str, LastLoad] = field(default_factory=dict)
    shares: Mapping[str, int] = field(default_factory=dict)
    shadow: Shadow | None = None
    anothers: bool = False


@dataclass(frozen=True, slots=True)
class Want:
    """What the server should have of a network.

    Attributes:
        shadow: as `Have` has it.
        alone: whether the load of the only version replaces all others by itself.
        gone: versions that cannot stay until the wanted ones are ready: their files are gone.
        unsure: whether unwanted versions stay for now, because more files may come.
        retry: whether a load that failed for a reason that may pass is tried again.
        take_over: whether the network takes the name from somebody else's network.
    """

    versions: Mapping[str, WantedVersion] = field(default_factory=dict)
    shares: Mapping[str, int] = field(default_factory=dict)
    shadow: Shadow | None = None
    alone: bool = False
    gone: Collection[str] = ()
    unsure: bool = False
    retry: bool = True
    take_over: bool = False


NOTHING: Final = Have()


@dataclass(frozen=True, slots=True)
class LoadVersion:
    """Load a version. What serves under its name serves until the new one is ready."""

    version: str


@dataclass(frozen=True, slots=True)
class AwaitFiles:
    """Load a version later: its files may be incomplete."""

    version: str


@dataclass(frozen=True, slots=True)
class ChangeConfig:
    """Change keys of a loaded version."""

    version: str
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ShareRequests:
    """Share the requests between the versions."""

    shares: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class GiveShadow:
    """Give the network this shadow."""

    shadow: Shadow


@dataclass(frozen=True, slots=True)
class UnloadVersion:
    """Unload a version; an empty one stands for the whole network."""

    version: str = ""


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Unload the network that somebody else had under the name."""


Step: TypeAlias = (
    LoadVersion | AwaitFiles | ChangeConfig | ShareRequests | GiveShadow | UnloadVersion | TakeOver
)


def steps(have: Have, want: Want | None) -> list[Step]:
    """The steps from `have` to `want`, in their order.

    Each step is right if those before it have succeeded. If you do not wait for a load, take no
    UnloadVersion and no TakeOver after it, and ask again when the load has ended.

    Args:
        want: None if the server should have nothing under the name.
    """
    taking_over = want is not None and want.take_over
    if have.anothers and not taking_over:
        return []
    if want is None:
        return [UnloadVersion()]
    needed: list[Step] = []
    for version in sorted(want.versions, key=int):
        needed += _towards(version, have.loads.get(version), want.versions[version], want.retry)
    whole = _will_be_whole(have, want, needed)
    settled = not any(load.condition is Condition.LOADING for load in have.loads.values())
    if taking_over:
        if settled:
            needed += [TakeOver()] if whole else [UnloadVersion(each) for each in _loaded(have)]
        if not (settled and whole):
            return needed
    if want.shares != have.shares:
        needed.append(ShareRequests(want.shares))
    if want.shadow != have.shadow:
        needed.append(GiveShadow(want.shadow or NO_SHADOW))
    unsure = want.unsure or any(isinstance(step, AwaitFiles) for step in needed)
    if settled and not (want.alone or unsure or taking_over):
        needed += [
            UnloadVersion(version)
            for version in _loaded(have)
            if version not in want.versions
            and (whole or version in want.gone or _failed(have.loads[version]))
        ]
    return needed


def _towards(version: str, last: LastLoad | None, wanted: WantedVersion, retry: bool) -> list[Step]:
    """The step that a wanted version needs, if any."""
    if last is None or last.stamp != wanted.stamp or (last.may_pass and retry):
        if last is not None and last.condition is Condition.LOADING:
            return []  # its end asks again
        return [LoadVersion(version) if wanted.at_rest else AwaitFiles(version)]
    if last.condition is Condition.READY and last.config != wanted.config:
        return [ChangeConfig(version, wanted.config)]
    return []


def _will_be_whole(have: Have, want: Want, found: list[Step]) -> bool:
    """Whether all wanted versions are ready after these steps."""
    ready = {v for v, load in have.loads.items() if load.condition is Condition.READY}
    ready |= {step.version for step in found if isinstance(step, LoadVersion)}
    return want.versions.keys() <= ready


def _loaded(have: Have) -> list[str]:
    there = (v for v, load in have.loads.items() if load.condition is not Condition.UNLOADED)
    return sorted(there, key=int)


def _failed(last: LastLoad) -> bool:
    return last.condition is Condition.FAILED
