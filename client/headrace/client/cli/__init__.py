"""The command line ``headrace``; needs the extra ``cli`` (typer and rich)."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import grpc

from headrace.client.cli.failures import told
from headrace.wire.errors import ErrorDetails


def main() -> None:
    """The console script. Exit status: 0, 1 for an error, 2 for wrong usage."""
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        print(
            f"error: the command line needs {' and '.join(missing)}; "
            "install it with: pip install 'headrace[cli]'",
            file=sys.stderr,
        )
        raise SystemExit(1)
    # Only now, as it imports them.
    from headrace.client.cli.app import make_app

    try:
        make_app(sys.argv[1:])()
    except Exception as error:
        if os.environ.get("HEADRACE_DEBUG"):
            raise
        message = f"{type(error).__name__}: {error}; this is a bug, HEADRACE_DEBUG=1 shows where"
        details = ErrorDetails(grpc.StatusCode.INTERNAL, message, reason="BUG")
        print(told(message, details, as_json="--json" in sys.argv), file=sys.stderr)
        raise SystemExit(1) from None
