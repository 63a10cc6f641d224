"""Makes threads take turns far more often than usual, so that races show."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frequent_switches(seconds: float = 1e-5) -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)
