"""Notes in the cache, as JSON: what one server found out, later ones need not find out again."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.cache.entry import CacheKey, EntryRefused
from headrace.runtime.errors import HeadraceError

_log = logging.getLogger(__name__)

_MOST_BYTES: Final = 2**20  # a longer note is not kept
T = TypeVar("T")


class Notes:
    """Thread-safe. If a note cannot be read or kept, the log has a warning. Nothing is kept without
    a cache. What gives the facts that a note depends on may raise a `HeadraceError`."""

    def __init__(self, cache: NetworkCache | None, folder: str) -> None:
        self._cache = cache
        self._folder = folder

    def read(self, facts: Callable[[], object], made: Callable[[Any], T]) -> T | None:
        """What is made of the note of these facts; None if there is none."""
        if self._cache is None:
            return None
        try:
            found = self._cache.read(self._folder, CacheKey.of(facts()))
            return None if found is None else made(json.loads(found))
        except (EntryRefused, HeadraceError, KeyError, TypeError, ValueError) as error:
            _log.warning("a note in the cache's folder %r is not used: %s", self._folder, error)
            return None

    def write(self, facts: Callable[[], object], note: object) -> None:
        data = json.dumps(note, separators=(",", ":")).encode()
        if self._cache is None or len(data) > _MOST_BYTES:
            return
        try:
            self._cache.write(self._folder, CacheKey.of(facts()), data)
        except (HeadraceError, OSError, ValueError) as error:
            _log.warning("a note is not kept in the cache's folder %r: %s", self._folder, error)
