"""Measures what a request costs and how that grows, and writes it into the manual.

Usage: python -m tools.benchmark.report [--quick] [--only SECTIONS] PAGE PICTURES. PAGE is a
Markdown file with two marks; what is between them is replaced. PICTURES is the folder for the
plots. All figures are kept in .cache/benchmark-report.json. ``--only growth,peers`` measures these
sections and takes the others' figures from there; ``--only=`` measures nothing and writes the page
again. ``--quick`` takes one short round and fewer sizes, and shows that all works. ``make
benchmark-report`` runs this. The peers are measured if ``make benchmark-peers`` has made their
environments.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import psutil

from tools.benchmark.generator import Missing
from tools.benchmark.report import (
    connections,
    growth,
    networks,
    page,
    peers,
    requests,
    stages,
)
from tools.benchmark.report.section import QUICK, Effort, Pictures, Section

SECTIONS: Final[dict[str, Section]] = {
    "requests": requests,
    "stages": stages,
    "networks": networks,
    "connections": connections,
    "peers": peers,
    "growth": growth,
}
FAILED: Final = "it failed"
FIGURES: Final = Path(".cache/benchmark-report.json")


class Busy:
    """Which share of the processors' time other programs take, from now on."""

    def __init__(self) -> None:
        self._start = self._times()

    @property
    def others(self) -> float:
        idle, own, whole = (
            now - then for now, then in zip(self._times(), self._start, strict=True)
        )
        return max(0.0, 1 - (idle + own) / whole) if whole else 0.0

    @staticmethod
    def _times() -> tuple[float, float, float]:
        """Seconds of all processors: idle, this process and its ended children, all."""
        times, own = psutil.cpu_times(), psutil.Process().cpu_times()
        mine = own.user + own.system + own.children_user + own.children_system
        whole = times.user + times.nice + times.system + times.idle + times.iowait
        whole += times.irq + times.softirq + times.steal
        return times.idle + times.iowait, mine, whole


def measure(effort: Effort, names: Iterable[str]) -> dict[str, Any]:
    """The figures of some sections, and why others have none. A section that fails says so."""
    busy = Busy()
    found: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for name in names:
        start = time.monotonic()
        print(f"{SECTIONS[name].TITLE} ... ", end="", file=sys.stderr, flush=True)
        try:
            found[name] = SECTIONS[name].measure(effort)
        except Missing as error:
            missing[name] = str(error)
        except Exception:  # noqa: BLE001 - the other sections took minutes
            missing[name] = FAILED
            traceback.print_exc()
        print(missing.get(name, f"{time.monotonic() - start:.0f} s"), file=sys.stderr)
    return {
        "machine": page.machine(),
        "rounds": effort.rounds,
        "others": busy.others,
        "sections": found,
        "missing": missing,
    }


def joined(kept: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """New figures, and those that were kept of the sections that were not measured now."""
    asked = {**new["sections"], **new["missing"]}
    groups = {
        group: {name: each for name, each in kept.get(group, {}).items() if name not in asked}
        for group in ("sections", "missing")
    }
    return new | {group: groups[group] | new[group] for group in groups}


def section_names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if unknown := ", ".join(set(names) - set(SECTIONS)):
        raise argparse.ArgumentTypeError(f"no section {unknown}; there are {', '.join(SECTIONS)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description="See the module's docstring.")
    parser.add_argument("page", type=Path)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", type=section_names)
    given = parser.parse_args()
    kept = json.loads(FIGURES.read_text()) if given.only is not None and FIGURES.exists() else {}
    if given.only is None or given.only:
        figures = measure(QUICK if given.quick else Effort(), given.only or SECTIONS)
        figures = joined(kept, figures)
        FIGURES.parent.mkdir(exist_ok=True)
        FIGURES.write_text(json.dumps(figures, indent=1))
    given.pictures.mkdir(parents=True, exist_ok=True)
    figures = json.loads(FIGURES.read_text())
    text = page.report(SECTIONS, figures, Pictures(given.pictures, given.page))
    given.page.write_text(page.replace(given.page.read_text(), text))
    if failed := ",".join(name for name, why in figures["missing"].items() if why == FAILED):
        raise SystemExit(f"a part failed; measure it again with ARGS='--only {failed}'")


if __name__ == "__main__":
    main()
