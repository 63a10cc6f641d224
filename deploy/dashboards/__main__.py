"""Writes deploy/grafana/dashboards: ``python -m deploy.dashboards``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.dashboards import devices, hetero, networks, process

FOLDER: Final = Path(__file__).parents[1] / "grafana" / "dashboards"
BOARDS: Final[Mapping[str, Dashboard]] = {
    "devices": devices.BOARD,
    "networks": networks.BOARD,
    "hetero": hetero.BOARD,
    "process": process.BOARD,
}


def text_of(board: Dashboard) -> str:
    return json.dumps(board, cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    for name, board in BOARDS.items():
        (FOLDER / f"{name}.json").write_text(text_of(board), encoding="utf-8")
