"""The desired state of a cluster: what every replica shall have, by key, with revisions.

Each change gets the next revision. A change names the revision that it builds on, so that two
clients who change the same thing through two replicas cannot overwrite each other unseen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

Value: TypeAlias = Mapping[str, Any]
"""Values for JSON. None stands for a removed key."""

NOTHING: Final = 0
"""The revision that a change builds on if the key does not exist."""

LOG_LENGTH: Final = 10_000
"""Changes that are kept for replicas. A replica that is further behind gets the whole state."""


class VersionedValue(NamedTuple):
    """A key's value, and the revision that gave it."""

    revision: int
    value: Value | None


class Changes(NamedTuple):
    """What a replica has to take over.

    Attributes:
        revision: the newest revision in the entries, or the replica's own.
        entries: the changed keys; a removed key has no value.
        whole: whether the entries are the whole state, so that other keys do not exist.
    """

    revision: int
    entries: Mapping[str, VersionedValue]
    whole: bool


class DesiredState:
    """Belongs to one thread.

    Args:
        entries: the state to begin with.
        revision: the newest revision that may have been given before.
    """

    def __init__(self, entries: Mapping[str, VersionedValue], revision: int = NOTHING) -> None:
        self.entries = dict(entries)
        self.revision = max([revision, *(entry.revision for entry in entries.values())])
        self._log: deque[tuple[str, VersionedValue]] = deque(maxlen=LOG_LENGTH)
        self._log_begins = self.revision

    def newest(self, key: str) -> int:
        """The newest revision of a key, which a change of it has to name."""
        return self.entries[key].revision if key in self.entries else NOTHING

    def change(self, key: str, value: Value | None) -> int:
        """Changes a key, and returns the change's revision. None removes the key."""
        self.revision += 1
        entry = VersionedValue(self.revision, value)
        if value is None:
            self.entries.pop(key, None)
        else:
            self.entries[key] = entry
        if len(self._log) == self._log.maxlen:
            self._log_begins = self._log[0][1].revision
        self._log.append((key, entry))
        return self.revision

    def since(self, revision: int) -> Changes:
        """The changes after a revision. It is the whole state if the log does not reach back."""
        if not self._log_begins <= revision <= self.revision:
            return Changes(self.revision, dict(self.entries), whole=True)
        changed: dict[str, VersionedValue] = {}
        for key, entry in reversed(self._log):  # most replicas need only the newest
            if entry.revision <= revision:
                break
            changed.setdefault(key, entry)
        return Changes(self.revision, changed, whole=False)
