"""Reads TOML that somebody wrote. Whatever is wrong with it is a `ValueError` that says what."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any, Final

_MOST_LEVELS: Final = 32
_LARGEST: Final = 2**63  # TOML has integers of 64 bits, Python's parser of any size
# Python's parser takes quadratic time for one key of many parts.
_LONG_KEY: Final = re.compile(
    rf"(?<![\w\"'-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){{{_MOST_LEVELS}}}", re.ASCII
)


def parse_toml(data: bytes) -> dict[str, Any]:
    """
    Raises:
        ValueError: `data` is not TOML in UTF-8, or more than `_MOST_LEVELS` tables and lists lie in
            each other, or a whole number has more than 64 bits.
    """
    try:
        text = data.decode("utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8, save it as UTF-8: {error}") from error
    if _LONG_KEY.search(text):
        raise _too_deep()
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"is not TOML: {error}") from error
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # Python converts no decimal number of more than 4,300 digits
        raise _too_large("a whole number") from None
    for where, value, depth in _walk(table):
        if depth > _MOST_LEVELS:
            raise _too_deep()
        if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
            raise _too_large(where)
    return table


def _walk(table: dict[str, Any]) -> Iterator[tuple[str, Any, int]]:
    """Each value, with the key that it lies under and its depth."""
    left: list[tuple[str, Any, int]] = [("", table, 0)]
    while left:
        where, value, depth = each = left.pop()
        yield each
        if isinstance(value, dict):
            start = f"{where}." if where else ""
            left += [(f"{start}{key}", inner, depth + 1) for key, inner in value.items()]
        elif isinstance(value, list):
            left += [(where, inner, depth + 1) for inner in value]


def _too_deep() -> ValueError:
    return ValueError(f"has tables or lists more than {_MOST_LEVELS} levels deep")


def _too_large(where: str) -> ValueError:
    return ValueError(f"{where} has more than 64 bits; write a smaller number, or text in quotes")
