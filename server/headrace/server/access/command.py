"""``headrace token``: makes, lists and revokes tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from headrace.runtime.errors import HeadraceError
from headrace.server.access.token_file import add_token, list_tokens, revoke_token

app = typer.Typer(help="Make, list and revoke tokens.", no_args_is_help=True)

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The token's name, for example ci.")]
_File = Annotated[
    Path,
    typer.Option(
        "--tokens",
        metavar="FILE",
        envvar="HEADRACE_TOKENS",
        help="The file of tokens, as in headrace serve --tokens FILE.",
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def token() -> None:
    """Make, list and revoke tokens."""


@app.command()
def new(
    name: _Name,
    tokens: _File,
    roles: Annotated[
        str,
        typer.Option(
            "--roles", metavar="ROLES", help="read, infer or manage; several with commas."
        ),
    ] = "infer",
    *,
    json_output: _Json = False,
) -> None:
    """Make a random token and print it once. The file keeps its hash only."""
    wanted = [role for part in roles.split(",") if (role := part.strip())]
    with _errors():
        made = add_token(tokens, name, wanted)
    if json_output:
        typer.echo(json.dumps({"name": name, "roles": wanted, "token": made}))
        return
    typer.echo(made)
    typer.echo(f"added {name} to {tokens}; keep the token, it is not shown again", err=True)


@app.command(name="list")
def list_(tokens: _File, *, json_output: _Json = False) -> None:
    """List the tokens and certificates of the file with their roles."""
    with _errors():
        entries = list_tokens(tokens)
    if json_output:
        typer.echo(json.dumps([entry._asdict() for entry in entries]))
        return
    for entry in entries:
        typer.echo(f"{entry.kind} {entry.name}: {', '.join(entry.roles)}")


@app.command()
def revoke(name: _Name, tokens: _File) -> None:
    """Remove a token. A running server refuses it within two seconds, and ends its open streams."""
    with _errors():
        revoke_token(tokens, name)
    typer.echo(f"revoked {name}")


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except HeadraceError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from error
