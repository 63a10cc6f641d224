"""``headrace infer``: files in, files or a summary out."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

from headrace.client import Outputs
from headrace.client.cli import console
from headrace.client.cli.console import SERVER, AsJson, Server
from headrace.client.cli.input_files import read_inputs
from headrace.client.cli.repository import Version
from headrace.client.transport import DEFAULT_TIMEOUT_SECONDS
from headrace.wire.codec import Array

MAX_JSON_ELEMENTS: Final = 10_000
"""Larger outputs are printed without their values."""


def infer(
    network: Annotated[str, typer.Argument(metavar="NETWORK", help="The network's name.")],
    inputs: Annotated[
        list[str],
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=FILE",
            help="A .npy, .npz, image or raw (.bin) file. A single input needs no NAME=.",
        ),
    ],
    version: Version = "",
    shapes: Annotated[
        list[str] | None,
        typer.Option("--shape", metavar="NAME=1,2,3", help="The shape of a raw file. Repeatable."),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option("--output", metavar="NAME", help="Return only this output. Repeatable."),
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir",
            "-o",
            metavar="FOLDER",
            help="Write each output to a .npy file in FOLDER.",
        ),
    ] = None,
    top: Annotated[
        int,
        typer.Option(
            "--top", min=0, metavar="K", help="Show the K largest values and their positions."
        ),
    ] = 0,
    priority: Annotated[
        int,
        typer.Option(
            "--priority", min=-10, max=10, metavar="N", help="From -10 to 10; higher runs first."
        ),
    ] = 0,
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=0.001, metavar="SECONDS", help="The longest time to wait."),
    ] = DEFAULT_TIMEOUT_SECONDS,
    performance_counts: Annotated[
        bool, typer.Option("--performance-counts", help="Measure and show each layer.")
    ] = False,
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Run a network once.

    Images keep their pixel values from 0 to 255. Scale them with `headrace load --preprocessing`.
    """
    raw_shapes = {
        name: parse_shape(text) for name, text in console.pairs(shapes, "--shape").items()
    }
    with console.connected(server, timeout) as client:
        loaded = client.network(network, version)
        values = read_inputs(inputs, loaded.inputs, raw_shapes, console.note)
        result = loaded.infer(
            values, outputs=outputs, priority=priority, performance_counts=performance_counts
        )
    arrays = _flat(result)
    files = {} if output_dir is None else _write(arrays, output_dir)
    if as_json:
        _print_json(result, arrays, files, top)
    else:
        _print(result, arrays, files, top)


def parse_shape(text: str) -> tuple[int, ...]:
    """A shape from the command line: sizes with commas between them."""
    try:
        sizes = tuple(int(size) for size in text.split(",") if size.strip())
    except ValueError:
        sizes = (-1,)
    if any(size < 0 for size in sizes):
        raise typer.BadParameter(f"{text!r} is not like 1,3,224,224", param_hint="--shape")
    return sizes


def _flat(outputs: Outputs) -> dict[str, Array]:
    """Every array by name. The arrays of a sequence are called ``name[0]`` and so on."""
    arrays: dict[str, Array] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, list):
            for index, element in enumerate(value):
                add(f"{name}[{index}]", element)
        elif value is not None:
            arrays[name] = value

    for name, value in outputs.items():
        add(name, value)
    return arrays


def _write(arrays: dict[str, Array], folder: Path) -> dict[str, Path]:
    """Writes .npy files, named after the outputs as far as file names allow."""
    files: dict[str, Path] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in arrays.items():
            stem = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_") or "output"
            path = folder / f"{stem}.npy"
            number = 2
            while path in files.values():
                path = folder / f"{stem}_{number}.npy"
                number += 1
            np.save(path, array.astype(str) if array.dtype.kind == "O" else array)
            files[name] = path
    except OSError as error:
        console.fail(f"cannot write to {folder}: {error.strerror or error}")
    return files


def _has_order(array: Array) -> bool:
    return array.dtype.kind not in "Oc"  # strings and complex numbers


def _top(array: Array, count: int) -> list[tuple[list[int], Any]]:
    """The largest elements and where they are, largest first; NaN counts as smallest."""
    values = array.reshape(-1).astype(np.float64)
    values = np.where(np.isnan(values), -np.inf, values)
    chosen = np.argsort(-values, kind="stable")[:count]
    return [
        ([int(i) for i in np.unravel_index(index, array.shape)], array.reshape(-1)[index].item())
        for index in chosen
    ]


def _print_json(
    result: Outputs, arrays: dict[str, Array], files: dict[str, Path], top: int
) -> None:
    described = {}
    for name, array in arrays.items():
        entry: dict[str, Any] = {"dtype": _dtype(array), "shape": list(array.shape)}
        if name in files:
            entry["file"] = str(files[name])
        elif array.size <= MAX_JSON_ELEMENTS:
            entry["values"] = array.tolist()
        else:
            entry["omitted"] = f"more than {MAX_JSON_ELEMENTS} values; --output-dir writes them"
        if top and _has_order(array):
            entry["top"] = [{"index": index, "value": value} for index, value in _top(array, top)]
        described[name] = entry
    console.print_json(
        {
            "outputs": described,
            "timings": dataclasses.asdict(result.timings),
            "request_id": result.request_id,
            "performance_counts": [
                dataclasses.asdict(count) for count in result.performance_counts
            ],
        }
    )


def _print(result: Outputs, arrays: dict[str, Array], files: dict[str, Path], top: int) -> None:
    for name, array in arrays.items():
        where = f" -> {files[name]}" if name in files else ""
        shape = ",".join(map(str, array.shape))
        typer.echo(f"{name} {_dtype(array)}[{shape}]{where}")
        if top and _has_order(array):
            for index, value in _top(array, top):
                typer.echo(f"  {','.join(map(str, index))}  {_number(value)}")
        elif not where:
            with np.printoptions(threshold=20, edgeitems=3, precision=6, linewidth=88):
                typer.echo("  " + str(array).replace("\n", "\n  "))
    for name in result:
        if name not in arrays and not any(key.startswith(f"{name}[") for key in arrays):
            typer.echo(f"{name} is empty")
    timings = result.timings
    typer.echo(
        f"queue {timings.queue_seconds * 1e3:.3f} ms, "
        f"execution {timings.execution_seconds * 1e3:.3f} ms"
    )
    if result.performance_counts:
        console.print_table(
            ("LAYER", "OPERATOR", "DEVICE", "KERNEL", "MILLISECONDS"),
            [
                (count.layer, count.op_type, count.device, count.execution_type,
                 f"{count.seconds * 1e3:.3f}")
                for count in result.performance_counts
            ],
            what="layers",
        )  # fmt: skip


def _dtype(array: Array) -> str:
    return "string" if array.dtype.kind == "O" else array.dtype.name


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
