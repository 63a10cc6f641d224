"""Tells an event loop of SIGTERM and SIGINT, in whichever thread it runs."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def on_stop_signal(tell: Callable[[], object]) -> None:
    """Has `tell` called on the running event loop at each of the signals.

    Python handles signals in its main thread only. If the loop runs in another one, the process is
    not Python's own. Whoever has started it has blocked the signals in all threads, and a thread
    waits for them.
    """
    loop = asyncio.get_running_loop()
    if threading.current_thread() is threading.main_thread():
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, tell)
        return

    def wait() -> None:
        with suppress(RuntimeError):  # the loop has ended
            while True:
                signal.sigwait(STOP_SIGNALS)
                loop.call_soon_threadsafe(tell)

    threading.Thread(target=wait, name="headrace-signals", daemon=True).start()
