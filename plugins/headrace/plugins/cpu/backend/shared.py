"""Sessions that the networks of one process share.

A session may run several requests at a time, and keeps nothing of them. So networks that would open
equal sessions have one. It is gone when the last of them has left.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from weakref import WeakValueDictionary

from headrace.plugins.cpu.backend.session import OnnxRuntimeSession
from headrace.runtime.cache.weights import WeightFiles


class SharedSessions:
    """Thread-safe: `_lock` guards the table. Nothing is opened under it: of two loads at the same
    time each opens a session, and both get the one that was opened first.

    Args:
        files: what the sessions map.
    """

    def __init__(self, files: WeightFiles) -> None:
        self.files = files
        self._lock = threading.Lock()
        self._sessions: WeakValueDictionary[Hashable, OnnxRuntimeSession] = WeakValueDictionary()

    def get(self, key: Hashable) -> OnnxRuntimeSession | None:
        """
        Args:
            key: all that the session depends on.
        """
        with self._lock:
            return self._sessions.get(key)

    def add(self, key: Hashable, opened: OnnxRuntimeSession) -> OnnxRuntimeSession:
        """The session that all share from now on."""
        with self._lock:
            return self._sessions.setdefault(key, opened)
