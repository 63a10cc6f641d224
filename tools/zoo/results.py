"""Results that outlive a run, so that a run of a part replaces only its own."""

from __future__ import annotations

import fcntl
import json
from dataclasses import asdict
from pathlib import Path

from tools.zoo.page import Row
from tools.zoo.trial import Outcome, Result


def read(path: Path) -> dict[str, Row]:
    """The kept results by network; none if there is no file."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    return {network: _row(network, each) for network, each in found.items()}


def add(path: Path, row: Row) -> None:
    """Writes a network's new results into the file; other runs may do so at the same time."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = read(path)
        kept[row.network] = merged(kept.get(row.network), row)
        text = json.dumps({network: asdict(each) for network, each in kept.items()}, default=_plain)
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
