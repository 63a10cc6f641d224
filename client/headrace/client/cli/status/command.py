"""``headrace status``."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from headrace.client.cli import console
from headrace.client.cli.console import SERVER, AsJson, Server
from headrace.client.cli.status.figures import Document, Figures, figures
from headrace.client.cli.status.texts import (
    UNKNOWN,
    memory_text,
    networks_text,
    of_text,
    rate_text,
    residence_text,
    server_lines,
    time_text,
    times_text,
)
from headrace.client.cli.texts import bytes_text, visible

MAX_TEXT: Final = 200
_ERRORS: Final = 10
_NOT_WORTH_A_ROW: Final = "NOT_INSTALLED"
_HITS: Final = "network_response_cache_hits_total"
_REPLIES: Final = (
    _HITS,
    "network_response_cache_misses_total",
    "network_response_cache_skipped_total",
    "network_response_cache_bytes",
)

Match = Annotated[
    str, typer.Option("--match", metavar="TEXT", help="Only networks whose names contain TEXT.")
]


def status(match: Match = "", server: Server = SERVER, as_json: AsJson = False) -> None:
    """Show the server's devices, networks and recent errors, as its status page does.

    Rates and times are means since the server's start; `headrace top` shows those of the last
    second.
    """
    with console.connected(server) as client:
        document = client.status(match)
    if as_json:
        console.print_json(document)
    else:
        _print(document, figures(document), match)


def _print(document: Document, found: Figures, match: str) -> None:
    for line in server_lines(document):
        typer.echo(line)
    typer.echo("")
    _print_devices(found)
    typer.echo("")
    _print_networks(document, found, match)
    for network in document["networks"]:
        for note in network["notes"]:
            typer.echo(f"note: {visible(network['name'], MAX_TEXT)}: {visible(note, MAX_TEXT)}")
    _print_replies(document)
    if any(network.get("shapes") for network in document["networks"]):
        typer.echo("")
        _print_shapes(document)
    if document["errors"]:
        typer.echo("")
        _print_errors(document)


def _print_devices(found: Figures) -> None:
    console.print_table(
        ("DEVICE", "STATE", "STREAMS", "QUEUE", "WAIT", "EXECUTION", "PER S", "ERR/S", "REASON"),
        [
            (
                visible(device.name, MAX_TEXT),
                device.state,
                of_text(device.busy, device.streams),
                of_text(device.queued, device.capacity),
                times_text(device.wait)[0],
                times_text(device.execution)[0],
                rate_text(device.rate),
                rate_text(device.failures),
                visible(device.reason, MAX_TEXT),
            )
            for device in found.devices
            if device.state != _NOT_WORTH_A_ROW
        ],
        what="devices",
    )


def _print_networks(document: Document, found: Figures, match: str) -> None:
    console.print_table(
        (
            "NETWORK",
            "DEVICE",
            "STATE",
            "OPEN",
            "PER S",
            "ERR/S",
            "MEAN",
            "P50",
            "P99",
            "MEMORY",
            "IDLE",
            "REASON",
        ),
        [
            (
                visible(network.name, MAX_TEXT),
                visible(network.device, MAX_TEXT),
                network.state,
                str(network.in_flight),
                rate_text(network.rate),
                rate_text(network.failures),
                *times_text(network.times),
                *residence_text(network),
                visible(network.reason, MAX_TEXT),
            )
            for network in found.networks
        ],
        what=networks_text(match),
    )
    if left_out := document["networks_left_out"]:
        typer.echo(f"and {left_out} more; choose some with --match")


def _print_replies(document: Document) -> None:
    """What the networks that keep replies have answered from them."""
    rows = []
    for network in document["networks"]:
        counts = {each["name"]: each["value"] for each in network["series"]}
        if _HITS in counts:
            hits, misses, skipped, held = (int(counts.get(name, 0)) for name in _REPLIES)
            share = f"{hits / (hits + misses):.0%}" if hits + misses else UNKNOWN
            name = visible(network["name"], MAX_TEXT)
            rows.append((name, f"{hits:,}", f"{misses:,}", share, f"{skipped:,}", bytes_text(held)))
    if rows:
        typer.echo("")
        columns = ("KEPT REPLIES OF", "HITS", "MISSES", "SHARE", "SKIPPED", "MEMORY")
        console.print_table(columns, rows, what="networks")


def _print_shapes(document: Document) -> None:
    console.print_table(
        ("NETWORK", "SHAPE", "RUNS ON", "MEMORY", "REASON"),
        [
            (
                visible(network["name"], MAX_TEXT),
                visible(shape["shape"], MAX_TEXT),
                visible(shape["device"], MAX_TEXT),
                memory_text(shape["memory_bytes"]),
                visible(shape["reason"], MAX_TEXT),
            )
            for network in document["networks"]
            for shape in network.get("shapes", ())
        ],
        what="shapes",
    )


def _print_errors(document: Document) -> None:
    console.print_table(
        ("TIME (UTC)", "CODE", "METHOD", "NETWORK", "CALLER", "REQUEST", "MESSAGE"),
        [
            (
                time_text(error["time"]),
                *(
                    visible(error[key], MAX_TEXT)
                    for key in ("code", "method", "network", "caller", "request_id", "message")
                ),
            )
            for error in document["errors"][:_ERRORS]
        ],
        what="errors",
    )
