"""A gate: holds threads that come to it until the test opens it, and says who has come."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.support.patience import PATIENCE_SECONDS


class Gate:
    """Closed until `open`. Thread-safe; `_changed` guards the fields."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = False
        self._arrived = 0
        self._inside = 0
        self.most_inside = 0

    def __call__(self) -> None:
        """Waits until the gate is open."""
        with self._changed:
            self._arrived += 1
            self._inside += 1
            self.most_inside = max(self.most_inside, self._inside)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._open, PATIENCE_SECONDS)
            self._inside -= 1

    def open(self) -> None:
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def await_arrivals(self, count: int = 1) -> None:
        """Returns when `count` calls have come to the gate."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._arrived >= count, PATIENCE_SECONDS)


def join(*threads: threading.Thread) -> None:
    """Joins threads; fails the test if one does not end."""
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), f"{thread.name} hangs"


def run_together(*actions: Callable[[], object]) -> None:
    """Calls every action on a thread of its own, all let go at once, and raises what one raised."""
    barrier = threading.Barrier(len(actions))
    errors: list[BaseException] = []

    def call(action: Callable[[], object]) -> None:
        barrier.wait(PATIENCE_SECONDS)
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            errors.append(error)

    threads = [threading.Thread(target=call, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    join(*threads)
    if errors:
        raise errors[0]
