"""A network in the desired state.

alone       whether the only version replaces all others of the name
versions    by version: the request to load it, the model's digest, the stamp of this load, and
            the keys that clients have changed since
shares      each version's per cent of the requests, if a client set them
shadow      the shadow, as `Shadow` has it, if a client set one
replicas    how many replicas have it; 0 stands for all
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from headrace.cluster.desired import Value
from headrace.runtime.loading.shadows.shadow import Shadow, check_shadow
from headrace.server.reconcile import NOTHING, Have, LastLoad, Want, WantedVersion

PREFIX = "network/"


def key_of(name: str) -> str:
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
        if before is not None and "shadow" in before:
            facts["shadow"] = before["shadow"]
        return {**facts, "versions": {version: own}}
    kept = {} if before["alone"] else before["versions"]
    number = replicas(before) if asked is None else asked
    versions = {**kept, version: own}
    return {**before, "alone": False, "versions": versions, "replicas": number}


def unloaded(before: Value | None, versions: Collection[str] | None) -> Value | None:
    """The network without some versions; None stands for all of them."""
    if before is None or versions is None:
        return None
    left = {name: version for name, version in before["versions"].items() if name not in versions}
    return {**before, "versions": left} if left else None


def shared(before: Value, shares: Mapping[str, int]) -> Value:
    return {**before, "shares": dict(shares)}


def shadowed(before: Value, shadow: Shadow) -> Value:
    return {**before, "shadow": shadow._asdict()}


def configured(before: Value, version: str, changes: Mapping[str, str]) -> Value:
    own = before["versions"][version]
    own = {**own, "config": {**own["config"], **changes}}
    return {**before, "versions": {**before["versions"], version: own}}


def models(value: Value | None) -> set[str]:
    """The digests of the models that the network needs."""
    return {version["model"] for version in value["versions"].values()} if value else set()


def replicas(value: Value | None) -> int:
    """How many replicas have the network; 0 stands for all. An older keeper wrote no number."""
    return int(value.get("replicas", 0)) if value is not None else 0


def bytes_of(value: Value) -> int:
    """The bytes of the models that the network needs, as far as they are known."""
    return sum(int(version.get("bytes", 0)) for version in value["versions"].values())


def have(value: Value | None) -> Have:
    """What a replica has of a network that it took over as `value`."""
    if value is None:
        return NOTHING
    loads = {
        v: LastLoad(version["stamp"], config=version["config"]) for v, version in _versions(value)
    }
    return Have(loads, value["shares"], _shadow(value))


def want(value: Value | None) -> Want | None:
    """What a replica should have of a network whose desired state is `value`."""
    if value is None:
        return None
    versions = {
        v: WantedVersion(version["stamp"], version["config"]) for v, version in _versions(value)
    }
    return Want(versions, value["shares"], _shadow(value), alone=value["alone"])


def _shadow(value: Value) -> Shadow | None:
    return check_shadow(Shadow(**value["shadow"])) if "shadow" in value else None


def _versions(value: Value) -> Iterable[tuple[str, Mapping[str, Any]]]:
    versions: Mapping[str, Mapping[str, Any]] = value["versions"]
    return versions.items()
