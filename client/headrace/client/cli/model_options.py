"""The options that ``headrace load`` and ``headrace query`` share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from headrace.client import errors
from headrace.client.cli import console

ModelFile: TypeAlias = Annotated[
    Path | None, typer.Argument(metavar="MODEL", help="An ONNX file, or a pipeline.toml.")
]
Device: TypeAlias = Annotated[
    str,
    typer.Option(
        "--device",
        "-d",
        metavar="DEVICE",
        help="The device, such as CPU, CPU.0 or HETERO:OPENCL,CPU. [default: CPU, or PIPELINE]",
    ),
]
Config: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--config", "-c", metavar="KEY=VALUE", help="Set a configuration key. Repeatable."
    ),
]
Repository: TypeAlias = Annotated[
    str,
    typer.Option(
        "--repository",
        metavar="NAME",
        help="Use this network of the server's model repository instead of MODEL.",
    ),
]
Preprocessing: TypeAlias = Annotated[
    str,
    typer.Option(
        "--preprocessing",
        metavar="JSON",
        help="""What clients send for an input: '{"x": {"dtype": "uint8", "scale": 255}}'.""",
    ),
]
Postprocessing: TypeAlias = Annotated[
    str,
    typer.Option(
        "--postprocessing",
        metavar="JSON",
        help="""What clients receive for an output: '{"y": {"dtype": "float16"}}'.""",
    ),
]
Affinities: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--affinity",
        metavar="LAYER=DEVICE",
        help="With HETERO, run the layer on this device. Repeatable.",
    ),
]


def arguments(
    model: Path | None,
    repository: str,
    config: list[str] | None,
    preprocessing: str,
    postprocessing: str,
    affinities: list[str] | None,
) -> dict[str, Any]:
    """The options as keyword arguments of the client's methods.

    Raises:
        typer.BadParameter: an option is not valid.
    """
    if (model is None) == (not repository):
        raise typer.BadParameter("pass either MODEL or --repository NAME", param_hint="MODEL")
    return {
        "model": model,
        "repository": repository,
        "config": console.pairs(config, "--config"),
        "preprocessing": _json_object(preprocessing, "--preprocessing"),
        "postprocessing": _json_object(postprocessing, "--postprocessing"),
        "affinities": console.pairs(affinities, "--affinity"),
    }


@contextmanager
def naming(model: Path | None) -> Iterator[None]:
    """Puts the file's name before the server's errors about a model."""
    try:
        yield
    except errors.InvalidArgument as error:
        if model is None or error.details.field != "model" or str(model) in str(error):
            raise
        console.fail(f"{model}: {error}", error)


def _json_object(text: str, option: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise typer.BadParameter(f"is not JSON: {error}", param_hint=option) from None
    if not isinstance(value, dict) or not all(isinstance(entry, dict) for entry in value.values()):
        message = 'must be an object of objects, as {"x": {"dtype": "uint8"}}'
        raise typer.BadParameter(message, param_hint=option)
    return value
