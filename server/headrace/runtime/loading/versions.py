"""The versions of one name, and the choice of the version that gets the next request."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.loading.entry import SERVING, NetworkEntry, check_version

T = TypeVar("T")

WHOLE: Final = 100
"""Shares are per cent."""
MAX_SHARES: Final = 64
NO_SHARES: Final[Mapping[str, int]] = MappingProxyType({})


def highest(versions: Iterable[str]) -> str:
    """The numerically highest version."""
    return max(versions, key=int)


def check_shares(shares: Mapping[str, int], field: str = "traffic") -> dict[str, int]:
    """Returns the shares of a name's versions if each is a per cent and they add up to at most 100.

    Raises:
        InvalidArgument: the shares are not so.
    """
    if len(shares) > MAX_SHARES:
        raise InvalidArgument(f"names {len(shares)} versions; at most {MAX_SHARES}", field=field)
    for version, share in shares.items():
        check_version(version, field)
        if not 0 <= share <= WHOLE:
            message = f"version {version} gets {share}; a share is a whole number from 0 to {WHOLE}"
            raise InvalidArgument(message, field=field)
    if sum(shares.values()) > WHOLE:
        message = f"the shares add up to {sum(shares.values())}; at most {WHOLE}, for per cent"
        raise InvalidArgument(message, field=field)
    return dict(shares)


def weights(ready: Collection[str], shares: Mapping[str, int]) -> dict[str, int]:
    """The weight of each version: how often it is chosen, in proportion.

    The rest that the shares leave over goes to the highest version that they do not name. The share
    of a version that is not ready goes there too. If there is no such version, the named versions
    get the rest in proportion.

    Args:
        ready: the versions that can be chosen, at least one.
        shares: the per cent of each version that they name.
    """
    chosen = {version: share for version, share in shares.items() if share and version in ready}
    others = [version for version in ready if version not in shares]
    left = WHOLE - sum(chosen.values())
    if others and left:
        chosen[highest(others)] = left
    return chosen or {highest(ready): WHOLE}


class SmoothChoice(Generic[T]):
    """Chooses candidates in proportion to their weights. It spreads the choices of each candidate
    as evenly as possible, and never chooses at random.

    If the weights add up to n, each candidate is chosen exactly as often in n choices as its weight
    says. This is nginx's smooth weighted round robin. Not thread-safe.

    Args:
        candidates: the candidates with their positive weights.
    """

    def __init__(self, candidates: Mapping[T, int]) -> None:
        self._weights = list(candidates.items())
        self._total = sum(candidates.values())
        self._credit = [0] * len(self._weights)

    def next(self) -> T:
        credit = self._credit
        best = 0
        for index, (_, weight) in enumerate(self._weights):
            credit[index] += weight
            if credit[index] > credit[best]:
                best = index
        credit[best] -= self._total
        return self._weights[best][0]


class Versions:
    """The versions of one name that take requests or have failed. The registry's lock guards it.

    Attributes:
        shares: the per cent of each version that they name; empty if the highest version serves.
        serving: the per cent of the requests that each version gets, to the nearest whole number.
    """

    def __init__(self) -> None:
        self.entries: dict[str, NetworkEntry] = {}
        self.shares: dict[str, int] = {}
        self.serving: dict[str, int] = {}
        self._serving: NetworkEntry | None = None
        self._choice: SmoothChoice[NetworkEntry] | None = None

    def put(self, entry: NetworkEntry) -> None:
        """Adds a version. It replaces a version of the same number."""
        self.entries[entry.key.version] = entry
        self._settle()

    def take(self, versions: Collection[str]) -> list[NetworkEntry]:
        """Removes versions in one step, and returns them. Versions that do not exist are left
        out."""
        taken = [self.entries.pop(version) for version in versions if version in self.entries]
        if taken:
            self._settle()
        return taken

    def share(self, shares: Mapping[str, int]) -> None:
        """Gives each version its share from now on."""
        self.shares = dict(shares)
        self._settle()

    def chosen(self, version: str) -> list[NetworkEntry]:
        """The versions that requests for a version get, or requests without one if it is empty."""
        versions = [version] if version else self.serving
        return [self.entries[each] for each in versions if each in self.entries]

    def next(self) -> NetworkEntry | None:
        """The version that gets the next request; None if none is ready."""
        return self._serving if self._choice is None else self._choice.next()

    def holding(self, sequence: str) -> NetworkEntry | None:
        """The version on which a sequence of requests is open; None if there is no such version. A
        sequence stays on its version even if the shares change."""
        for entry in self.entries.values():
            if entry.executable is not None and entry.executable.has_sequence(sequence):
                return entry
        return None

    def taking(self) -> dict[str, NetworkEntry]:
        """The versions that take requests. A request to a cold one loads it."""
        entries = self.entries.items()
        return {version: entry for version, entry in entries if entry.state in SERVING}

    def shown(self) -> NetworkEntry | None:
        """The version that represents the name: the highest version that serves. If none serves, it
        is the highest version that failed."""
        if self._serving is not None:
            return self._serving
        return self.entries[highest(self.entries)] if self.entries else None

    def _settle(self) -> None:
        taking = self.taking()
        chosen = weights(taking, self.shares) if taking else {}
        whole = sum(chosen.values())
        self.serving = {version: round(WHOLE * each / whole) for version, each in chosen.items()}
        self._serving = taking[highest(chosen)] if chosen else None
        several = {taking[version]: weight for version, weight in chosen.items()}
        self._choice = SmoothChoice(several) if len(several) > 1 else None
