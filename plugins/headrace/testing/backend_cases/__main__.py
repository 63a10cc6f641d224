"""The command line: runs the cases on devices, and compares."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence

from headrace.runtime.errors import HeadraceError
from headrace.testing.backend_cases.cases import collect
from headrace.testing.backend_cases.outcome import Outcome, Result
from headrace.testing.backend_cases.pool import run_cases
from headrace.testing.backend_cases.worker import DeviceUnderTest


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0; 1 if a device does not start, claims what it does not do, or differs from
    what is expected of it; 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    cases = collect(options.cases)
    if not cases:
        _say(f"no case matches {' '.join(options.cases)}")
        return 2
    status = 0
    for name in options.device:
        device = DeviceUnderTest(name, dict(options.config), options.factory)

        def report(result: Result, name: str = name) -> None:
            if (options.verbose and result.outcome is not Outcome.PASSED) or result.is_fault:
                claim = "" if result.claimed else ", not claimed"
                _say(
                    f"{name} {result.case}: {result.outcome.value}{claim}: {result.reason}"
                    f"\n    {result.detail[:300]}"
                )

        try:
            run = run_cases(
                device, cases, jobs=options.jobs, limit_seconds=options.limit, report=report
            )
        except HeadraceError as error:
            _say(str(error))
            status = 1
            continue
        counts = Counter(result.outcome for result in run.results)
        listed = ", ".join(f"{counts[each]} {each.value}" for each in Outcome if counts[each])
        faults = sum(result.is_fault for result in run.results)
        _say(
            f"{run.device} ({run.backend_version}): {listed}; {faults} faults; {run.seconds:.0f} s"
        )
        status = status or int(faults > 0)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.testing.backend_cases",
        description="Run ONNX's backend test cases through devices.",
    )
    parser.add_argument("--device", action="append", required=True, help="as a client names it")
    parser.add_argument("--config", action="append", default=[], type=_pair, metavar="KEY=VALUE")
    parser.add_argument("--factory", default="", help="package.module:create_plugin of the device")
    parser.add_argument("--cases", action="append", default=[], help="pattern of case names")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that a case may take")
    parser.add_argument("--verbose", action="store_true", help="show refusals, too")
    return parser


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
