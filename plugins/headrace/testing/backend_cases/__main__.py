"""The command line: runs the cases on devices, compares the results, writes the table."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from headrace.runtime.config.device_name import VIRTUAL_TYPES
from headrace.runtime.device.plugin_source import installed_plugins
from headrace.runtime.errors import HeadraceError
from headrace.testing.backend_cases.cases import BackendCase, collect
from headrace.testing.backend_cases.expectation import Expectation, path_of
from headrace.testing.backend_cases.outcome import CaseOutcome, Result
from headrace.testing.backend_cases.pool import CaseResults, run_cases
from headrace.testing.backend_cases.table import markdown
from headrace.testing.backend_cases.worker import DeviceUnderTest
from headrace.testing.command_line import add_device_options, say

_SHOWN = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0; 1 if a device that was named does not start, has a fault, or differs from
    what is expected of it, if anything is; 2 for wrong usage."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.update and (options.cases or not options.expectations):
        parser.error("--update needs --expectations, and all the cases")
    if options.as_good_as and (options.update or not options.expectations):
        parser.error("--as-good-as needs --expectations, and updates none")
    if options.table and not options.expectations:
        parser.error("--table needs --expectations, which it is made from")
    cases = collect(options.cases)
    if not cases:
        parser.error(f"no case matches {' '.join(options.cases)}")
    names = options.device or sorted({*installed_plugins()} - {*VIRTUAL_TYPES})
    good = [_check(name, cases, options) for name in names]
    if options.table:
        known = [Expectation.read(path) for path in sorted(options.expectations.glob("*.toml"))]
        options.table.parent.mkdir(parents=True, exist_ok=True)
        options.table.write_text(markdown(collect(), known), encoding="utf-8")
    return int(not all(good))


def _check(name: str, cases: Sequence[BackendCase], options: argparse.Namespace) -> bool:
    """Runs the cases on one device. Returns whether the results are right."""

    faults: list[Result] = []

    def report(result: Result) -> None:
        if result.is_fault:
            faults.append(result)
        of_interest = options.verbose or (result.is_fault and len(faults) <= _SHOWN)
        if of_interest and result.outcome is not CaseOutcome.PASSED:
            claim = "" if result.claimed else ", not claimed"
            say(f"{name} {result.case}: {result.outcome.value}{claim}: {result.reason}")
            say(f"    {result.detail[:300]}")

    device = DeviceUnderTest(
        name, dict(options.config), options.factory, dict(options.device_config)
    )
    try:
        run = run_cases(
            device, cases, jobs=options.jobs, limit_seconds=options.limit, report=report
        )
    except HeadraceError as error:
        say(str(error))
        return not options.device  # the driver of a device that nobody named may be missing
    say(_summary(run))
    good = not any(result.is_fault for result in run.results)
    if options.expectations is None:
        return good
    if options.as_good_as:
        return _is_as_good(run, Expectation.read(path_of(options.as_good_as, options.expectations)))
    path = path_of(name, options.expectations)
    if options.update:
        before = Expectation.read(path) if path.exists() else None
        Expectation.of(run, before).write(path)
        return good
    if not path.exists():
        say(f"{name} is compared with nothing: there is no {path}, which --update writes")
        return good
    expected = Expectation.read(path).on(run.capabilities)
    for line in expected.unexpected_passes(run.results):
        say(f"note: {name} {line}")
    differences = expected.differences(run.results)
    if differences and expected.backend != run.backend_version:
        say(f"{path} was written with {expected.backend}")
    for line in differences:
        say(f"{name} {line}")
    return good and not differences


def _is_as_good(run: CaseResults, other: Expectation) -> bool:
    """Whether all cases that the other device passes have passed."""
    missed = [each for each in run.results if each.outcome is not CaseOutcome.PASSED]
    expected = other.on(run.capabilities)
    worse = [each for each in missed if each.case not in expected.others]
    for result in worse:
        say(f"{run.device} {result.case}: {other.device} passes it; {result.outcome.value}")
    say(f"{run.device} passes {'not ' if worse else ''}all that {other.device} does")
    return not worse


def _summary(run: CaseResults) -> str:
    counts = Counter(result.outcome for result in run.results)
    listed = ", ".join(
        f"{counts[outcome]} {outcome.value}" for outcome in CaseOutcome if counts[outcome]
    )
    faults = sum(result.is_fault for result in run.results)
    loose = sum(
        result.outcome is CaseOutcome.PASSED and not result.claimed for result in run.results
    )
    more = f"; {loose} passed, not claimed" if loose else ""
    return (
        f"{run.device} ({run.backend_version}): {listed}{more}; {faults} faults; "
        f"{run.seconds:.0f} s"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.testing.backend_cases",
        description="Run ONNX's backend test cases through devices.",
    )
    add_device_options(parser)
    parser.add_argument(
        "--cases", action="append", default=[], help="run only cases with names of this pattern"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes to run at a time"
    )
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that a case may take")
    parser.add_argument(
        "--expectations", type=Path, metavar="FOLDER", help="compare with the files in FOLDER"
    )
    parser.add_argument(
        "--as-good-as", metavar="DEVICE", help="fail if a case does not pass that passes on DEVICE"
    )
    parser.add_argument("--update", action="store_true", help="write the files of --expectations")
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="write the page from the expectations"
    )
    parser.add_argument("--verbose", action="store_true", help="list refused cases too")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
