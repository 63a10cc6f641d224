"""What a front end has to do, as the engine says it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from headrace.server.processes.relay import Row
from headrace.server.settings.settings import Settings


class Orders(NamedTuple):
    """
    Attributes:
        settings: those of the server, without its devices. The port is the one that all share.
        table: the methods.
    """

    settings: Settings
    table: list[Row]

    def to_json(self) -> bytes:
        facts = {
            each.name: getattr(self.settings, each.name)
            for each in fields(Settings)
            if "kind" in each.metadata
        }
        table: Sequence[Any] = [list(row) for row in self.table]
        return json.dumps([facts, table], default=str).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Orders:
        facts, table = json.loads(data)
        for each in fields(Settings):
            value = facts.get(each.name)
            if isinstance(value, list):
                facts[each.name] = tuple(value)
            elif isinstance(value, str) and "Path" in str(each.type):
                facts[each.name] = Path(value)
        return cls(Settings(**facts), [Row(*row) for row in table])
