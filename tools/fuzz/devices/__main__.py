"""The command line: fuzzes devices for a time, or replays one variant."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path

from headrace.runtime.config.device_name import VIRTUAL_TYPES
from headrace.runtime.device.plugin_source import installed_plugins
from headrace.runtime.errors import HeadraceError
from headrace.testing.backend_cases.cases import collect
from headrace.testing.backend_cases.worker import DeviceUnderTest
from headrace.testing.command_line import add_device_options
from headrace.testing.command_line import say as _say
from tools.fuzz.devices import canaries, report
from tools.fuzz.devices.campaign import Campaign, Failure, Fuzzer
from tools.fuzz.devices.generator import VariantGenerator
from tools.fuzz.devices.judge import FAILURES
from tools.fuzz.devices.lane import Lane
from tools.fuzz.devices.networks.generator import NetworkGenerator
from tools.fuzz.devices.networks.guarded import networks
from tools.fuzz.devices.sweep.further_cases import further_cases
from tools.fuzz.devices.sweep.ranks import FUSION, RankSweep
from tools.fuzz.devices.variant import Variant, read, snippet
from tools.fuzz.devices.worker import (
    run_device,
    run_device_together,
    run_reference,
    run_runtime,
)

_VIRTUAL = (
    "HETERO:OPENVINO,CPU",
    "HETERO:CPU,TEMPLATE",
    "BATCH:CPU(4)",
    "BATCH:OPENVINO(4)",
    "MULTI:CPU,OPENVINO",
    "AUTO:CPU,OPENVINO",
)
_SECONDS = 60.0
_REFERENCE_SECONDS = 5.0
"""That the reference may take for a variant. One that takes longer is a loop without an end."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0; 1 if there is a failure, or if a device that was named does not start; 2 for
    wrong usage."""
    parser = _parser()
    options = parser.parse_args(arguments)
    os.environ.update(canaries.ENVIRONMENT)  # of the processes that are started
    devices = options.device or sorted({*installed_plugins()} - {*VIRTUAL_TYPES})
    if options.networks and not options.device:
        devices = [*devices, *_VIRTUAL]
    if options.replay:
        good = [_replay(name, options) for name in devices]
        return int(not all(good))
    generator = _generator("ranks" if options.sweep else str(options.seed), options)
    if not generator.operators:
        parser.error(f"no case matches {' '.join(options.cases)}")
    seconds = options.seconds or (math.inf if options.sweep else _SECONDS)
    started, campaigns, end = True, [], time.monotonic() + seconds
    for at, name in enumerate(devices):
        with _lanes(name, options) as (device, reference, second):
            fuzzer = Fuzzer(device, reference, second, _reporter(name, options))
            campaigns.append(fuzzer.campaign)
            share = (end - time.monotonic()) / (len(devices) - at)
            try:
                fuzzer.run(_variants(generator, options), time.monotonic() + share)
            except HeadraceError as error:
                _say(f"{name}: {error}")
                started = started and not options.device
    _summarise([each for each in campaigns if each.networks], options)
    return int(not started or any(campaign.failures for campaign in campaigns))


def _reporter(name: str, options: argparse.Namespace) -> Callable[[Failure], None]:
    def report_failure(failure: Failure) -> None:
        _say(report.describe(name, failure))
        if options.out is not None:
            _say(f"  kept in {report.keep(options.out, name, failure)}")

    return report_failure


class _lanes:
    """The processes of a device, of the reference and of another device."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self._all: tuple[Lane, Lane, Lane | None]
        if options.networks:
            self._all = (
                Lane(name, run_device_together, (_tested(name, options),), options.limit),
                Lane("ONNX Runtime", run_runtime, (), options.limit),
                Lane("reference", run_reference, (), min(options.limit, _REFERENCE_SECONDS)),
            )
            return
        other = options.second or ("OPENVINO" if name.startswith("CPU") else "CPU")
        second = None
        if other in installed_plugins():
            second = Lane(other, run_device, (DeviceUnderTest(other),), options.limit)
        self._all = (
            Lane(name, run_device, (_tested(name, options),), options.limit),
            Lane("reference", run_reference, (), min(options.limit, _REFERENCE_SECONDS)),
            second,
        )

    def __enter__(self) -> tuple[Lane, Lane, Lane | None]:
        return self._all

    def __exit__(self, *_: object) -> None:
        for lane in self._all:
            if lane is not None:
                lane.stop()


def _tested(name: str, options: argparse.Namespace) -> DeviceUnderTest:
    return DeviceUnderTest(name, dict(options.config), options.factory, dict(options.device_config))


def _generator(
    series: str, options: argparse.Namespace
) -> VariantGenerator | RankSweep | NetworkGenerator:
    """What makes the variants of a series: of a seed, or of a sweep."""
    if options.networks:
        return NetworkGenerator(int(series))
    cases, further = collect(options.cases), further_cases(options.cases)
    if series == "ranks":
        return RankSweep([*cases, *further])
    named = [case for case in further if case.kind == FUSION] if options.cases else []
    return VariantGenerator([*cases, *named], int(series))


def _variants(
    generator: VariantGenerator | RankSweep | NetworkGenerator, options: argparse.Namespace
) -> Iterator[Variant]:
    numbers: Iterator[int] = count(options.first)
    if isinstance(generator, RankSweep):
        numbers = iter(range(options.first, len(generator)))
    chosen = islice(numbers, options.count)
    if isinstance(generator, NetworkGenerator):
        yield from networks(generator.seed, chosen)
    else:
        yield from map(generator.variant, chosen)


def _replay(name: str, options: argparse.Namespace) -> bool:
    """Runs one variant again and reports the result; whether it does not fail."""
    path = Path(options.replay)
    if path.is_dir():
        variant = read(path)
    else:
        series, _, number = options.replay.partition(":")
        variant = _generator(series, options).variant(int(number))
    _say(f"{variant.name} {variant.origin} ({', '.join(variant.mutations)})")
    _say(snippet(variant, name))
    with _lanes(name, options) as (device, reference, second):
        answers = [(lane.name, lane.ask(variant)) for lane in (device, reference, second) if lane]
        for who, answer in answers:
            _say(f"{who}: {answer.how.value} at {answer.stage.value} {answer.text}")
            for at, reply in enumerate(answer.replies):
                said = " ".join((reply.text, reply.foreign, reply.unsteady))
                _say(f"  request {at}: {reply.how.value} {said}")
                _say(f"    {str(reply.outputs or '')[:600]}")
        found = Fuzzer(device, reference, second).verdicts(variant)
    for finding in found:
        which = "" if finding.feed is None else f"request {finding.feed}: "
        _say(f"{name}: {which}{finding.verdict.value} {finding.kind}: {finding.text}")
    return not any(finding.verdict in FAILURES for finding in found)


def _summarise(campaigns: Sequence[Campaign], options: argparse.Namespace) -> None:
    if not campaigns:
        return
    for campaign in campaigns:
        for part in (report.failures(campaign), options.verbose and report.notes(campaign)):
            if part:
                _say(part)
    series = "sweep of ranks" if options.sweep else f"seed {options.seed}"
    _say(f"\n{series}, {', '.join(f'{c.device} {c.version}' for c in campaigns)}\n")
    _say(report.table(campaigns))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.fuzz.devices",
        description="Run mutated networks and requests on devices, and look for failures.",
    )
    add_device_options(parser)
    add = parser.add_argument
    add(
        "--sweep",
        choices=["ranks"],
        help="instead of random changes, give every input of every case wrong ranks and lengths",
    )
    add(
        "--networks",
        action="store_true",
        help="instead of ONNX's cases, run networks of 2 to 8 layers, and compare them with ONNX "
        "Runtime; default devices: also some virtual ones",
    )
    add(
        "--seconds",
        type=float,
        help=f"seconds for all devices together (default {_SECONDS:g}; a sweep goes to its end)",
    )
    add("--seed", type=int, default=0, help="seed of the random changes (default 0)")
    add("--first", type=int, default=0, help="number of the first variant (default 0)")
    add("--count", type=int, help="number of variants to run")
    add(
        "--replay",
        metavar="SEED:NUMBER",
        help="run one variant again; or the folder that --out kept",
    )
    add("--out", type=Path, metavar="FOLDER", help="keep a reproduction of each failure there")
    add(
        "--cases",
        action="append",
        default=[],
        help="start from ONNX's cases, or from fusions, with names of this pattern",
    )
    add("--second", metavar="DEVICE", help="ask this device if a device and the reference differ")
    add("--limit", type=float, default=20.0, help="seconds that a variant may take (default 20)")
    add(
        "--verbose",
        action="store_true",
        help="list where the reference and the second device differ",
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
