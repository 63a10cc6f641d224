"""The application: the client's own commands, and those of other packages by entry points.

A package adds commands through the entry-point group ``headrace.commands``: a plain function, or a
typer.Typer with commands of its own. They are imported only when they are needed, because the
server's commands take long to import. A command that cannot be imported says why when you call it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points, version
from typing import Annotated, Any, Final

import grpc
import typer
from typer.core import TyperGroup

from headrace.client.cli import connection, devices, infer, networks, query, repository
from headrace.client.cli.benchmark import command as benchmark
from headrace.client.cli.console import fail
from headrace.client.cli.failures import CommandFailure, told
from headrace.client.cli.status import command as status
from headrace.client.cli.status import top
from headrace.client.cli.tune import command as tune
from headrace.wire.errors import ErrorDetails

GROUP: Final = "headrace.commands"

_COMMANDS: Final[dict[str, Callable[..., Any]]] = {
    "status": status.status,
    "top": top.top,
    "devices": devices.devices,
    "load": networks.load,
    "unload": networks.unload,
    "networks": networks.networks,
    "repository": repository.repository,
    "traffic": repository.traffic,
    "shadow": repository.shadow,
    "query": query.query,
    "infer": infer.infer,
    "benchmark": benchmark.benchmark,
    "tune": tune.tune,
    "metric": devices.metric,
    "config": devices.config,
    "export": networks.export,
    "import": networks.import_,
}

# The base class of the errors in arguments: Typer exports only this subclass of it.
_WrongUsage: Final[Any] = typer.BadParameter.__base__


class _Commands(TyperGroup):
    """Passes the options before a command to the command, and reports how a command failed."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        before = []
        for parameter in self.params:
            value = ctx.params.get(parameter.name)
            if value is True:
                before.append(parameter.opts[0])
            elif value not in (None, False):
                before += [parameter.opts[0], str(value)]
        return name, command, [*before, *rest]

    def invoke(self, ctx: Any) -> Any:
        as_json = "--json" in ctx.args or ctx.params.get("as_json")
        try:
            return super().invoke(ctx)
        except CommandFailure as failed:
            typer.echo(told(str(failed), failed.details, as_json=as_json), err=True)
            raise typer.Exit(1) from None
        except _WrongUsage as wrong:
            if not as_json:
                raise
            message = wrong.format_message()
            details = ErrorDetails(grpc.StatusCode.INVALID_ARGUMENT, message, reason="USAGE")
            typer.echo(told(message, details, as_json=True), err=True)
            raise typer.Exit(wrong.exit_code) from None


def make_app(arguments: Sequence[str], others: Iterable[EntryPoint] | None = None) -> typer.Typer:
    """The application with the commands that these arguments need.

    Args:
        others: entry points of other packages' commands; default: those that are installed.
    """
    app = typer.Typer(
        cls=_Commands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(connection.before_commands(_common))
    for name, command in _COMMANDS.items():
        app.command(name)(connection.connecting(command))
    wanted = arguments[0] if arguments else ""
    if wanted not in {*_COMMANDS, "--version"}:
        found = sorted(others or entry_points(group=GROUP), key=lambda each: each.name)
        named = [each for each in found if each.name == wanted]  # the others' imports take long
        for entry_point in named or found:
            if entry_point.name not in _COMMANDS:
                _add(app, entry_point)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {version('headrace')}")
        raise typer.Exit


def _common(
    _: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Show the version and exit."
        ),
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="HOST:PORT",
            help="The server's address, here or after the command. [HEADRACE_SERVER]",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, here or after the command.")
    ] = False,
) -> None:
    """Run a headrace server, or load networks onto its devices and infer."""


def _add(app: typer.Typer, entry_point: EntryPoint) -> None:
    try:
        command = entry_point.load()
    except Exception as error:  # noqa: BLE001 - another package's import may raise anything
        any_arguments = {"ignore_unknown_options": True, "allow_extra_args": True}
        command = _unavailable(entry_point, error)
        app.command(entry_point.name, context_settings=any_arguments)(command)
        return
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=entry_point.name)
    else:
        app.command(entry_point.name)(command)


def _unavailable(entry_point: EntryPoint, error: Exception) -> Callable[..., None]:
    remedy = (
        "; install headrace with its extra 'server'"
        if entry_point.value.startswith("headrace.server")
        else ""
    )

    def command() -> None:
        fail(f"the command {entry_point.name} cannot start: {error}{remedy}")

    command.__doc__ = f"Unavailable: {error}"
    return command
