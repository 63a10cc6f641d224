"""The published table: what each device makes of each network."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tools.zoo.comparison import CLOSE, OWN_TIMES, RIGHT
from tools.zoo.trial import FAILURES, Outcome, Result

# What ONNX Runtime runs has to be right on the first, and at least close on the others, which may
# compute parts of it on another backend.
MUST_BE_RIGHT = ("CPU", "AUTO")
MUST_BE_CLOSE = ("HETERO", "MULTI", "BATCH")
_NOT_BATCHED = "requests to this network cannot run together"  # as BATCH says it, for its own part
_REASON_LENGTH = 300

_HEAD = """\
# Real networks

Written by `make zoo`; do not edit.

"""
_WHAT = """\
This page tells you what each device makes of {networks} networks that other people made: whether \
your network is likely to load, how exact its answers are, and what a device refuses. {summary}
"""
_FROM = """\
The networks come from the Python packages that `tools/zoo/wheels.txt` \
lists with versions, hashes and licences. Only the ONNX files are taken out of the packages: \
nothing of them is installed or run.
"""
_HOW = """\
Each network gets requests of several sizes, with random values from a fixed seed. A server is \
started, and the Python client queries, loads and asks the network on each device, one request \
alone and four at once. A server that ends is started again for the next device.
"""
_RULE = f"""\
The right answer is ONNX Runtime's in a process of its own, with exact sums of integer products \
(its option `session.x64quantprecision`; without it, processors without VNNI add such products in \
16 bits, which overflow). A device may be off by {RIGHT:.1%} of the output's largest number, or by \
{OWN_TIMES:g} times as much as ONNX Runtime's own answer moves when every float input, and every \
sum that the network computes, is changed at random by one part in a million, which is what \
rounding does.
"""
_RUN = """\
`make zoo` runs all of this and writes this page. It downloads 410 MB the first time. The trials \
of this page took {minutes} minutes. `make zoo ARGS="--network 'silero*' --device CPU"` runs a \
part, and keeps the other results. The exit status is 1 if a trial of this run has failed.
"""
_LEGEND = f"""\
| word | meaning |
| --- | --- |
| right | every number of every output is within {RIGHT:.1%} of the output's largest |
| as itself | the network makes rounding larger: the error is more than that, and at most \
{OWN_TIMES:g} times ONNX Runtime's own. Both are given. Where ONNX Runtime's own is "in shape or \
NaN", only names, types and ranks can be compared. On `CPU` with `DISABLE_TRANSFORMATIONS=YES` \
such a network has to answer what ONNX Runtime answers with its usual options |
| close | every number is within {CLOSE:.0%}; the largest error is given |
| refused | the query and the load both say no; the number leads to the reason below |
| without the smallest | the request whose free axes have one element each is refused |
| slow | the trial took longer than the suite waits; only on devices that are not made for speed |
| **bold** | a failure: a wrong output, an error after the load, a query that says yes before a \
load that says no, a process that ends, a call that hangs, or a network that has to run and does \
not |
"""
_MUST = """\
A network that ONNX Runtime runs has to be right, or as itself, on {right}, and at least close on \
{close}: what one device of a list lacks, the others have to do. There are two exceptions. \
`HETERO` may refuse the smallest request, because its layers keep their devices, and one of these \
may not take the values. `BATCH` may refuse a network whose requests cannot run together: an \
input or an output lacks the batch as its first dimension, rows depend on each other, or a trial \
does not show that they do not.
"""
_REQUESTS = """\
The column *requests* says how many requests ONNX Runtime answers, and how many it refuses, \
because they are too short for the network. A device may answer or refuse those; it may \
not end, hang or report an internal error.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A network, what ONNX Runtime said to each request ("": it answered), and each device's."""

    network: str
    requests: Sequence[str]
    results: Mapping[str, Result]

    @property
    def answered(self) -> int:
        """How many requests ONNX Runtime answers."""
        return sum(not failure for failure in self.requests)


@dataclass(frozen=True, slots=True)
class Zoo:
    """What is on the page; `versions` are those of devices' backends."""

    rows: Sequence[Row]
    devices: Sequence[str]
    versions: Mapping[str, str]

    @property
    def minutes(self) -> int:
        """What all trials together took."""
        seconds = sum(each.seconds for row in self.rows for each in row.results.values())
        return max(1, round(seconds / 60))


def failure(row: Row, device: str) -> str:
    """What is wrong with a result; "" if nothing is."""
    result = row.results[device]
    if result.outcome in FAILURES:
        return f"{result.outcome.value}: {result.reason}"
    kind = device.partition(":")[0]
    demanded = {Outcome.RIGHT, Outcome.AS_ITSELF}
    if kind in MUST_BE_CLOSE:
        demanded.add(Outcome.CLOSE)
    elif kind not in MUST_BE_RIGHT:
        return ""
    if result.outcome is Outcome.REFUSED and kind == "BATCH" and _NOT_BATCHED in result.reason:
        return ""
    if row.answered and result.outcome not in demanded:
        return f"has to be right, and is {result.outcome.value}: {result.reason}"
    if result.refused and kind != "HETERO":
        return f"refuses the smallest request: {result.refused}"
    return ""


def markdown(zoo: Zoo) -> str:
    """The page."""
    return "\n".join(_lines(zoo))


def _lines(zoo: Zoo) -> Iterator[str]:
    yield _HEAD + _filled(_WHAT.format(networks=len(zoo.rows), summary=_summary(zoo)))
    yield _filled(_FROM)
    yield _filled(_HOW)
    yield _filled(_RULE)
    yield _filled(_RUN.format(minutes=zoo.minutes))
    right, close = (
        " and ".join(f"`{each}`" for each in them) for them in (MUST_BE_RIGHT, MUST_BE_CLOSE)
    )
    yield _LEGEND
    yield _filled(_MUST.format(right=right, close=close))
    yield _filled(_REQUESTS)
    yield "| computes | version |"
    yield "| --- | --- |"
    yield from (f"| {name} | {version} |" for name, version in zoo.versions.items())
    yield "\n## By device\n"
    yield "| device | right | as itself | close | refused | slow | failures | not tried |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for device in zoo.devices:
        tried = [row for row in zoo.rows if device in row.results]
        wrong = [row for row in tried if failure(row, device)]
        good = [row.results[device].outcome for row in tried if row not in wrong]
        counts = [good.count(each) for each in Outcome if each not in FAILURES]
        counts += [len(wrong), len(zoo.rows) - len(tried)]
        yield f"| `{device}` | {' | '.join(map(str, counts))} |"
    yield "\n## By network\n"
    reasons: dict[str, int] = {}
    yield f"| network | requests | {' | '.join(f'`{each}`' for each in zoo.devices)} |"
    yield f"| --- | ---: |{' --- |' * len(zoo.devices)}"
    for row in zoo.rows:
        cells = [_cell(row, device, reasons) for device in zoo.devices]
        yield f"| {row.network} | {_requests(row)} | {' | '.join(cells)} |"
    yield "\n## Reasons\n"
    yield from (f"{number}. {reason}" for reason, number in reasons.items())
    yield ""


def _summary(zoo: Zoo) -> str:
    tried = [(row, device) for row in zoo.rows for device in zoo.devices if device in row.results]
    failed = sum(bool(failure(row, device)) for row, device in tried)
    if failed:
        return f"{failed} of {len(tried)} trials failed; they stand in bold."
    return (
        f"In {len(tried)} trials no answer was wrong, nothing failed after a load, and no process "
        "ended."
    )


def _cell(row: Row, device: str, reasons: dict[str, int]) -> str:
    result = row.results.get(device)
    if result is None:
        return "not tried"
    word = result.outcome.value
    if failure(row, device):
        word = f"**{word}**"
    reason = result.reason
    if result.outcome is Outcome.CLOSE:
        word, reason = f"{word} {result.error:.1%}", ""
    if result.outcome is Outcome.AS_ITSELF:
        word = f"{word} {_percent(result.error)} (ONNX Runtime {_percent(result.own)})"
        reason = ""
    if result.refused:
        word, reason = f"{word}, without the smallest", result.refused
    if not reason:
        return word
    number = reasons.setdefault(_general(reason), len(reasons) + 1)
    return f"{word} <sup>{number}</sup>"


def _percent(error: float) -> str:
    return f"{error:.1%}" if math.isfinite(error) else "in shape or NaN"


def _requests(row: Row) -> str:
    refused = len(row.requests) - row.answered
    return f"{row.answered}, {refused} refused" if refused else str(row.answered)


def _general(reason: str) -> str:
    """The reason without the names of one network's layers and tensors, for it is shared."""
    text = " ".join(re.sub(r"(?<!\w)'[^']*'(?!\w)", "'…'", reason).split()).replace("|", "\\|")
    return textwrap.shorten(text, _REASON_LENGTH, placeholder=" …")


def _filled(paragraph: str) -> str:
    return textwrap.fill(paragraph, 100, break_on_hyphens=False, break_long_words=False) + "\n"
