"""``headrace query``: which layers a device would run, as a table or as a picture."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.client import QueryResult
from headrace.client.cli import console, model_options
from headrace.client.cli.console import SERVER, AsJson, Server
from headrace.client.cli.drawing import render
from headrace.client.cli.drawing.dot import to_dot
from headrace.client.cli.drawing.picture import picture
from headrace.client.cli.model_options import (
    Affinities,
    Config,
    Device,
    ModelFile,
    Postprocessing,
    Preprocessing,
    Repository,
)
from headrace.client.cli.texts import counted
from headrace.client.pipeline import is_pipeline

_Svg = Annotated[
    Path | None,
    typer.Option("--svg", metavar="FILE", help="Draw the answer as SVG. Needs Graphviz."),
]
_Png = Annotated[
    Path | None,
    typer.Option("--png", metavar="FILE", help="Draw the answer as PNG. Needs Graphviz."),
]
_Dot = Annotated[
    Path | None,
    typer.Option(
        "--dot",
        metavar="FILE",
        help="Write the drawing as DOT text. The file - is standard output.",
    ),
]
_Full = Annotated[
    bool,
    typer.Option(
        "--full", help="List or draw every layer of a large network instead of groups of layers."
    ),
]
_LONG: Final = 40
"""In a table with more rows, layers with the same answer share one row."""
_NAMED: Final = 3
_PARTICULAR: Final = re.compile(r"\B'[^']*'|\b\d+(?:\W+\d+)*")
"""The names and the sizes in a reason."""


def query(
    model: ModelFile = None,
    device: Device = "",
    config: Config = None,
    repository: Repository = "",
    preprocessing: Preprocessing = "",
    postprocessing: Postprocessing = "",
    affinity: Affinities = None,
    svg: _Svg = None,
    png: _Png = None,
    dot: _Dot = None,
    full: _Full = False,
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Show which layers of a network a device supports. Loads nothing."""
    arguments = model_options.arguments(
        model, repository, config, preprocessing, postprocessing, affinity
    )
    drawn = {"svg": svg, "png": png, "dot": dot}
    files = {form: path for form, path in drawn.items() if path is not None}
    if svg or png:
        render.check()
    printed = [path for path in files.values() if str(path) == "-"]
    if len(printed) + as_json > 1:
        raise typer.BadParameter(
            "cannot be used twice, or with --json: standard output holds one result", param_hint="-"
        )
    with (
        console.connected(server) as client,
        console.progress("querying", quiet=as_json) as shown,
        model_options.naming(model),
    ):
        result = client.query_network(device=device, progress=shown, graph=bool(files), **arguments)
    if files:
        name = repository or (model.name if model is not None else "")
        default = "PIPELINE" if is_pipeline(model) else "CPU"
        _draw(result, f"{name} on {device or default}", files, full=full)
    if as_json:
        _print_json(result)
    elif not files:
        _print_table(result, full=full)
    elif not printed:
        _print_summary(result)
    for path in files.values():
        if path not in printed:
            console.note(f"wrote {path}")


def _draw(result: QueryResult, title: str, files: dict[str, Path], *, full: bool) -> None:
    if result.graph is None:
        console.fail("the server is older than this client and does not give a network's graph")
    text = to_dot(picture(result, result.graph, title, full=full))
    for form, path in files.items():
        data = text.encode() if form == "dot" else render.render(text, form)
        if str(path) == "-":
            typer.echo(data, nl=False)
            continue
        with console.writing(path):
            path.write_bytes(data)


def _print_json(result: QueryResult) -> None:
    console.print_json(
        {
            "supported_layers": result.supported_layers,
            "unsupported": [layer._asdict() for layer in result.unsupported],
            "subgraphs": [part._asdict() for part in result.subgraphs],
            "notes": list(result.notes),
        }
    )


def _print_table(result: QueryResult, *, full: bool) -> None:
    parts = enumerate(result.subgraphs, 1)
    numbers = {layer: str(number) for number, part in parts for layer in part.layers}
    rows = [
        (layer, where, numbers.get(layer, ""), "")
        for layer, where in result.supported_layers.items()
    ]
    rows += [
        (layer.layer, "-", "", f"{layer.op_type}: {layer.reason}") for layer in result.unsupported
    ]
    grouped = len(rows) > _LONG and not full
    part = "STEP" if _has_steps(result) else "SUBGRAPH"
    columns = ("LAYER", "DEVICE", part, "REASON")
    console.print_table(columns, _grouped(rows) if grouped else rows, what="layers")
    _print_counts(result)
    if grouped:
        console.note("--full lists every layer")


def _grouped(rows: Sequence[tuple[str, str, str, str]]) -> list[tuple[str, str, str, str]]:
    """One row for all layers with the same answer; it names the first of them. Reasons that differ
    only in the layers' own names and sizes are the same answer."""
    groups: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for layer, where, number, reason in rows:
        key = (where, number, _PARTICULAR.sub("#", reason))
        groups.setdefault(key, []).append((layer, reason))
    grouped = []
    for (where, number, _), answers in groups.items():
        more = f" and {len(answers) - _NAMED:,} more" if len(answers) > _NAMED else ""
        layers = ", ".join(layer for layer, _ in answers[:_NAMED])
        _, reason = answers[0]
        alike = ", or the like" if any(other != reason for _, other in answers) else ""
        grouped.append((f"{layers}{more}", where, number, f"{reason}{alike}"))
    return grouped


def _has_steps(result: QueryResult) -> bool:
    return any(part.step for part in result.subgraphs)


def _print_counts(result: QueryResult) -> None:
    """How many layers a device runs, how many none does, which subgraphs it makes of them or which
    steps they belong to, and why they differ from the list of devices."""
    unsupported = {layer.layer for layer in result.unsupported}
    supported = counted(len(result.supported_layers), "supported layer")
    typer.echo(f"{supported}, {counted(len(unsupported), 'unsupported layer')}")
    for number, part in enumerate(result.subgraphs, 1):
        if part.step:  # itself a layer of the pipeline
            inner = counted(len(part.layers) - 1, "layer")
            typer.echo(f"step {number} on {part.device}: {part.step}, {inner}")
        else:
            layers = counted(len(part.layers), "layer")
            typer.echo(f"subgraph {number} on {part.device}: {layers}")
    for note in result.notes:
        typer.echo(f"note: {note}")


def _print_summary(result: QueryResult) -> None:
    """Prints every unsupported layer, because the picture does not show all of them."""
    _print_counts(result)
    for layer in result.unsupported:
        typer.echo(f"unsupported {layer.layer} ({layer.op_type}): {layer.reason}")
