"""Tables of files that people write."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from headrace.runtime.errors import InvalidArgument, NotFound


def check_table(facts: Any, known: Collection[str], field: str) -> None:
    """Checks that a value is a table, and that it has no other keys than these.

    Raises:
        InvalidArgument: it is no table.
        NotFound: it has another key.
    """
    if not isinstance(facts, dict):
        raise InvalidArgument("must be a table", field=field)
    for key in facts:
        if key not in known:
            raise NotFound.unknown("key", str(key)[:200], known, field=field)
