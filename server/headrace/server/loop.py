"""The event loop of a server: it outlives a want of memory."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

import uvloop

_log: Final = logging.getLogger(__name__)


class LastingLoop(uvloop.Loop):
    """uvloop, which goes on when memory has run out.

    A callback that raises ends itself, and the loop reports that and goes on. Where there is no
    memory for the report, uvloop stops. Then this goes on with what waits.
    """

    def run_forever(self) -> None:
        while True:
            try:
                super().run_forever()
            except MemoryError:
                with suppress(MemoryError):
                    _log.warning("the event loop had no memory for a report, and goes on")
            else:
                return
