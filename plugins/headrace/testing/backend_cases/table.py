"""The published table: each device's results on each operator's cases."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from headrace.testing.backend_cases.cases import INEXACT, RANDOM_OPERATORS, BackendCase
from headrace.testing.backend_cases.expectation import Expectation
from headrace.testing.backend_cases.outcome import CaseOutcome

_PASSED = CaseOutcome.PASSED.value
_FAULTS = ("wrong", "failed", "crashed", "timed out")

_HEAD = """\
# Conformance

Written by `make conformance`; do not edit.

"""
_WHAT = """\
onnx {version} brings {count} test cases for backends: small networks for each operator, made in \
code, and small models. Each case is queried, loaded, run and compared with its expected outputs, \
within the relative and absolute error that it allows. It runs in a process that may crash or \
hang. *Refused* means that the device says that it does not support the case, which is always \
allowed. Everything else but passing is a *fault*: a wrong output, an error, a crash, a time-out.
"""
_WHERE = """\
The files in `tests/conformance/backend_cases` list the cases that each device does not pass, with \
the reasons. Some depend on the processor. Here they count as on a processor that has AVX2 and \
does not compute in float16.
"""
_RANDOM = """\
*Random* means that the outputs have the right types and shapes, but other numbers, because ONNX \
leaves the generator to the backend. Only {operators}, and Dropout in training, may be random.
"""
_OFF = """\
Some expected outputs are off by as much as their cases allow, because they were computed in \
float16 or complex64: {cases}. That much more is allowed.
"""


def markdown(cases: Sequence[BackendCase], devices: Sequence[Expectation]) -> str:
    """The page about these devices, each of which ran these cases."""
    usual = [device.on(()) for device in devices]
    return "\n".join(_lines(cases, sorted(usual, key=lambda device: device.device)))


def _lines(cases: Sequence[BackendCase], devices: Sequence[Expectation]) -> Iterator[str]:
    version = ", ".join(sorted({device.onnx for device in devices}))
    yield _HEAD + _filled(_WHAT.format(count=len(cases), version=version))
    yield _filled(_WHERE)
    yield "| device | computes with | passed | random | refused | faults |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for device in devices:
        counts = Counter(_outcome(device, case) for case in cases)
        faults = sum(counts[fault] for fault in _FAULTS)
        yield (
            f"| `{device.device}` | {device.backend} | {counts[_PASSED]} | {counts['random']} "
            f"| {counts['refused']} | {faults} |"
        )
    others = [each for each in RANDOM_OPERATORS if each != "Dropout"]
    yield "\n" + _filled(_RANDOM.format(operators=", ".join(others)))
    off = ", ".join(f"`{case}` by {error:.0e}" for case, error in INEXACT.items())
    yield _filled(_OFF.format(cases=off))
    yield "## By operator\n"
    yield "Each cell counts the cases that passed, and the others with their outcome.\n"
    yield f"| operator | cases | {' | '.join(f'`{device.device}`' for device in devices)} |"
    yield f"| --- | ---: |{' --- |' * len(devices)}"
    groups: dict[str, list[BackendCase]] = {}
    for case in cases:
        groups.setdefault(case.operator or f"models: {case.kind}", []).append(case)
    for operator in sorted(groups, key=lambda name: (name.startswith("models"), name)):
        cells = [_cell(device, groups[operator]) for device in devices]
        yield f"| {operator} | {len(groups[operator])} | {' | '.join(cells)} |"
    yield ""


def _cell(device: Expectation, cases: Sequence[BackendCase]) -> str:
    counts = Counter(_outcome(device, case) for case in cases)
    words = [str(counts[_PASSED])]
    words += [
        f"{counts[outcome.value]} {outcome.value}"
        for outcome in CaseOutcome
        if counts[outcome.value] and outcome is not CaseOutcome.PASSED
    ]
    return ", ".join(words)


def _outcome(device: Expectation, case: BackendCase) -> str:
    """The outcome without the word on the claim."""
    return device.others.get(case.name, (_PASSED, ""))[0].partition(",")[0]


def _filled(paragraph: str) -> str:
    return textwrap.fill(paragraph, 100, break_on_hyphens=False, break_long_words=False) + "\n"
