"""``headrace load``, ``unload``, ``networks``, ``query``, ``export`` and ``import``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.client import Network, NetworkInfo, Port
from headrace.client.cli import console
from headrace.client.cli.console import SERVER, AsJson, Server

_Model = Annotated[Path | None, typer.Argument(metavar="[MODEL]", help="An ONNX file.")]
_Device = Annotated[
    str, typer.Option("--device", "-d", help="As CPU, CPU.0 or HETERO:OPENCL,CPU. [default: CPU]")
]
_Config = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="KEY=VALUE", help="A configuration key; repeatable."),
]
_Repository = Annotated[
    str, typer.Option("--repository", help="Instead of MODEL, one of the server's repository.")
]
_Preprocessing = Annotated[
    str,
    typer.Option(
        "--preprocessing",
        metavar="JSON",
        help="""What clients send per input, as '{"x": {"dtype": "uint8", "layout": "NHWC"}}'.""",
    ),
]
_Postprocessing = Annotated[
    str,
    typer.Option(
        "--postprocessing",
        metavar="JSON",
        help="""What clients get per output, as '{"y": {"dtype": "float16"}}'.""",
    ),
]
_Affinities = Annotated[
    list[str] | None,
    typer.Option("--affinity", metavar="LAYER=DEVICE", help="For HETERO; repeatable."),
]
_Name = Annotated[str, typer.Option("--name", "-n", help="To call the network by.")]
_Replace = Annotated[
    bool, typer.Option("--replace", help="Take the place of a network of this name.")
]


def load(
    model: _Model = None,
    device: _Device = "",
    config: _Config = None,
    name: _Name = "",
    repository: _Repository = "",
    preprocessing: _Preprocessing = "",
    postprocessing: _Postprocessing = "",
    affinity: _Affinities = None,
    replace: _Replace = False,
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Load a network onto a device."""
    arguments = _load_arguments(model, repository, config, preprocessing, postprocessing, affinity)
    with console.connected(server) as client, console.progress("loading", quiet=as_json) as shown:
        network = client.load_network(
            device=device, name=name, replace=replace, progress=shown, **arguments
        )
    _print_loaded(network, as_json=as_json)


def query(
    model: _Model = None,
    device: _Device = "",
    config: _Config = None,
    repository: _Repository = "",
    preprocessing: _Preprocessing = "",
    postprocessing: _Postprocessing = "",
    affinity: _Affinities = None,
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Say layer by layer whether a device would run a network."""
    arguments = _load_arguments(model, repository, config, preprocessing, postprocessing, affinity)
    with console.connected(server) as client, console.progress("querying", quiet=as_json) as shown:
        result = client.query_network(device=device, progress=shown, **arguments)
    if as_json:
        console.print_json(
            {
                "supported_layers": result.supported_layers,
                "unsupported": [layer._asdict() for layer in result.unsupported],
                "subgraphs": [part._asdict() for part in result.subgraphs],
            }
        )
        return
    rows = [(layer, where, "") for layer, where in result.supported_layers.items()]
    rows += [(layer.layer, "-", f"{layer.op_type}: {layer.reason}") for layer in result.unsupported]
    console.print_table(("LAYER", "DEVICE", "REASON"), rows)
    for number, part in enumerate(result.subgraphs):
        typer.echo(f"subgraph {number} on {part.device}: {', '.join(part.layers)}")


def networks(server: Server = SERVER, as_json: AsJson = False) -> None:
    """List the networks that are loaded, are loading or have failed."""
    with console.connected(server) as client:
        found = [network.info for network in client.networks()]
    if as_json:
        console.print_json([_as_dict(network) for network in found])
        return
    console.print_table(
        ("NETWORK", "DEVICE", "STATE", "INPUTS", "OUTPUTS", "REASON"),
        [
            (
                network.name,
                network.device,
                network.state,
                ", ".join(map(describe, network.inputs)),
                ", ".join(map(describe, network.outputs)),
                network.reason,
            )
            for network in found
        ],
    )


def unload(
    network: Annotated[str, typer.Argument(help="Its name.")],
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Unload a network; returns when its memory is given back."""
    with console.connected(server) as client:
        client.network(network).unload()
    if as_json:
        console.print_json({"unloaded": network})
    else:
        typer.echo(f"unloaded {network}")


def export(
    network: Annotated[str, typer.Argument(help="Its name.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Write a compiled network to a file, for `headrace import`."""
    with console.connected(server) as client, console.progress("exporting", quiet=as_json):
        blob = client.network(network).export()
    try:
        output.write_bytes(blob)
    except OSError as error:
        console.fail(f"cannot write {output}: {error.strerror or error}")
    if as_json:
        console.print_json({"network": network, "file": str(output), "size_bytes": len(blob)})
    else:
        typer.echo(f"wrote {len(blob)} bytes to {output}")


def import_(
    blob: Annotated[Path, typer.Argument(metavar="FILE", help="Written by `headrace export`.")],
    device: Annotated[
        str, typer.Option("--device", "-d", help="[default: the one it was exported from]")
    ] = "",
    config: _Config = None,
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


def describe(port: Port) -> str:
    """A port in short, as ``x float32[N,3]``."""
    shape = "[...]"
    if port.shape is not None:
        shape = f"[{','.join('?' if size is None else str(size) for size in port.shape)}]"
    text = f"{port.name} {port.dtype}{shape}"
    if port.kind == "sequence":
        text = f"{port.name} sequence({port.dtype}{shape})"
    return f"{text}?" if port.optional else text


def _load_arguments(
    model: Path | None,
    repository: str,
    config: list[str] | None,
    preprocessing: str,
    postprocessing: str,
    affinities: list[str] | None,
) -> dict[str, Any]:
    if (model is None) == (not repository):
        raise typer.BadParameter("give either MODEL or --repository NAME", param_hint="MODEL")
    return {
        "model": model,
        "repository": repository,
        "config": console.pairs(config, "--config"),
        "preprocessing": _json_object(preprocessing, "--preprocessing"),
        "postprocessing": _json_object(postprocessing, "--postprocessing"),
        "affinities": console.pairs(affinities, "--affinity"),
    }


def _json_object(text: str, option: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise typer.BadParameter(f"is no JSON: {error}", param_hint=option) from None
    if not isinstance(value, dict) or not all(isinstance(each, dict) for each in value.values()):
        message = 'must be an object of objects, as {"x": {"dtype": "uint8"}}'
        raise typer.BadParameter(message, param_hint=option)
    return value


def _as_dict(network: NetworkInfo) -> dict[str, Any]:
    return dataclasses.asdict(network)


def _print_loaded(network: Network, *, as_json: bool) -> None:
    info = network.info
    if as_json:
        console.print_json(_as_dict(info))
        return
    cached = ", from cache" if info.from_cache else ""
    fields = [("network", info.name), ("device", info.device)]
    fields += [("input", describe(port)) for port in info.inputs]
    fields += [("output", describe(port)) for port in info.outputs]
    fields += [("loaded in", f"{info.load_seconds:.3f} s{cached}")]
    console.print_fields(fields)
    for line in info.notes:
        console.note(line)
