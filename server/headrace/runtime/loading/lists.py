"""The networks that a registry has, and the names that they have."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from headrace.runtime.errors import HeadraceError
from headrace.runtime.loading.entry import NetworkEntry, NetworkState
from headrace.runtime.loading.table import NO_LIMITS, NetworkTable, OwnerLimits, why_unusable


class NetworkLists:
    """The part of `NetworkRegistry` that reads.

    Args:
        limit: the most versions of networks at once that are loaded, being loaded or draining. A
            version that is being replaced adds one, because old and new exist side by side. A load
            that was given up counts until its backend returns.
        of_owner: the limits of each owner.
    """

    def __init__(self, limit: int, of_owner: OwnerLimits = NO_LIMITS) -> None:
        self._lock = threading.Lock()
        self._table = NetworkTable(limit, of_owner)

    def find(self, name: str, version: str = "") -> NetworkEntry:
        """A network in any state. Without a version it is the version that serves, or the highest
        version if none serves.

        Raises:
            NotFound: no network has the name, or no network of that name has the version.
        """
        with self._lock:
            entry = self._table.find(name, version)
        if entry is None:
            raise self._unusable(name, version)
        return entry

    def first(self, names: Sequence[str]) -> str:
        """The first name that a network has, in any state. If no network has one, `names[0]`."""
        return next(filter(self.has, names), names[0])

    def has(self, name: str) -> bool:
        """Whether a network has the name, in any state."""
        with self._lock:
            return name in self._table.names or bool(self._table.loading_of(name))

    def versions(self, name: str) -> list[NetworkEntry]:
        """The versions of a name in any state, the lowest first. If a version is being replaced, it
        is the entry that serves."""
        with self._lock:
            return list(self._table.all_of(name).values())

    def shares(self, name: str) -> dict[str, int]:
        """The shares that `share` set last."""
        with self._lock:
            return dict(self._table.versions(name).shares)

    def serving(self, name: str) -> dict[str, int]:
        """The per cent of the requests for each version that gets any."""
        with self._lock:
            return dict(self._table.versions(name).serving)

    def entries(self) -> list[NetworkEntry]:
        """All networks: first the current ones, then those being loaded, then those that drain."""
        with self._lock:
            return self._table.all()

    def failed(self) -> list[tuple[str, str]]:
        """The networks of which no version serves, and the versions that failed beside one that
        serves. A pair has a name and a version, which is empty for the whole network."""
        failed: list[tuple[str, str]] = []
        with self._lock:
            for name, versions in self._table.names.items():
                ready = versions.ready()
                if versions.entries and not ready:
                    failed.append((name, ""))
                elif len(ready) < len(versions.entries):
                    ended = NetworkState.FAILED
                    failed += (
                        (name, version)
                        for version, entry in versions.entries.items()
                        if entry.state is ended
                    )
        return sorted(failed)

    def _unusable(self, name: str, version: str) -> HeadraceError:
        with self._lock:
            versions, entry = self._table.all_of(name), self._table.find(name, version)
            names = list(self._table.names)
        return why_unusable(name, version, list(versions), entry, names)
