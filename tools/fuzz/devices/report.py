"""The fuzzer's report: each failure with its smallest reproduction, and a table at the end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tools.fuzz.devices.campaign import Campaign, Failure
from tools.fuzz.devices.judge import FAILURES, Verdict
from tools.fuzz.devices.variant import snippet, write

_MOST_LINES = 40


def describe(device: str, failure: Failure) -> str:
    """A failure in some lines, with code that shows it."""
    seen = "" if failure.confirmed else "; not seen again in a new process"
    lines = [
        f"{device}: {failure.operator}: {failure.verdict.value} ({failure.kind}){seen}",
        f"  {failure.text}",
        f"  first: --device {device} --replay {failure.names[0]} ({failure.smallest.origin}; "
        f"{', '.join(failure.smallest.mutations)})",
    ]
    code = snippet(failure.smallest, device).splitlines()
    if len(code) > _MOST_LINES:
        code = [*code[:_MOST_LINES], "..."]
    return "\n".join([*lines, *(f"    {line}" for line in code)])


def keep(folder: Path, device: str, failure: Failure) -> Path:
    """Writes the smallest reproduction into a folder of its own, which ``--replay`` takes."""
    parts = (device, failure.operator, failure.verdict.name, failure.kind, failure.names[0])
    path = folder / re.sub(r"[^\w.]+", "-", "-".join(parts))
    write(failure.smallest, path)
    (path / "failure.txt").write_text(describe(device, failure) + "\n", encoding="utf-8")
    return path


def table(campaigns: Sequence[Campaign]) -> str:
    """A row for each device and each verdict, as Markdown."""
    used = [each for each in Verdict if each in FAILURES or any(c.counts[each] for c in campaigns)]
    lines = [
        f"| | {' | '.join(each.device for each in campaigns)} |",
        f"| --- |{' ---: |' * len(campaigns)}",
        _row("seconds", [round(each.seconds) for each in campaigns]),
        _row("networks", [each.networks for each in campaigns]),
        _row("requests", [each.requests for each in campaigns]),
        *(_row(verdict.value, [each.counts[verdict] for each in campaigns]) for verdict in used),
        _row("networks skipped", [each.skipped for each in campaigns]),
        _row("process starts", [each.restarts + 1 for each in campaigns]),
    ]
    return "\n".join(lines)


def failures(campaign: Campaign) -> str:
    """A line for each sort of failure."""
    found = sorted(
        campaign.failures.values(), key=lambda each: (each.verdict.name, each.operator, each.kind)
    )
    return "\n".join(
        f"{campaign.device}: {each.count} x {each.verdict.value}, {each.operator}, {each.kind} "
        f"({', '.join(each.names)})"
        for each in found
    )


def notes(campaign: Campaign) -> str:
    """Some of the answers that the reference and another device do not agree on."""
    return "\n".join(
        f"{campaign.device}: {campaign.noted_counts[verdict, operator]} x {verdict.value}, "
        f"{operator}\n" + "\n".join(f"    {line}" for line in lines)
        for (verdict, operator), lines in sorted(
            campaign.noted.items(), key=lambda item: (item[0][0].name, item[0][1])
        )
    )


def _row(heading: str, cells: Sequence[int]) -> str:
    return f"| {heading} | {' | '.join(map(str, cells))} |"
