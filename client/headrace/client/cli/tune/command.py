"""``headrace tune``: finds out how to load a network so that it answers most requests in time."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headrace.client import aio, errors
from headrace.client.cli import connection, console
from headrace.client.cli.benchmark.command import check_plot
from headrace.client.cli.console import SERVER, AsJson, Server
from headrace.client.cli.infer import parse_shape
from headrace.client.cli.input_files import read_inputs
from headrace.client.cli.tune.candidates import BATCHES, candidates
from headrace.client.cli.tune.description import DescriptionFile
from headrace.client.cli.tune.feeds import SeenShapes, make_feeds
from headrace.client.cli.tune.halving import Trial, chosen, rounds
from headrace.client.cli.tune.measurement import Measurement
from headrace.client.cli.tune.others import requests_of_others
from headrace.client.cli.tune.plot import plot

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s)")
_DEVICES = re.compile(r"[^,:]+:.+|[^,]+")  # a list ends only with the text
_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def tune(
    network: Annotated[str, typer.Argument(metavar="NETWORK", help="The network's name.")],
    p99: Annotated[
        str,
        typer.Option(
            "--p99",
            metavar="DURATION",
            help="The 99th percentile of latency that callers may see, as 20ms. [default: any]",
        ),
    ] = "",
    devices: Annotated[
        str,
        typer.Option(
            "--devices",
            metavar="LIST",
            help="Devices to try, as CPU,OPENVINO. One with a list comes last, as "
            "CPU,HETERO:OPENVINO,CPU. [default: that of the network]",
        ),
    ] = "",
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            "-t",
            min=0.1,
            max=1e6,
            metavar="N",
            help="How long to measure in all. Loads take their time besides.",
        ),
    ] = 60.0,
    precision: Annotated[
        float | None,
        typer.Option(
            "--precision",
            min=0.0,
            metavar="X",
            help="Try f16 and bf16 too, if no answer is off from CPU's in float32 by more than X, "
            "in units of its largest number. [default: do not]",
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=FILE",
            help="A file, as for `headrace infer`, such as the network's warm-up. "
            "[default: random values]",
        ),
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            metavar="NAME=1,2,3",
            help="The shape of random values or of a raw file. [default: those of the requests "
            "that the network has had]",
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            "--write",
            metavar="PATH",
            help="Write what was chosen into this network.toml, or into that of this folder.",
        ),
    ] = None,
    plot_file: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Write a chart to a .png or .svg file."),
    ] = None,
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Find the device, streams, threads and batch with which a network answers most requests.

    Needs a server without other requests, and stops if some come.
    """
    target = _seconds(p99) if p99 else math.inf
    if plot_file is not None:
        check_plot(plot_file)
    file = DescriptionFile(write) if write is not None else None
    sizes = {name: parse_shape(text) for name, text in console.pairs(shapes, "--shape").items()}
    wanted = [each.strip() for each in _DEVICES.findall(devices) if each.strip()]
    plan = _Plan(network, target, wanted, seconds, precision, inputs or [], sizes)
    with (
        console.connected(server),
        console.bar("measuring", seconds, quiet=as_json) as update,
    ):
        trials = asyncio.run(_tune(server, plan, update))
    choice = chosen(trials, target)
    if plot_file is not None:
        with console.writing(plot_file):
            plot(trials, choice, target, network, plot_file)
    if file is not None:
        file.write(choice.candidate)
    if as_json:
        console.print_json(_as_dict(network, trials, choice, target))
    else:
        _print(trials, choice, target)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the user wants.

    Attributes:
        target: the 99th percentile, in seconds.
        precision: how far answers may be off in f16 and bf16; None if these are not tried.
        files, sizes: of the inputs.
    """

    network: str
    target: float
    devices: Sequence[str]
    seconds: float
    precision: float | None
    files: Sequence[str]
    sizes: Mapping[str, tuple[int, ...]]


async def _tune(
    server: str, plan: _Plan, update: Callable[[float, str], None] | None
) -> list[Trial]:
    """Measures until all is known or requests of others come, which ends the program. Whatever
    ends it, no network stays that it has loaded."""
    async with aio.Client(server, **connection.arguments(server)) as client:
        blob = await (await client.network(plan.network)).export()
        network = await client.network(plan.network)  # by now it is loaded
        if network.info.states:
            console.fail(
                f"{plan.network} keeps states between requests, which tune does not measure"
            )
        feeds = make_feeds(
            network.inputs,
            plan.sizes,
            read_inputs(plan.files, network.inputs, plan.sizes, console.note),
            await _seen(network),
        )
        streams = {
            device: await _streams(client, device) for device in plan.devices or [network.device]
        }
        has_batch = any(device.name == "BATCH" for device in await client.devices())
        ways = candidates(
            network.device,
            streams,
            batches=BATCHES if has_batch else (),
            coarse=plan.precision is not None,
        )
        trials = [Trial(each) for each in ways]
        measurement = Measurement(client, blob, feeds, plan.target, plan.precision or 0.0)
        others = asyncio.ensure_future(requests_of_others(client, measurement.name))
        measuring = asyncio.ensure_future(_measure(measurement, trials, plan, update))
        try:
            await asyncio.wait([others, measuring], return_when=asyncio.FIRST_COMPLETED)
            if others.done():
                names = others.result()
                console.fail(f"stopped, because requests of others came: {names}")
            measuring.result()
        finally:
            for task in (others, measuring):
                task.cancel()
            await asyncio.gather(others, measuring, return_exceptions=True)
        return trials


async def _measure(
    measurement: Measurement,
    trials: Sequence[Trial],
    plan: _Plan,
    update: Callable[[float, str], None] | None,
) -> None:
    if plan.precision is not None:
        await measurement.answer()
    done = 0.0
    for trial, share in rounds(trials, plan.seconds, plan.target):
        await measurement.measure(trial, share)
        if trial is trials[0] and trial.reason:
            console.fail(f"cannot measure {plan.network}: {trial.reason}")
        done += share
        if update is not None:
            update(done, str(trial.candidate))


async def _seen(network: aio.Network) -> list[SeenShapes]:
    """The shapes of the requests that the network has had, if its sizes are open."""
    texts: Any = await network.get_metric("REQUEST_SHAPES")
    seen = [SeenShapes.parse(text) for text in texts]
    if seen:
        count = sum(each.requests for each in seen)
        console.note(f"requests have the shapes of {count} that {network.name} has had")
    return seen


async def _streams(client: aio.Client, device: str) -> int:
    """How many streams a network may have on a device."""
    try:
        most = await client.get_metric(device, "RANGE_FOR_STREAMS")
    except (errors.NotFound, errors.InvalidArgument):
        if ":" not in device:
            raise
        return 1  # a virtual device has none
    return int(getattr(most, "maximum", 1))


def _seconds(text: str) -> float:
    matched = _DURATION.fullmatch(text.strip())
    if matched is None or not (number := float(matched[1])):
        raise typer.BadParameter(f"{text!r} is no duration, as 20ms or 0.5s", param_hint="--p99")
    return number * _UNITS[matched[2]]


def _as_dict(network: str, trials: Sequence[Trial], choice: Trial, target: float) -> dict[str, Any]:
    return {
        "network": network,
        "p99_target_seconds": target if math.isfinite(target) else None,
        "candidates": [
            {
                "device": trial.candidate.device,
                "config": dict(trial.candidate.config),
                "rounds": len(trial.turns),
                **trial.best(target)._asdict(),
                "within": trial.best(target).score(target)[0],
                "reason": trial.reason,
                "chosen": trial is choice,
            }
            for trial in trials
        ],
    }


def _print(trials: Sequence[Trial], choice: Trial, target: float) -> None:
    ordered = sorted(
        trials, key=lambda each: (len(each.turns), each.best(target).score(target)), reverse=True
    )
    rows = []
    for trial in ordered:
        best = trial.best(target)
        figures = (str(best.callers), f"{best.throughput:.4g}", f"{1e3 * best.p99:.3f}")
        marks = ["chosen"] * (trial is choice) + ["default"] * (trial is trials[0])
        told = trial.reason or ", ".join(marks)
        rows.append((str(trial.candidate), *(figures if trial.turns else ("", "", "")), told))
    console.print_table(("CANDIDATE", "CALLERS", "A SECOND", "P99 MS", ""), rows, what="candidates")
    if not choice.best(target).score(target)[0]:
        console.note("with what was chosen, requests fail or take longer than --p99")
