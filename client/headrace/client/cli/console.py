"""How the command line prints: tables, JSON, progress, errors.

On a terminal tables are drawn with rich; elsewhere they are plain aligned text. Results go to the
standard output, all else to the standard error.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeAlias

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.progress import TimeElapsedColumn as ElapsedColumn
from rich.table import Table
from rich.text import Text

from headrace.client import Client, errors
from headrace.client.channel.connecting.names import DEFAULT_TARGET
from headrace.client.cli import connection
from headrace.client.cli.failures import CommandFailure
from headrace.client.cli.texts import bytes_text
from headrace.client.model import Progress as ProgressCallback
from headrace.client.transport import DEFAULT_TIMEOUT_SECONDS

Server: TypeAlias = Annotated[
    str,
    typer.Option(
        "--server",
        envvar="HEADRACE_SERVER",
        metavar="HOST:PORT",
        help="The server's address; the default port is 9000. Several, separated by commas, share "
        "the calls.",
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SERVER = DEFAULT_TARGET


@contextmanager
def connected(server: str, timeout: float = DEFAULT_TIMEOUT_SECONDS) -> Iterator[Client]:
    """A client whose errors end the program as `fail` does."""
    if not server:
        raise typer.BadParameter("is empty; pass host:port", param_hint="--server")
    if sys.stdout is None:
        fail("cannot write to the standard output: it is closed")
    try:
        with Client(server, timeout=timeout, **connection.arguments(server)) as client:
            yield client
    except errors.Error as error:
        fail(_explain(error), error)


def fail(message: str, error: errors.Error | None = None) -> NoReturn:
    """Ends the program with exit status 1 and one line on the standard error, JSON after
    ``--json``. `error` has more details than the message."""
    raise CommandFailure(message, error.details if error is not None else None)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Ends the program if the file cannot be written."""
    try:
        yield
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror or error}")


def note(message: str) -> None:
    """Prints a remark on the standard error, apart from the result."""
    typer.echo(f"note: {message}", err=True)


def print_json(value: Any) -> None:
    """Prints one JSON document. Numbers that JSON lacks become text, for example "NaN"."""
    typer.echo(json.dumps(_json_ready(value), indent=2, ensure_ascii=False, allow_nan=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, what: str) -> None:
    """Prints a table with a header, or a line that says that there are no rows.

    Args:
        what: what the rows are, in the plural, for example "networks".
    """
    if not rows:
        typer.echo(f"no {what}")
    elif sys.stdout.isatty():
        table = Table(box=None, header_style="bold", pad_edge=False)
        for column in columns:
            table.add_column(column, overflow="fold")  # users cannot copy text that is cut
        for row in rows:
            table.add_row(*map(Text, row))  # text as it is, never markup
        Console().print(table)
    else:
        widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
        for row in (columns, *rows):
            padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            typer.echo("  ".join(padded).rstrip())


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Prints names and values, one pair a line."""
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        typer.echo(f"{name.ljust(width)}  {value}".rstrip())


@contextmanager
def progress(doing: str, *, quiet: bool) -> Iterator[ProgressCallback | None]:
    """Shows on a terminal that work goes on; yields the callback for an upload's bytes.

    Args:
        doing: what is done after the upload, for example "loading".
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    size = TextColumn("{task.fields[size]}")
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        ElapsedColumn(),
        BarColumn(),
        size,
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        work = shown.add_task(doing, total=None, size="")
        upload = shown.add_task("uploading", visible=False, size="")

        def uploaded(sent: int, total: int) -> None:
            """Shows the upload. When it ends, the bar of the work replaces it."""
            done = sent >= total
            size = f"{bytes_text(sent)} of {bytes_text(total)}"
            shown.update(upload, completed=sent, total=total, visible=not done, size=size)
            shown.reset(work, visible=done)

        yield uploaded


@contextmanager
def bar(doing: str, total: float, *, quiet: bool) -> Iterator[Callable[[float, str], None] | None]:
    """Shows on a terminal how much of `total` is done. Yields the callback for it and a remark."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[remark]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(doing, total=total, remark="")

        def update(completed: float, remark: str) -> None:
            shown.update(task, completed=completed, remark=remark)

        yield update


def pairs(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    """``KEY=VALUE`` arguments as a dictionary.

    Raises:
        typer.BadParameter: an argument has no equals sign, or a key appears twice.
    """
    found = {}
    for text in texts or ():
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint=option)
        if key in found:
            raise typer.BadParameter(f"{key} is given twice", param_hint=option)
        found[key] = value
    return found


def _explain(error: errors.Error) -> str:
    message = str(error).replace("set replace", "add --replace")
    details = error.details
    if details.reason == "SEVERAL_SERVERS":
        return f"{message.partition(';')[0]}; name one with --server"
    if details.reason == "" and isinstance(error, errors.Unavailable):
        return (
            f"{message}; is `headrace serve` running there? "
            "--server or HEADRACE_SERVER name another"
        )
    if isinstance(error, errors.Unauthenticated):
        return message.replace("send 'authorization: Bearer TOKEN'", "give --token-file FILE")
    if details.retry_delay_seconds is not None:
        return f"{message}; try again in {details.retry_delay_seconds:g} s"
    return message


def _json_ready(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_ready(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, complex):
        return [_json_ready(value.real), _json_ready(value.imag)]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value
