"""``headrace load``, ``unload``, ``networks``, ``export`` and ``import``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from headrace.client import Network
from headrace.client.cli import console, model_options
from headrace.client.cli.console import SERVER, AsJson, Server
from headrace.client.cli.model_options import (
    Affinities,
    Config,
    Device,
    ModelFile,
    Postprocessing,
    Preprocessing,
    Repository,
)
from headrace.client.cli.texts import describe
from headrace.client.info import Port

_PORTS = 4
_Name = Annotated[
    str,
    typer.Option(
        "--name", "-n", metavar="NAME", help="The network's name. [default: the file's name]"
    ),
]
_Network = Annotated[str, typer.Argument(metavar="NETWORK", help="The network's name.")]
_Replace = Annotated[
    bool, typer.Option("--replace", help="Replace the network that has this name.")
]


def load(
    model: ModelFile = None,
    device: Device = "",
    config: Config = None,
    name: _Name = "",
    repository: Repository = "",
    preprocessing: Preprocessing = "",
    postprocessing: Postprocessing = "",
    affinity: Affinities = None,
    replace: _Replace = False,
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Load a network onto a device."""
    arguments = model_options.arguments(
        model, repository, config, preprocessing, postprocessing, affinity
    )
    with (
        console.connected(server) as client,
        console.progress("compiling", quiet=as_json) as shown,
        model_options.naming(model),
    ):
        network = client.load_network(
            device=device, name=name, replace=replace, progress=shown, **arguments
        )
    _print_loaded(network, as_json=as_json)


def networks(server: Server = SERVER, as_json: AsJson = False) -> None:
    """List the networks that are loaded, are loading, or failed to load, with their versions."""
    with console.connected(server) as client:
        infos = [network.info for network in client.networks()]
    if as_json:
        console.print_json([dataclasses.asdict(network) for network in infos])
        return
    columns = ["NETWORK", "VERSION", "DEVICE", "STATE", "INPUTS", "OUTPUTS", "REASON"]
    rows = [
        [
            network.name,
            network.version,
            network.device,
            network.state,
            _listed(network.inputs),
            _listed(network.outputs),
            network.reason,
        ]
        for network in infos
    ]
    if any(network.replicas for network in infos):
        columns.append("REPLICAS")
        for row, network in zip(rows, infos, strict=True):
            row.append(", ".join(network.replicas) or "all")
    console.print_table(columns, rows, what="networks")


def _listed(ports: Sequence[Port]) -> str:
    """The first ports, and how many more there are: a decoder has dozens."""
    shown = ", ".join(map(describe, ports[:_PORTS]))
    return f"{shown} and {len(ports) - _PORTS} more" if len(ports) > _PORTS else shown


def unload(
    network: _Network,
    version: Annotated[
        str, typer.Option("--version", metavar="N", help="The version. [default: all versions]")
    ] = "",
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Unload a network, or one version of it, and wait until its memory is free."""
    with console.connected(server) as client:
        client.network(network, version).unload()
    if as_json:
        console.print_json({"unloaded": network, **({"version": version} if version else {})})
    else:
        typer.echo(f"unloaded {network}{f' version {version}' if version else ''}")


def export(
    network: _Network,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")
    ],
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Write a compiled network to a file, for `headrace import`."""
    with console.connected(server) as client, console.progress("exporting", quiet=as_json):
        blob = client.network(network).export()
    with console.writing(output):
        output.write_bytes(blob)
    if as_json:
        console.print_json({"network": network, "file": str(output), "size_bytes": len(blob)})
    else:
        typer.echo(f"wrote {len(blob)} bytes to {output}")


def import_(
    blob: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file that `headrace export` wrote.")
    ],
    device: Annotated[
        str,
        typer.Option(
            "--device",
            "-d",
            metavar="DEVICE",
            help="The device. [default: the one that the network was exported from]",
        ),
    ] = "",
    config: Config = None,
    name: _Name = "",
    replace: _Replace = False,
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Load an exported network."""
    values = console.pairs(config, "--config")
    with console.connected(server) as client, console.progress("importing", quiet=as_json) as shown:
        network = client.import_network(
            blob, device, name=name, config=values, replace=replace, progress=shown
        )
    _print_loaded(network, as_json=as_json)


def _print_loaded(network: Network, *, as_json: bool) -> None:
    info = network.info
    if as_json:
        console.print_json(dataclasses.asdict(info))
        return
    cached = ", from cache" if info.from_cache else ""
    fields = [("network", info.name), ("device", info.device)]
    fields += [("input", describe(port)) for port in info.inputs]
    fields += [("output", describe(port)) for port in info.outputs]
    fields += [("state", f"{name} = {output}") for name, output in info.states.items()]
    if info.replicas:
        fields += [("replicas", ", ".join(info.replicas))]
    fields += [("loaded in", f"{info.load_seconds:.3f} s{cached}")]
    console.print_fields(fields)
    for line in info.notes:
        console.note(line)
