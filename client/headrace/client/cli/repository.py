"""``headrace repository``, ``traffic`` and ``shadow``: versions of networks."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from headrace.client import RepositoryVersion
from headrace.client.cli import console
from headrace.client.cli.console import SERVER, AsJson, Server
from headrace.client.cli.status.texts import residence_text

Version = Annotated[
    str, typer.Option("--version", metavar="N", help="The version. [default: the one that serves]")
]


def repository(server: Server = SERVER, as_json: AsJson = False) -> None:
    """List what the server's model repository holds, and what is loaded."""
    with console.connected(server) as client:
        found = client.repository()
    if as_json:
        console.print_json([dataclasses.asdict(version) for version in found])
    else:
        _print(found)


def traffic(
    network: Annotated[str, typer.Argument(metavar="NETWORK", help="The network's name.")],
    shares: Annotated[
        list[str] | None,
        typer.Argument(metavar="VERSION=PERCENT", help="The share of a version. Repeatable."),
    ] = None,
    default: Annotated[
        bool, typer.Option("--default", help="Go back to what the model repository says.")
    ] = False,
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Set or show how the versions of a network share its requests.

    The highest version that you do not name gets the rest.
    """
    said = {version: _share(text) for version, text in console.pairs(shares, "shares").items()}
    if said and default:
        console.fail("give shares or --default, not both")
    with console.connected(server) as client:
        if said or default:
            client.network(network).set_traffic(said)
        found = [each for each in client.repository() if each.name == network]
    if as_json:
        console.print_json({each.version: each.share for each in found if each.share})
    else:
        _print(found)


def shadow(
    network: Annotated[str, typer.Argument(metavar="NETWORK", help="The network's name.")],
    version: Annotated[
        str | None, typer.Option("--version", metavar="N", help="Give requests to this version.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", "-d", metavar="DEVICE", help="Give requests to this device."),
    ] = None,
    percent: Annotated[
        int, typer.Option("--percent", metavar="N", help="The share of the requests. 0 ends it.")
    ] = 5,
    server: Server = SERVER,
) -> None:
    """Also give a share of a network's requests to another version or device, and compare answers.

    The metrics headrace_shadow_requests_total and headrace_shadow_difference say how they differ.
    """
    with console.connected(server) as client:
        client.set_shadow(network, version, device, percent)


def _share(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number, in per cent") from None


def _print(found: list[RepositoryVersion]) -> None:
    console.print_table(
        ("NETWORK", "VERSION", "STATE", "SHARE", "MEMORY", "IDLE", "REASON"),
        [
            (
                version.name,
                version.version,
                version.state,
                f"{version.share} %" if version.share else "",
                *residence_text(version),
                version.reason,
            )
            for version in found
        ],
        what="networks in the model repository",
    )
