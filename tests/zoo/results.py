"""Results that outlive a run, so that a run of a part replaces only its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from tests.zoo.page import Row
from tests.zoo.trial import Outcome, Result


def read(path: Path) -> dict[str, Row]:
    """The kept results by network; none if there is no file."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    return {network: _row(network, each) for network, each in found.items()}


def write(path: Path, rows: Mapping[str, Row]) -> None:
    """Replaces the file."""
    text = json.dumps({network: asdict(row) for network, row in rows.items()}, default=_plain)
    path.write_text(text, encoding="utf-8")


def merged(old: Row | None, new: Row) -> Row:
    """The new results, and the old ones of other devices if the requests are the same."""
    if old is None or list(old.requests) != list(new.requests):
        return new
    return Row(new.network, new.requests, {**old.results, **new.results})


def _row(network: str, kept: dict[str, object]) -> Row:
    results, requests = kept["results"], kept["requests"]
    assert isinstance(results, dict)
    assert isinstance(requests, list)
    return Row(
        network,
        requests,
        {
            device: Result(**{**each, "outcome": Outcome(each["outcome"])})
            for device, each in results.items()
        },
    )


def _plain(value: object) -> object:
    assert isinstance(value, Outcome)
    return value.value
