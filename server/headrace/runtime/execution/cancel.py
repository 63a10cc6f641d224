"""Cancel tokens: a tree from the call down to the backend's hook.

Cancelling a token cancels its children but never its parent. So a member of a batch can leave while
the batch runs on, and a call that ends cancels every part of its request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from headrace.runtime.errors import HeadraceError
from headrace.runtime.system import interruption

_log = logging.getLogger(__name__)


def current_token() -> CancelToken | None:
    """The token of the load or query that this thread works on, if there is one."""
    token = interruption.current()
    return token if isinstance(token, CancelToken) else None


def _right_to_cancel() -> None:
    """A marker among the hooks of a token. The thread that removes it may cancel the token."""


class CancelToken:
    """Tells once, with a reason, that the result is no longer wanted. Thread-safe.

    It needs no lock: only the thread that takes a hook out of `_hooks` calls the hook, because
    `list.append`, `pop` and `remove` are atomic. `remove` is atomic only if comparing hooks runs no
    Python code, as with functions, bound methods and partials. Hooks run on the thread that
    cancels, and must be brief.
    """

    __slots__ = ("_hooks", "_parent", "error")

    def __init__(self, parent: CancelToken | None = None) -> None:
        self.error: HeadraceError | None = None
        self._hooks: list[Callable[[], object]] = [_right_to_cancel]
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
        """Cancels the token. The caller gets `error`, which is Cancelled or DeadlineExceeded.

        Returns:
            False if the token was cancelled before. The first error stays; `error` may be set a
            moment later.
        """
        if not self.detach(_right_to_cancel):
            return False
        self.error = error
        # A hook attached before this is called here; `attach` calls one that comes later.
        while self._hooks:
            try:
                hook = self._hooks.pop(0)
            except IndexError:
                break
            self._call(hook)
        return True

    def attach(self, hook: Callable[[], object]) -> None:
        """Has `hook` called once on cancel, or at once if the token is cancelled already."""
        self._hooks.append(hook)
        if self.error is not None and self.detach(hook):
            self._call(hook)

    def detach(self, hook: Callable[[], object]) -> bool:
        """Forgets `hook`.

        Returns:
            Whether it was attached. If so, nobody calls it any more. If not, it has been called, or
            will be in a moment.
        """
        try:
            self._hooks.remove(hook)
        except ValueError:
            return False
        return True

    def close(self) -> None:
        """Drops the reference to the parent, which may live much longer than this token."""
        if self._parent is not None:
            self._parent.detach(self._follow_parent)

    def _follow_parent(self) -> None:
        if self._parent is not None and self._parent.error is not None:
            self.cancel(self._parent.error)

    @staticmethod
    def _call(hook: Callable[[], object]) -> None:
        try:
            hook()
        except Exception:  # noqa: BLE001 - a failing hook must not keep other hooks from running
            _log.exception("cancel hook failed")
