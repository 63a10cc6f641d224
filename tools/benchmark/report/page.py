"""The part of the manual's page that the report writes."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from textwrap import fill
from typing import Any, Final

from headrace.runtime.system.processors import usable_processors
from tools.benchmark.report.section import Goal, Pictures, Section, table

WIDTH: Final = 100
BEGIN: Final = "<!-- begin: written by make benchmark-report -->\n"
END: Final = "<!-- end -->\n"
PACKAGES: Final = ("headrace", "grpcio", "protobuf", "uvloop", "numpy", "onnxruntime")
DISTURBED: Final = 0.1
"""The share of the processors' time from which on other programs disturb the figures."""


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [each.partition(":")[2].strip() for each in lines if each.startswith("model name")]
    return {
        "processors": usable_processors(),
        "processor": names[0] if names else platform.machine(),
        "linux": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
    }


def replace(page: str, text: str) -> str:
    """The page with another text between its marks.

    Raises:
        ValueError: the page lacks a mark.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {BEGIN.strip()} or {END.strip()}")
    return f"{before}{begin}{text}{end}{after}"


def report(sections: Mapping[str, Section], figures: Mapping[str, Any], pictures: Pictures) -> str:
    """The whole text.

    Args:
        figures: `machine`, `rounds`, `others` (the share of the processors' time that other
            programs took), `sections` (what each found, by its name), and `missing` (why the others
            have nothing).
    """
    found, missing = figures["sections"], figures["missing"]
    known = {name: section for name, section in sections.items() if name in found}
    goals = [goal for name, section in known.items() for goal in section.goals(found[name])]
    parts = [introduction(figures), goals_text(goals)]
    for name, section in sections.items():
        if name in known:
            told = section.text(found[name], pictures)
        else:
            told = f"Not measured: {missing.get(name, 'left out')}.\n"
        parts.append(f"### {section.TITLE}\n\n{told}")
    return wrapped("\n".join(parts))


def wrapped(text: str) -> str:
    """The text with the lines of paragraphs broken as in the rest of the page."""
    return "\n".join(
        line
        if line.startswith(("|", "!", "#"))
        else fill(line, WIDTH, break_long_words=False, break_on_hyphens=False)
        for line in text.split("\n")
    )


def introduction(figures: Mapping[str, Any]) -> str:
    where, others, rounds = figures["machine"], figures["others"], figures["rounds"]
    packages = ", ".join(f"{name} {number}" for name, number in where["packages"].items())
    effect = (
        "They disturbed the figures, so only the ratios count, and these vary too."
        if others > DISTURBED
        else "They hardly disturbed the figures."
    )
    medians = f"medians of {rounds} rounds" if rounds > 1 else "from one round, so they vary"
    return (
        f"Measured with Python {where['python']}, {packages}, on {where['processors']} processors "
        f"({where['processor']}) and Linux {where['linux']}. Other programs used "
        f"{others * 100:.0f} % of the processors' time meanwhile. {effect}\n\n"
        f"Figures are {medians}. A round asks all in turns, and a ratio is the median of "
        "the rounds' own ratios, so it can differ a little from the ratio of two medians. E is the "
        "server's processor time for a request to a bare echo of the same bytes from as many "
        "callers: grpc.aio on uvloop, bytes in, the same bytes out.\n"
    )


def goals_text(goals: list[Goal]) -> str:
    met = sum(goal.met for goal in goals)
    rows = table(("work", "goal", "measured", ""), [goal.row for goal in goals])
    return f"### Goals\n\n{met} of {len(goals)} goals are met.\n\n{rows}"
