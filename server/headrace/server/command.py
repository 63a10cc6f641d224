"""``headrace serve``. Its options are the settings, which are declared in one place."""

from __future__ import annotations

import inspect
import json
import logging
import os
import re
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import grpc
import typer
import uvloop

from headrace.runtime.errors import HeadraceError, exhausted
from headrace.runtime.system.allocator import tune_allocator
from headrace.runtime.system.garbage import look_seldom, without_looks
from headrace.server.logs import configure_logging
from headrace.server.loop import LastingLoop
from headrace.server.settings.settings import Settings, options
from headrace.server.settings.sources import load_settings
from headrace.server.transport.limits import allow_open_files
from headrace.wire.errors import ErrorDetails, to_json

if TYPE_CHECKING:
    from headrace.server.listeners import Addresses

_log = logging.getLogger(__name__)

Command = TypeVar("Command", bound=Callable[..., None])


def with_settings(command: Command) -> Command:
    """Gives a command the settings as options, beside those that it declares itself. The command
    line reads a function's signature and annotations."""
    declared = inspect.signature(command, eval_str=True).parameters.values()
    own = [each for each in declared if each.kind is not inspect.Parameter.VAR_KEYWORD]
    signature = inspect.Signature([*own, *_setting_parameters()])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
    return command


def _setting_parameters() -> list[inspect.Parameter]:
    parameters: list[inspect.Parameter] = []
    for option in options():
        default = f"; default: {option.shown_default}" if option.shown_default else ""
        meaning = option.description[:1].upper() + option.description[1:]
        help_text = f"{meaning}. [{option.variable}{default}]"
        parameters.append(
            inspect.Parameter(
                option.setting,
                inspect.Parameter.KEYWORD_ONLY,
                default=typer.Option(
                    None, option.flag, metavar=option.placeholder or None, help=help_text
                ),
                annotation=(bool if option.kind is bool else str) | None,
            )
        )
    return parameters


@with_settings
def serve(
    *,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the addresses, or an error, as JSON.")
    ] = False,
    **arguments: Any,
) -> None:
    """Serve networks over gRPC until SIGTERM, then drain and stop."""
    form = arguments.get("log_format") or os.environ.get("HEADRACE_LOG_FORMAT", "")
    try:
        settings = load_settings(arguments, os.environ)
        form = settings.log_format
        configure_logging(settings.log_level, settings.log_format, sys.stderr)
        tune_allocator()
        allow_open_files()
        uvloop.run(_serve(settings, json_output=json_output), loop_factory=LastingLoop)
    except (HeadraceError, RuntimeError, OSError, MemoryError) as error:
        known = exhausted(error) or error
        if not isinstance(known, HeadraceError):
            raise
        _tell(known, json_output=json_output, form=form.lower())
        raise typer.Exit(1) from error


def _tell(error: HeadraceError, *, json_output: bool, form: str) -> None:
    """Reports why the server does not start.

    The report has the form of all errors of `headrace`. If the log is JSON, the report is the
    last line of the log.
    """
    if json_output:
        code = grpc.StatusCode[error.status]
        typer.echo(to_json(ErrorDetails(code, error.message, error.reason, error.field)), err=True)
    elif form == "json":
        configure_logging(form=form, stream=sys.stderr)
        _log.error(_told(error), extra={"field": error.field, "reason": error.reason})
    else:
        typer.echo(f"error: {_told(error)}", err=True)


def _told(error: HeadraceError) -> str:
    # Most messages name the setting already. A folder with the same name does not count.
    field = error.field
    if not field or re.search(rf"(?<![\w./-]){re.escape(field)}(?![\w./-])", error.message):
        return error.message
    return f"{field}: {error.message}"


async def _serve(settings: Settings, *, json_output: bool) -> None:
    # A worker that holds the interpreter lock gives the event loop a turn after 0.5 ms.
    sys.setswitchinterval(0.0005)
    with without_looks():
        from headrace.server.app import App  # help and completion would wait for it

        app = App(settings)
    look_seldom()  # devices and libraries stay alive: this saves 30 ms each time

    def ready(addresses: Addresses) -> None:
        if json_output:
            known = addresses._asdict().items()
            line = json.dumps({name: address for name, address in known if address})
        else:
            grpc = " and ".join(filter(None, (addresses.grpc, addresses.unix)))
            line = f"headrace serves gRPC on {grpc}, HTTP on {addresses.http}"
        typer.echo(line)
        _tell_service_manager("READY=1")

    await app.run(ready)
    if app.stuck:  # Python would wait for the thread
        sys.stdout.flush()
        os._exit(int(app.failed))
    if app.failed:
        raise typer.Exit(1)


def _tell_service_manager(state: str) -> None:
    """Sends a state to systemd, if it has started the server and waits for that (Type=notify)."""
    # Devices' processes do not inherit it: the server alone speaks for the service.
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # an abstract socket, which has no file
        address = f"\0{address[1:]}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
            sender.sendto(state.encode(), address)
    except OSError as error:
        _log.warning("cannot tell systemd %s: %s", state, error.strerror)
