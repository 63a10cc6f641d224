"""The expected results of a device: the cases that it does not pass, in a readable file."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from headrace.testing.backend_cases.outcome import CaseOutcome, Result
from headrace.testing.backend_cases.pool import CaseResults

_HEAD = """\
# The backend cases of onnx that the device does not pass, by outcome and reason.
# `make conformance` compares; ARGS=--update writes the file anew.
"""
_WHERE = """
# What depends on the device's OPTIMIZATION_CAPABILITIES, as on the processor: these cases end as
# above where it has the capability, or has it "not", and pass elsewhere. --update keeps the
# conditions; new ones are written by hand.
[where]"""
_NOT = "not "
_CLAIMED = ", though claimed"
_NOT_CLAIMED = ", and not claimed"


@dataclass(frozen=True, slots=True)
class Expectation:
    """A device's outcomes, and what was installed when they were found.

    Attributes:
        cases: the number of cases.
        others: case to outcome and reason, for all cases but those that are claimed and passed. An
            outcome is one of `CaseOutcome`, with a word on the claim if the claim does not fit it.
        where: case to a condition for its outcome: a capability that the device has, as ``FP16``,
            or lacks, as ``not FP16``. On other devices the case passes.
    """

    device: str
    backend: str
    onnx: str
    cases: int
    others: Mapping[str, tuple[str, str]]
    where: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, run: CaseResults, before: Expectation | None = None) -> Expectation:
        """What was found; of cases with a condition that this device does not meet, what was known
        `before`."""
        where = before.where if before is not None else {}
        others = {
            case: before.others[case]
            for case, condition in where.items()
            if before is not None and not _holds(condition, run.capabilities)
        }
        others |= {
            result.case: (label(result), result.reason)
            for result in run.results
            if label(result) != CaseOutcome.PASSED.value
        }
        return cls(
            run.device,
            run.backend_version,
            onnx.__version__,
            len(run.results),
            others,
            {case: condition for case, condition in where.items() if case in others},
        )

    @classmethod
    def read(cls, path: Path) -> Expectation:
        """
        Raises:
            OSError, ValueError, KeyError: the file cannot be read, or is not one of these.
        """
        facts = tomllib.loads(path.read_text(encoding="utf-8"))
        others = {
            case: (outcome, reason)
            for outcome, reasons in facts["outcomes"].items()
            for reason, cases in reasons.items()
            for case in cases
        }
        where = {
            case: condition for condition, cases in facts.get("where", {}).items() for case in cases
        }
        return cls(facts["device"], facts["backend"], facts["onnx"], facts["cases"], others, where)

    def on(self, capabilities: Collection[str]) -> Expectation:
        """The expected results of a device with these OPTIMIZATION_CAPABILITIES."""
        others = {
            case: other
            for case, other in self.others.items()
            if case not in self.where or _holds(self.where[case], capabilities)
        }
        return replace(self, others=others, where={})

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(self._lines()) + "\n", encoding="utf-8")

    @property
    def passed(self) -> int:
        """Cases that pass, claimed or not, on a device with none of the capabilities in `where`."""
        usual = self.on(()).others.values()
        failed = [label for label, _ in usual if not label.startswith("passed")]
        return self.cases - len(failed)

    def differences(self, results: Iterable[Result]) -> list[str]:
        """A line for each of these results whose outcome is another one, but for a pass; reasons
        may change."""
        return [
            self._told(result)
            for result in results
            if label(result) not in (self._expected(result)[0], CaseOutcome.PASSED.value)
        ]

    def unexpected_passes(self, results: Iterable[Result]) -> list[str]:
        """A line for each of these results that passed and was not expected to. None is a fault:
        the backend or the processor is better than the earlier one."""
        return [
            self._told(result)
            for result in results
            if label(result) == CaseOutcome.PASSED.value != self._expected(result)[0]
        ]

    def _expected(self, result: Result) -> tuple[str, str]:
        return self.others.get(result.case, (CaseOutcome.PASSED.value, ""))

    def _told(self, result: Result) -> str:
        was, now = map(_with_reason, (self._expected(result), (label(result), result.reason)))
        return f"{result.case}: expected {was}, got {now}"

    def _lines(self) -> Iterator[str]:
        yield _HEAD
        for name in ("device", "backend", "onnx"):
            yield f"{name} = {_text(getattr(self, name))}"
        yield f"cases = {self.cases}"
        yield f"passed = {self.passed}"
        yield "\n[outcomes]"
        groups: dict[tuple[str, str], list[str]] = {}
        for case, group in sorted(self.others.items()):
            groups.setdefault(group, []).append(case)
        order = [outcome.value for outcome in CaseOutcome]
        last = ""
        for (outcome, reason), cases in sorted(
            groups.items(), key=lambda item: (order.index(item[0][0].partition(",")[0]), item[0])
        ):
            if outcome != last:
                yield f"\n[outcomes.{_text(outcome)}]"
                last = outcome
            yield f"{_text(reason)} = ["
            yield from (f"    {_text(case)}," for case in cases)
            yield "]"
        if self.where:
            yield _WHERE
        for condition in sorted(set(self.where.values())):
            yield f"{_text(condition)} = ["
            cases = sorted(case for case, each in self.where.items() if each == condition)
            yield from (f"    {_text(case)}," for case in cases)
            yield "]"


def label(result: Result) -> str:
    """The outcome, with a word on the claim if the claim does not fit the outcome."""
    value = result.outcome.value
    if result.outcome is CaseOutcome.REFUSED:
        return value + _CLAIMED if result.claimed else value
    return value if result.claimed else value + _NOT_CLAIMED


def path_of(device: str, folder: Path) -> Path:
    """The file with the device's expectation: ``HETERO:A,B`` is in ``HETERO-A-B.toml``."""
    name = "".join(
        character if character.isalnum() or character in "._" else "-" for character in device
    )
    return folder / f"{name.strip('-')}.toml"


def _with_reason(outcome: tuple[str, str]) -> str:
    return f"{outcome[0]} ({outcome[1]})" if outcome[1] else outcome[0]


def _holds(condition: str, capabilities: Collection[str]) -> bool:
    capability = condition.removeprefix(_NOT)
    return (capability in capabilities) == (capability == condition)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
