"""A network in the desired state, and the steps that take a replica to it.

alone       whether the only version replaces all others of the name
versions    by version: the request to load it, the model's digest, the stamp of this load, and
            the keys that clients have changed since
shares      each version's per cent of the requests, if a client set them
replicas    how many replicas have it; 0 stands for all
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from headrace.cluster.desired import Value

PREFIX = "network/"


def key_of(name: str) -> str:
    """The key of the network with this full name."""
    return f"{PREFIX}{name}"


def loaded(
    before: Value | None,
    version: str,
    request: str,
    model: str,
    stamp: str,
    *,
    alone: bool,
    asked: int | None = None,
    size: int = 0,
) -> Value:
    """The network after a version was loaded.

    Args:
        request: how to load it, as `LoadRequest.to_json`.
        model: the digest of its model.
        stamp: differs from that of every other load, so that the same model loaded again is loaded
            again everywhere.
        alone: whether the version replaces all others of the name.
        asked: how many replicas the load asks for. None keeps the number.
        size: the bytes of its model.
    """
    own = {"request": request, "model": model, "stamp": stamp, "config": {}, "bytes": size}
    if before is None or alone:
        facts = {"alone": alone, "shares": {}, "replicas": asked or 0}
        return {**facts, "versions": {version: own}}
    kept = {} if before["alone"] else before["versions"]
    number = replicas(before) if asked is None else asked
    versions = {**kept, version: own}
    return {**before, "alone": False, "versions": versions, "replicas": number}


def unloaded(before: Value | None, versions: Collection[str] | None) -> Value | None:
    """The network without some versions; None stands for all of them."""
    if before is None or versions is None:
        return None
    left = {name: each for name, each in before["versions"].items() if name not in versions}
    return {**before, "versions": left} if left else None


def shared(before: Value, shares: Mapping[str, int]) -> Value:
    """The network with other shares of its requests."""
    return {**before, "shares": dict(shares)}


def configured(before: Value, version: str, changes: Mapping[str, str]) -> Value:
    """The network with changed keys of a version."""
    own = before["versions"][version]
    own = {**own, "config": {**own["config"], **changes}}
    return {**before, "versions": {**before["versions"], version: own}}


def models(value: Value | None) -> set[str]:
    """The digests of the models that the network needs."""
    return {each["model"] for each in value["versions"].values()} if value else set()


def replicas(value: Value | None) -> int:
    """How many replicas have the network; 0 stands for all. An older keeper wrote no number."""
    return int(value.get("replicas", 0)) if value is not None else 0


def bytes_of(value: Value) -> int:
    """The bytes of the models that the network needs, as far as they are known."""
    return sum(int(each.get("bytes", 0)) for each in value["versions"].values())


@dataclass(frozen=True)
class Load:
    """Load a version. It replaces the network that serves under its name."""

    version: str
    facts: Mapping[str, Any]
    alone: bool


@dataclass(frozen=True)
class Configure:
    """Change keys of a loaded version."""

    version: str
    changes: Mapping[str, str]


@dataclass(frozen=True)
class Unload:
    """Unload a version; an empty one stands for the whole network."""

    version: str = ""


@dataclass(frozen=True)
class Share:
    """Share the requests between the versions."""

    shares: Mapping[str, int]


Step: TypeAlias = Load | Configure | Unload | Share


def steps(have: Value | None, want: Value | None) -> list[Step]:
    """What a replica does with a network, in this order. Whatever is replaced serves until the new
    one is ready."""
    if want is None:
        return [Unload()]
    before: Mapping[str, Any] = have["versions"] if have is not None else {}
    after: Mapping[str, Any] = want["versions"]
    found: list[Step] = []
    for version in sorted(after, key=int):
        old, new = before.get(version), after[version]
        if old is None or old["stamp"] != new["stamp"]:
            found.append(Load(version, new, want["alone"]))
        elif old["config"] != new["config"]:
            found.append(Configure(version, new["config"]))
    if not want["alone"]:  # otherwise the load replaces them
        found += [Unload(version) for version in sorted(before.keys() - after.keys(), key=int)]
    if want["shares"] != (have["shares"] if have is not None else {}):
        found.append(Share(want["shares"]))
    return found
