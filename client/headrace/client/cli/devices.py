"""``headrace devices``, ``metric`` and ``config``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from headrace.client import Client, Range, errors
from headrace.client.cli import console
from headrace.client.cli.console import SERVER, AsJson, Server
from headrace.wire.parameters import ParameterValue

Get = Callable[[str], ParameterValue]

_Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="A device, such as CPU or CPU.0. With --network, a network."
    ),
]
_IsNetwork = Annotated[
    bool, typer.Option("--network", help="TARGET is the name of a loaded network.")
]
_Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="An option of the request, such as DEVICE_ID=1. Repeatable.",
    ),
]


def devices(server: Server = SERVER, as_json: AsJson = False) -> None:
    """List the server's devices, and why a device is down."""
    with console.connected(server) as client:
        listed = client.devices()
    if as_json:
        console.print_json([dataclasses.asdict(device) for device in listed])
        return
    console.print_table(
        ("DEVICE", "STATE", "IDS", "NAME", "BACKEND", "REASON"),
        [
            (
                device.name,
                device.state,
                ",".join(device.device_ids),
                device.full_name,
                device.backend_version,
                device.reason,
            )
            for device in listed
        ],
        what="devices",
    )


def metric(
    target: _Target,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The metric. [default: all metrics]")
    ] = None,
    network: _IsNetwork = False,
    option: _Options = None,
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Show metrics of a device or a network."""
    options = console.pairs(option, "--option")
    with console.connected(server) as client, _hint(client, target, network):
        get_metric, _ = _getters(client, target, network, options)
        names = [name] if name else _names(get_metric("SUPPORTED_METRICS"))
        values = {each: get_metric(each) for each in names}
    _print(values, single=name is not None, as_json=as_json)


def config(
    target: _Target,
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY|KEY=VALUE", help="The keys to show or to set. [default: show all keys]"
        ),
    ] = None,
    network: _IsNetwork = False,
    option: _Options = None,
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Show or set configuration keys of a device or a network."""
    options = console.pairs(option, "--option")
    wanted = [key for key in keys or () if "=" not in key]
    changes = console.pairs([key for key in keys or () if "=" in key], "KEY=VALUE")
    with console.connected(server) as client, _hint(client, target, network):
        get_metric, get_config = _getters(client, target, network, options)
        if changes and network:
            client.network(target).set_config(changes)
        elif changes:
            client.set_config(target, changes)
        if not keys:
            wanted = _names(get_metric("SUPPORTED_CONFIG_KEYS"))
        values = {key: get_config(key) for key in [*changes, *wanted]}
    _print(values, single=len(values) == 1 and not changes, as_json=as_json)


@contextmanager
def _hint(client: Client, target: str, network: bool) -> Iterator[None]:
    """If there is no such device, but a network of that name, tells how to ask for the network."""
    try:
        yield
    except errors.NotFound as error:
        if network or target not in {each.name for each in client.networks()}:
            raise
        console.fail(f"{error}; add --network if you mean the network {target!r}", error)


def _getters(
    client: Client, target: str, network: bool, options: dict[str, str]
) -> tuple[Get, Get]:
    """The functions that get a metric and a configuration key of the target."""
    if network:
        owner = client.network(target)
        return (
            lambda name: owner.get_metric(name, options=options),
            lambda name: owner.get_config(name, options=options),
        )
    return (
        lambda name: client.get_metric(target, name, options=options),
        lambda name: client.get_config(target, name, options=options),
    )


def _names(value: ParameterValue) -> list[str]:
    return value if isinstance(value, list) else [str(value)]


def _print(values: dict[str, ParameterValue], *, single: bool, as_json: bool) -> None:
    if as_json:
        console.print_json(
            {
                name: dataclasses.asdict(value) if isinstance(value, Range) else value
                for name, value in values.items()
            }
        )
    elif single:
        typer.echo(_text(next(iter(values.values()))))
    else:
        console.print_fields([(name, _text(value)) for name, value in values.items()])


def _text(value: ParameterValue) -> str:
    match value:
        case bool():
            return "YES" if value else "NO"
        case list():
            return ", ".join(value)
        case Range():
            step = f" in steps of {value.step}" if value.step != 1 else ""
            return f"{value.minimum} to {value.maximum}{step}"
        case _:
            return str(value)
