"""The console script ``headrace``: runs the command line and makes sure that it ends properly.

It is a package of its own, so that it handles Ctrl-C before anything large is imported.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

INTERRUPTED: Final = 130
"""The exit status after Ctrl-C, as shells define it: 128 plus the signal's number."""


def main() -> None:
    """Runs the command line. Exit status: 0, 1 for an error, 2 for wrong usage, 130 for Ctrl-C."""
    try:
        _run()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def _run() -> None:
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        sys.exit(f"error: the command line needs {names}; install headrace with its extra 'cli'")
    # gRPC's core writes lines of its own to stderr, for example for each failed handshake.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    gc.disable()  # what imports make stays: looks for garbage among it take a tenth of their time
    with _interrupts_ending_it_at_once():
        from headrace.client.cli import failures
        from headrace.client.cli.app import make_app

        app = make_app(_arguments())
    gc.enable()
    try:
        app()
    except Exception as error:
        if os.environ.get("HEADRACE_DEBUG"):
            raise
        details = failures.unexpected(error)
        told = failures.told(details.message, details, as_json="--json" in sys.argv)
        sys.exit(told)


def _arguments() -> list[str]:
    """The arguments. Where a shell asks what may come next, those before it."""
    if "_HEADRACE_COMPLETE" not in os.environ:
        return sys.argv[1:]
    place = os.environ.get("COMP_CWORD", "")
    words = os.environ.get("COMP_WORDS", "").split()
    return words[1 : int(place)] if place.isdecimal() else []


@contextmanager
def _interrupts_ending_it_at_once() -> Iterator[None]:
    """Lets Ctrl-C end the program at once during imports, because some modules take a
    KeyboardInterrupt for a failed import.
    """
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.default_int_handler:  # ignored, as in the background of a script
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
