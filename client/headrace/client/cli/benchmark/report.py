"""The report of a benchmark, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from headrace.client import NetworkInfo
from headrace.client.cli import console
from headrace.client.cli.benchmark.results import PERCENTILES, Results


@dataclass(frozen=True, slots=True)
class Report:
    """A finished benchmark.

    Attributes:
        name: the name of the model or network, as the user wrote it.
        load: a description of the load.
    """

    name: str
    network: NetworkInfo
    load: str
    results: Results


def as_dict(report: Report, path: Path | None) -> dict[str, Any]:
    network, results = report.network, report.results
    return {
        "network": report.name,
        "device": network.device,
        "execution_devices": list(network.execution_devices),
        "config": dict(network.config),
        "notes": list(network.notes),
        "load": report.load,
        "seconds": results.seconds,
        "requests": len(results.answers),
        "completed": len(results.completed),
        "errors": results.errors,
        "throughput_per_second": results.throughput,
        "seconds_of": {
            name: {
                "mean": spread.mean,
                **{f"p{percent}": value for percent, value in spread.percentiles.items()},
                "max": spread.most,
            }
            for name, spread in results.spreads().items()
        },
        "plot": str(path) if path is not None else None,
    }


def print_report(report: Report, path: Path | None) -> None:
    network, results = report.network, report.results
    devices = ", ".join(network.execution_devices)
    where = network.device if devices == network.device else f"{network.device} ({devices})"
    typer.echo(f"{report.name} on {where}, {report.load}, {results.seconds:g} s")
    for note in network.notes:
        console.note(note)
    typer.echo(f"{results.throughput:.4g} answers a second, {len(results.completed)} in all")
    spreads = results.spreads()
    if spreads:
        columns = ("MILLISECONDS", "MEAN", *(f"P{percent}" for percent in PERCENTILES), "MAX")
        console.print_table(
            columns,
            [
                (
                    name,
                    *(
                        f"{1e3 * x:.3f}"
                        for x in (spread.mean, *spread.percentiles.values(), spread.most)
                    ),
                )
                for name, spread in spreads.items()
            ],
            what="times",
        )
    for status, count in results.errors.items():
        console.note(f"{count} requests failed: {status}")
    if path is not None:
        typer.echo(f"wrote {path}")
