"""``headrace benchmark``: how fast a network is, over the wire."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from headrace.client import aio
from headrace.client.cli import connection, console, model_options
from headrace.client.cli.benchmark.inputs import random_inputs
from headrace.client.cli.benchmark.load import ArrivalTimes, BenchmarkRun
from headrace.client.cli.benchmark.plot import SUFFIXES, plot
from headrace.client.cli.benchmark.report import Report, as_dict, print_report
from headrace.client.cli.benchmark.results import Results
from headrace.client.cli.console import SERVER, AsJson, Server
from headrace.client.cli.infer import parse_shape
from headrace.client.cli.input_files import read_inputs
from headrace.client.cli.model_options import Config, Device, ModelFile, Repository
from headrace.client.outputs import Outputs
from headrace.client.plans import infer_plans
from headrace.client.plans.plan import Budget

_VARIETY = 8  # different requests, sent in turns
_REFRESH_SECONDS = 0.2


def benchmark(
    model: ModelFile = None,
    network: Annotated[
        str,
        typer.Option(
            "--network", "-n", metavar="NAME", help="Measure this loaded network instead of MODEL."
        ),
    ] = "",
    device: Device = "",
    hint: Annotated[
        str,
        typer.Option(
            "--hint", metavar="HINT", help="Load with this PERFORMANCE_HINT: latency or throughput."
        ),
    ] = "",
    config: Config = None,
    repository: Repository = "",
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds", "-t", min=0.1, max=1e6, metavar="SECONDS", help="How long to measure."
        ),
    ] = 10.0,
    warm_up: Annotated[
        float,
        typer.Option(
            "--warm-up",
            min=0.0,
            max=1e6,
            metavar="SECONDS",
            help="How long to send requests before the measurement.",
        ),
    ] = 1.0,
    callers: Annotated[
        int | None,
        typer.Option(
            "--callers",
            min=1,
            metavar="N",
            help="Callers, each of which waits for its answer before it sends the next request. "
            "[default: the network's OPTIMAL_NUMBER_OF_INFER_REQUESTS]",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            min=0.001,
            metavar="N",
            help="Instead of callers: send N requests per second, answered or not.",
        ),
    ] = None,
    arrivals: Annotated[
        str,
        typer.Option(
            "--arrivals",
            metavar="KIND",
            help="With --rate: poisson (random times) or fixed (equal distances). "
            "[default: poisson]",
        ),
    ] = "",
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=FILE",
            help="A file, as for `headrace infer`. [default: random values]",
        ),
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shape", metavar="NAME=1,2,3", help="The shape of random values or of a raw file."
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            min=0.001,
            metavar="SECONDS",
            help="The longest time to wait for each answer.",
        ),
    ] = 30,
    seed: Annotated[
        int, typer.Option("--seed", min=0, metavar="N", help="The seed of the random values.")
    ] = 0,
    plot_file: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Write a chart to a .png or .svg file."),
    ] = None,
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Measure the throughput and latency of a network.

    A MODEL is loaded for the measurement and unloaded after it.
    """
    schedule = _schedule(rate, arrivals, callers)
    if plot_file is not None:
        check_plot(plot_file)
    wanted = {**console.pairs(config, "--config"), **_hint(hint)}
    sizes = {name: parse_shape(text) for name, text in console.pairs(shapes, "--shape").items()}
    if network and (model is not None or repository or device or wanted):
        raise typer.BadParameter(
            "measures a network as it is loaded; leave out MODEL, --repository, --device, "
            "--hint and --config",
            param_hint="--network",
        )
    if not network and model is None and not repository:
        message = "pass MODEL, --repository NAME or --network NAME"
        raise typer.BadParameter(message, param_hint="MODEL")
    with console.connected(server) as client, model_options.naming(model):
        if network:
            loaded = client.network(network)
        else:
            arguments = model_options.arguments(model, repository, None, "", "", None)
            with console.progress("compiling", quiet=as_json) as shown:
                loaded = client.load_network(
                    device=device,
                    name=f"benchmark-{os.getpid()}",
                    progress=shown,
                    **{**arguments, "config": wanted},
                )
        try:
            if callers is None:
                callers = _number(loaded.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
            random = np.random.default_rng(seed)
            files = read_inputs(inputs or [], loaded.inputs, sizes, console.note)
            requests = [
                loaded.encoder.encode_bytes(random_inputs(loaded.inputs, sizes, files, random))
                for _ in range(_VARIETY)
            ]
            plan = _Plan(requests, warm_up, seconds, schedule or callers, timeout)
            results = asyncio.run(_run(server, plan, random, quiet=as_json))
        finally:
            if not network:
                loaded.unload()
    name = network or repository or (model.stem if model is not None else "")
    report = Report(name, loaded.info, _describe(plan), results)
    if plot_file is not None:
        title = f"{name} on {loaded.info.device}, {report.load}"
        with console.writing(plot_file):
            plot(results, title, plot_file)
    if as_json:
        console.print_json(as_dict(report, plot_file))
    else:
        print_report(report, plot_file)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to send; `load` is a schedule, or a number of callers."""

    requests: Sequence[bytes]
    warm_up: float
    seconds: float
    load: ArrivalTimes | int
    timeout: float


def _schedule(rate: float | None, arrivals: str, callers: int | None) -> ArrivalTimes | None:
    kinds = ("poisson", "fixed")
    if arrivals and arrivals not in kinds:
        raise typer.BadParameter(
            f"{arrivals!r} is unknown; pass {' or '.join(kinds)}", param_hint="--arrivals"
        )
    if rate is None:
        if arrivals:
            raise typer.BadParameter("needs --rate", param_hint="--arrivals")
        return None
    if callers is not None:
        raise typer.BadParameter(
            "cannot be used with --callers; pass one of the two",
            param_hint="--rate",
        )
    return ArrivalTimes(rate, arrivals != "fixed")


def _hint(hint: str) -> dict[str, str]:
    return {"PERFORMANCE_HINT": hint.upper()} if hint else {}


def check_plot(path: Path) -> None:
    """Ends the program if no chart can be written to the path."""
    if path.suffix.lower() not in SUFFIXES:
        raise typer.BadParameter(
            f"{path} does not end in {' or '.join(SUFFIXES)}", param_hint="--plot"
        )
    if not os.access(path.parent, os.W_OK):
        message = f"cannot write {path}: its folder is missing or cannot be written to"
        raise typer.BadParameter(message, param_hint="--plot")
    if find_spec("matplotlib") is None:
        console.fail("--plot needs Matplotlib; install headrace with its extra 'plot'")


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


async def _run(server: str, plan: _Plan, random: np.random.Generator, *, quiet: bool) -> Results:
    async with aio.Client(server, **connection.arguments(server)) as client:

        async def ask(number: int) -> Outputs:
            data = plan.requests[number % len(plan.requests)]
            return await client.run(infer_plans.infer_packed(data, Budget(plan.timeout)))

        load = BenchmarkRun(ask, plan.warm_up, plan.seconds)
        progress = asyncio.ensure_future(_show(load, plan.warm_up + plan.seconds, quiet=quiet))
        try:
            if isinstance(plan.load, ArrivalTimes):
                return await load.open(plan.load, random)
            return await load.closed(plan.load)
        finally:
            progress.cancel()
            await asyncio.wait([progress])


async def _show(load: BenchmarkRun, seconds: float, *, quiet: bool) -> None:
    """Keeps a bar on the terminal up to date until it is cancelled."""
    with console.bar("measuring", seconds, quiet=quiet) as update:
        while update is not None:
            update(load.elapsed, f"{load.answered} answers")
            await asyncio.sleep(_REFRESH_SECONDS)


def _describe(plan: _Plan) -> str:
    if isinstance(plan.load, ArrivalTimes):
        when = "at random times" if plan.load.poisson else "at equal distances"
        return f"{plan.load.per_second:g} requests a second {when}"
    return "1 caller" if plan.load == 1 else f"{plan.load} callers"
