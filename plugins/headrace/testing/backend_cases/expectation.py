"""What is known of a device: the cases that it does not pass, in a file that people can read."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from headrace.testing.backend_cases.outcome import Outcome, Result
from headrace.testing.backend_cases.pool import Run

_HEAD = """\
# The backend cases of onnx that the device does not pass, by outcome and reason.
# `make conformance` compares; ARGS=--update writes the file anew.
"""
_CLAIMED = ", though claimed"
_NOT_CLAIMED = ", and not claimed"


@dataclass(frozen=True, slots=True)
class Expectation:
    """A device's outcomes, and what was installed when they were found.

    Attributes:
        cases: how many there were.
        others: case to outcome and reason, of those that are not claimed and passed. An outcome is
            that of `Outcome`, with a word on the claim where it is not what it should be.
    """

    device: str
    backend: str
    onnx: str
    cases: int
    others: Mapping[str, tuple[str, str]]

    @classmethod
    def of(cls, run: Run) -> Expectation:
        others = {
            result.case: (label(result), result.reason)
            for result in run.results
            if label(result) != Outcome.PASSED.value
        }
        return cls(run.device, run.backend_version, onnx.__version__, len(run.results), others)

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
        return cls(facts["device"], facts["backend"], facts["onnx"], facts["cases"], others)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(self._lines()) + "\n", encoding="utf-8")

    @property
    def passed(self) -> int:
        """Cases that passed, claimed or not."""
        failed = [label for label, _ in self.others.values() if not label.startswith("passed")]
        return self.cases - len(failed)

    def differences(self, results: Iterable[Result]) -> list[str]:
        """A line for each of these results whose outcome is another one; reasons may change."""
        found = []
        for result in results:
            expected, reason = self.others.get(result.case, (Outcome.PASSED.value, ""))
            if label(result) != expected:
                was = f"{expected} ({reason})" if reason else expected
                now = f"{label(result)} ({result.reason})" if result.reason else label(result)
                found.append(f"{result.case}: expected {was}, got {now}")
        return found

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
        order = [outcome.value for outcome in Outcome]
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


def label(result: Result) -> str:
    """The outcome, with a word on the claim where that is not what the outcome is."""
    value = result.outcome.value
    if result.outcome is Outcome.REFUSED:
        return value + _CLAIMED if result.claimed else value
    return value if result.claimed else value + _NOT_CLAIMED


def path_of(device: str, folder: Path) -> Path:
    """Where the device's expectation lies: ``HETERO:A,B`` in ``HETERO-A-B.toml``."""
    name = "".join(each if each.isalnum() or each in "._" else "-" for each in device)
    return folder / f"{name.strip('-')}.toml"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
