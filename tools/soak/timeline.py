"""What is provoked when, and which errors and lines of the log that explains."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SLACK_SECONDS = 5.0
"""How long after its end a provocation still explains an error: replies are on their way."""


@dataclass
class Window:
    """The time of one provocation, in seconds since 1970."""

    name: str
    begin: float
    end: float = float("inf")
    facts: dict[str, Any] = field(default_factory=dict)

    def holds(self, at: float) -> bool:
        return self.begin <= at <= self.end + SLACK_SECONDS


@dataclass(frozen=True)
class Rule:
    """An error that a provocation explains. Each is a pattern of the whole text.

    Attributes:
        provocation: the window's name.
        code: the status.
        client: the process that has the error.
        network: the network, or the kind of the request.
    """

    provocation: str
    code: str
    client: str = ".*"
    network: str = ".*"

    def explains(self, client: str, error: Mapping[str, Any]) -> bool:
        return all(
            re.fullmatch(pattern, found)
            for pattern, found in (
                (self.code, str(error["code"])),
                (self.client, client),
                (self.network, str(error["network"])),
            )
        )


def unexplained(
    errors: Iterable[tuple[str, Mapping[str, Any]]],
    windows: Sequence[Window],
    rules: Sequence[Rule],
) -> list[str]:
    """The errors, each with its client, that no provocation explains."""
    found = []
    for client, error in errors:
        if not any(
            rule.explains(client, error) and window.name == rule.provocation
            for window in windows
            if window.holds(float(error["at"]))
            for rule in rules
        ):
            found.append(
                f"{client}: {error['kind']} of {error['network']}: {error['code']}: {error['text']}"
            )
    return found


def bad_lines(
    lines: Iterable[tuple[float, str, str]],
    windows: Sequence[Window],
    expected: Mapping[str, str],
) -> list[str]:
    """The lines of the server's log that say that something is wrong, and that no provocation
    explains.

    Args:
        lines: time, level and text of each line.
        expected: for each provocation the pattern of what the server may log meanwhile.
    """
    return [
        f"{level}: {text}"
        for at, level, text in lines
        if level not in ("debug", "info")
        if not any(
            re.search(expected[window.name], text)
            for window in windows
            if window.name in expected and window.holds(at)
        )
    ]
