"""``headrace doctor``. It reads the same settings as ``headrace serve``."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headrace.runtime.errors import HeadraceError
from headrace.server.command import with_settings
from headrace.server.doctor import certificates, devices, limits, packages, places, running
from headrace.server.doctor.finding import Finding, State, problem
from headrace.server.logs import ROOT
from headrace.server.settings.settings import Settings
from headrace.server.settings.sources import load_settings

Check = Callable[[], Iterable[Finding]]

_COLOURS: Final = {State.OK: "green", State.WARNING: "yellow", State.PROBLEM: "red"}


@with_settings
def doctor(
    *,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="HOST",
            help="Also check the server at this host, on the ports of the settings.",
        ),
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-ca",
            metavar="FILE",
            envvar="HEADRACE_TLS_CA",
            help="With --server: PEM file with the authorities that clients trust.",
        ),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    **arguments: Any,
) -> None:
    """Check what a server would start with: devices, drivers, limits, TLS, tokens, folders, ports.

    It reads the settings as `headrace serve` does, from options, the environment and the
    configuration file. With --server it also checks the server that runs there. It changes
    nothing. The exit status is 1 if there is a problem.
    """
    logging.getLogger(ROOT).setLevel(logging.CRITICAL)  # the findings say what counts
    shown: list[Finding] = []
    for finding in findings(arguments, os.environ, server, tls_ca):
        shown.append(finding)
        if not json_output:
            _print(finding)
    counts = Counter(finding.state for finding in shown)
    if json_output:
        facts = {
            "problems": counts[State.PROBLEM],
            "warnings": counts[State.WARNING],
            "checks": [finding._asdict() for finding in shown],
        }
        typer.echo(json.dumps(facts, indent=2))
    else:
        numbers = (
            f"{counts[state]} {word}{'' if counts[state] == 1 else 's'}"
            for state, word in ((State.PROBLEM, "problem"), (State.WARNING, "warning"))
        )
        typer.echo(", ".join(numbers))
    if counts[State.PROBLEM]:
        raise typer.Exit(1)


def findings(
    arguments: Mapping[str, Any],
    environment: Mapping[str, str],
    server: str | None = None,
    ca: Path | None = None,
) -> Iterator[Finding]:
    """All findings, one check after the other."""
    checks: list[tuple[str, Check]] = [
        ("python", packages.check_python),
        ("packages", packages.check_packages),
        ("clock", running.check_own_clock),
        ("opencl", devices.check_opencl),
        ("gpus", devices.check_gpus),
        ("user", places.check_user),
    ]
    try:
        settings = load_settings(arguments, environment)
    except HeadraceError as error:
        yield problem("settings", error.message, f"correct {error.field or 'it'}")
    else:
        checks += _of_settings(settings, server, ca)
    for subject, check in checks:
        yield from _tried(subject, check)


def _of_settings(
    settings: Settings, server: str | None, ca: Path | None
) -> Iterator[tuple[str, Check]]:
    folder = Path(tempfile.gettempdir())
    host = server.rpartition(":")[0] or server if server else ""
    yield from (
        ("files", partial(limits.check_files, settings)),
        ("memory", partial(limits.check_memory, settings)),
        ("shm", partial(limits.check_shared_memory, settings)),
        ("tmp", partial(limits.check_temporary_files, settings, folder)),
        ("processors", partial(limits.check_processors, settings)),
        ("folders", partial(places.check_folders, settings)),
        ("repository", partial(places.check_repository, settings)),
        ("key", partial(places.check_key, settings)),
        ("tokens", partial(places.check_tokens, settings)),
        ("tls", partial(certificates.check_tls_files, settings, host)),
        ("ports", partial(running.check_ports, settings)),
        ("devices", partial(devices.check_devices, settings)),
    )
    if server:
        yield "server", partial(running.check_server, settings, host, ca)


def _tried(subject: str, check: Check) -> Iterator[Finding]:
    """The findings of a check. A bug in one check does not hide what the others find."""
    try:
        yield from check()
    except Exception as error:  # noqa: BLE001 - a check meets a machine that nobody has tried
        message = f"this could not be checked: {type(error).__name__}: {error}"
        yield problem(subject, message, "report this as a bug of headrace doctor")


def _print(each: Finding) -> None:
    state = typer.style(f"{each.state:<8}", fg=_COLOURS[each.state])
    remedy = f"; {each.remedy}" if each.remedy else ""
    text = " ".join(f"{each.message}{remedy}".split())
    typer.echo(f"{state} {each.subject:<11} {text}")
