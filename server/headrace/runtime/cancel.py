"""Cancel tokens: a tree from the call down to the backend's hook.

Cancelling a token cancels its children and never its parent, so a member of a batch can leave while
its batch runs on, and a call that ends takes every part of its request with it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from headrace.runtime.errors import HeadraceError

_log = logging.getLogger(__name__)


class CancelToken:
    """Says once, with a reason, that nobody waits for the result any more. Thread-safe.

    `_lock` guards `_hooks` and the transition of `error`; hooks run outside it, on the thread that
    cancels, and must be brief.
    """

    __slots__ = ("_hooks", "_lock", "_parent", "error")

    def __init__(self, parent: CancelToken | None = None) -> None:
        self.error: HeadraceError | None = None
        self._lock = threading.Lock()
        self._hooks: list[Callable[[], None]] = []
        self._parent = parent
        if parent is not None:
            parent.attach(self._follow_parent)

    @property
    def cancelled(self) -> bool:
        return self.error is not None

    def child(self) -> CancelToken:
        """A token that is cancelled with this one, and can be cancelled alone."""
        return CancelToken(self)

    def cancel(self, error: HeadraceError) -> bool:
        """Cancels with `error` (Cancelled or DeadlineExceeded) as what the caller is told.

        Returns:
            False if it was cancelled before; the first reason stays.
        """
        with self._lock:
            if self.error is not None:
                return False
            self.error = error
            hooks, self._hooks = self._hooks, []
        for hook in hooks:
            self._call(hook)
        return True

    def attach(self, hook: Callable[[], None]) -> None:
        """Has `hook` called once on cancel; at once if that has happened."""
        with self._lock:
            if self.error is None:
                self._hooks.append(hook)
                return
        self._call(hook)

    def detach(self, hook: Callable[[], None]) -> None:
        """Forgets `hook`; no error if it is not attached (it may have just been called)."""
        with self._lock:
            if hook in self._hooks:
                self._hooks.remove(hook)

    def close(self) -> None:
        """Lets go of the parent, which may outlive this token by far."""
        if self._parent is not None:
            self._parent.detach(self._follow_parent)

    def _follow_parent(self) -> None:
        if self._parent is not None and self._parent.error is not None:
            self.cancel(self._parent.error)

    @staticmethod
    def _call(hook: Callable[[], None]) -> None:
        try:
            hook()
        except Exception:  # noqa: BLE001 - one party's hook must not keep others from hearing
            _log.exception("cancel hook failed")
