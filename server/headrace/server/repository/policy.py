"""The policy that chooses which versions of a network are loaded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.loading.entry import check_version

_MAX_VERSIONS: Final = 1000


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """
    Attributes:
        latest: how many of the highest version numbers to load. None loads all.
        specific: the only versions to load. None allows any version.
    """

    latest: int | None = None
    specific: frozenset[str] | None = None

    def choose(self, there: Iterable[str]) -> set[str]:
        """The versions to load, out of those that exist."""
        ordered = sorted(there, key=int, reverse=True)
        if self.specific is not None:
            return set(self.specific.intersection(ordered))
        return set(ordered[: self.latest])

    def told(self) -> dict[str, Any]:
        """The policy in Triton's form."""
        if self.specific is not None:
            return {"specific": {"versions": sorted(map(int, self.specific))}}
        return {"all": {}} if self.latest is None else {"latest": {"num_versions": self.latest}}


LATEST: Final = VersionPolicy(latest=1)
"""The default policy."""


def parse_policy(policy: Any, field: str) -> VersionPolicy:
    """
    Args:
        policy: ``"all"``, ``{"latest": 2}`` or ``{"specific": [1, 3]}``, or Triton's form of these,
            for example ``{"latest": {"num_versions": 2}}``. None gives the default.

    Raises:
        InvalidArgument: `policy` is none of these.
    """
    if policy is None:
        return LATEST
    if isinstance(policy, str):
        policy = {policy: {}}
    if isinstance(policy, dict) and len(policy) == 1:
        ((kind, value),) = policy.items()
        if kind == "all" and value == {}:
            return VersionPolicy()
        if kind == "latest":
            count = value.get("num_versions", 1) if isinstance(value, dict) else value
            if type(count) is int and 1 <= count <= _MAX_VERSIONS:
                return VersionPolicy(latest=count)
        if kind == "specific":
            versions = value.get("versions") if isinstance(value, dict) else value
            if isinstance(versions, list) and len(versions) <= _MAX_VERSIONS:
                return VersionPolicy(
                    specific=frozenset(check_version(str(version), field) for version in versions)
                )
    raise InvalidArgument(
        f'{str(policy)[:200]} is not a version policy: "all", {{latest = N}} or '
        f"{{specific = [1, 3]}}, with at most {_MAX_VERSIONS} versions",
        field=field,
    )
