"""``headrace plugin``: for authors of device plugins."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.runtime.device.plugin_source import installed_plugins
from headrace.runtime.errors import HeadraceError
from headrace.server.plugin_project.project import check_device, write_project

app = typer.Typer(help="Tools for authors of device plugins.", no_args_is_help=True)


@app.callback()
def plugin() -> None:
    """For authors of device plugins."""


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The device's name, such as ACME.")],
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory",
            metavar="FOLDER",
            help="The folder to make. [default: headrace-NAME in lower case]",
        ),
    ] = None,
) -> None:
    """Write a project with a working device plugin, a copy of TEMPLATE for you to change."""
    folder = directory or Path(f"headrace-{name.lower().replace('_', '-')}")
    try:
        check_device(name, installed_plugins())
        write_project(name, folder)
    except HeadraceError as error:
        typer.echo(f"error: {error.field}: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(
        f"wrote {folder}; now, in an environment with headrace (in a clone of it: pip install "
        f"'.[server]'): cd {folder}, pip install --editable '.[dev]', pytest, headrace serve"
    )
