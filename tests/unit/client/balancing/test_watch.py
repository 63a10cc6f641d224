"""The thread of a client with several servers."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from headrace.client.balancing.sync.watch import Watch
from tests.support.gate import join


def test_a_stop_that_comes_as_the_thread_looks_ends_it() -> None:
    fleet = SimpleNamespace(may_sleep=lambda: True, due=lambda: (), must_resolve=lambda _: False)
    group = SimpleNamespace(name=None, fleet=fleet, forget_retired=lambda: ())
    client: Any = SimpleNamespace(fleet=fleet, group=group)
    watch = Watch(client)

    class Woken(threading.Event):
        def clear(self) -> None:
            watch.stop()
            super().clear()

    watch._woken = Woken()
    thread = threading.Thread(target=watch._run, daemon=True)
    thread.start()
    join(thread)
