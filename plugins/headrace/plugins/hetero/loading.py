"""Loads the parts of a network on their devices, which makes a network that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from headrace.plugins.hetero.executable_network import HeteroNetwork
from headrace.plugins.hetero.planning.cut import Piece, cut
from headrace.plugins.hetero.planning.partition import Part
from headrace.plugins.hetero.running.others import Others
from headrace.plugins.hetero.running.subgraph import LoadedSubgraph, SubgraphExport
from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load, LoadResult
from headrace.runtime.errors import HeadraceError, InvalidArgument
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.network import Network
from headrace.runtime.network.values import Value
from headrace.runtime.virtual.entries import told_of, unread
from headrace.runtime.virtual.flow import Ends
from headrace.runtime.virtual.members import Target
from headrace.runtime.virtual.parts_request import named

_ANEW = "subgraph {} compiled anew: {}"


def load(
    network: Network,
    pieces: Sequence[Piece],
    again: Callable[[int], Piece],
    targets: Sequence[Target],
    config: Configuration,
    token: CancelToken,
    exports: Sequence[SubgraphExport] = (),
    name: str = "",
) -> LoadResult:
    """Loads every piece on its device. If one fails, those that are loaded are closed.

    Args:
        network: transformed, with its types.
        pieces: in execution order; their affinities are the targets' names.
        again: cuts the piece of a number, from 0, out of the network once more.
        exports: the exports of an import, one for each piece.
        name: the network's full name; empty for a part of another one.

    Raises:
        What the devices raise, naming the subgraph.
    """
    by_name = {each.name: each for each in targets}
    notes: list[str] = []
    subgraphs: list[LoadedSubgraph] = []
    try:
        for number, piece in enumerate(pieces, 1):
            if token.error is not None:
                raise token.error
            target = by_name[piece.affinity]
            native = b""
            if exports:
                native, note = exports[number - 1].usable_by(target.plugin)
                notes += [_ANEW.format(number, note)] if note else []
            try:
                executable = _load(piece, target, native, token)
            except HeadraceError as error:
                if token.error is not None:
                    raise
                place = f"subgraph {number} of {len(pieces)} on {target.name}"
                raise named(error, place, subgraph=str(number), device=target.name) from error
            notes += [f"subgraph {number}: {note}" for note in executable.notes]
            others = _others(partial(again, number - 1), targets, target, name)
            told = exports[number - 1].told if exports else told_of(piece.network)
            subgraphs.append(_subgraph(number, piece, target, executable, told, others))
        loaded = HeteroNetwork(network, config, subgraphs, _constants(network, subgraphs))
        loaded.maps_weights = all(
            each.executable.maps_weights or not piece.network.weight_bytes
            for each, piece in zip(subgraphs, pieces, strict=True)
        )
    except BaseException:
        for subgraph in subgraphs:
            subgraph.executable.close()
        raise
    from_cache = any(subgraph.executable.loaded_from_cache for subgraph in subgraphs)
    return LoadResult(loaded, tuple(notes), from_cache=from_cache)


def check_devices(exports: Sequence[SubgraphExport], targets: Sequence[Target]) -> None:
    """
    Raises:
        InvalidArgument: the exports name other devices.
    """
    known = {target.name for target in targets}
    for number, exported in enumerate(exports, 1):
        if exported.device not in known:
            raise _mismatch(f"subgraph {number} was on {exported.device}")


def unread_pieces(
    exports: Sequence[SubgraphExport], again: Callable[[int], Piece]
) -> tuple[Piece, ...]:
    """The pieces that exports tell of. One is cut when somebody asks for its graph.

    Args:
        again: as for `load`.
    """

    def piece(number: int, exported: SubgraphExport) -> Piece:
        network = unread(lambda: again(number).network, exported.told)
        return Piece(exported.device, network, exported.layers)

    return tuple(piece(number, exported) for number, exported in enumerate(exports))


def pieces_of(network: Network, exports: Sequence[SubgraphExport]) -> tuple[Piece, ...]:
    """The pieces that an export was made of.

    Raises:
        InvalidArgument: the exports do not fit this network.
    """
    places = {node.name: index for index, node in enumerate(network.model.graph)}
    parts = []
    for number, exported in enumerate(exports, 1):
        if not places.keys() >= set(exported.layers):
            raise _mismatch(f"subgraph {number} has other layers")
        parts.append(Part(exported.device, tuple(sorted(places[name] for name in exported.layers))))
    pieces = cut(network, parts)
    ends_now = [_ends(piece.network) for piece in pieces]
    if ends_now != [exported.ends for exported in exports]:
        raise _mismatch("they have other inputs or outputs")
    made = {value.name for value in network.model.graph.inputs}
    made.update(network.model.graph.initializers)
    for ends in (*ends_now, Ends(tuple(port.name for port in network.outputs), ())):
        for name in ends.inputs:
            if name not in made:
                raise _mismatch(f"none of them makes {name!r} in time")
        made.update(ends.outputs)
    return pieces


def _mismatch(why: str) -> InvalidArgument:
    return InvalidArgument(f"the subgraphs do not fit: {why}", field="blob")


def _load(piece: Piece, target: Target, native: bytes, token: CancelToken) -> ExecutableNetwork:
    load = Load(piece.network, target.config, target.options, native, token)
    return target.plugin.load_network(load)


def _subgraph(
    number: int,
    piece: Piece,
    target: Target,
    executable: ExecutableNetwork,
    told: Mapping[str, Any],
    others: Others,
) -> LoadedSubgraph:
    return LoadedSubgraph(
        number=number,
        device=target.name,
        executable=executable,
        ends=_ends(piece.network),
        layers=piece.layers,
        architecture=target.plugin.architecture,
        backend_version=target.plugin.backend_version,
        told=told,
        others=others,
        defaults=frozenset(port.name for port in piece.network.defaults),
    )


def _others(
    again: Callable[[], Piece], targets: Sequence[Target], target: Target, name: str
) -> Others:
    """The devices behind that of a subgraph in the list. They load it if the memory budget has
    room."""
    names = [each.name for each in targets]
    behind = {each.name: each for each in targets[names.index(target.name) + 1 :]}

    def load_on(device: str, token: CancelToken) -> ExecutableNetwork:
        other, piece = behind[device], again()
        with other.plugin.services.lent(name, other.device, piece.network) as keep:
            executable = _load(piece, other, b"", token)
            keep()
            return executable

    loads = target.plugin.services.loads
    return Others([*behind] if loads is not None else [], load_on, loads)


def _ends(network: Network) -> Ends:
    return Ends(
        tuple(port.name for port in network.inputs), tuple(port.name for port in network.outputs)
    )


def _constants(network: Network, subgraphs: Sequence[LoadedSubgraph]) -> dict[str, Value]:
    """The outputs that are initialisers."""
    made = {port.name for port in network.inputs}
    made.update(name for subgraph in subgraphs for name in subgraph.ends.outputs)
    if made.issuperset(port.name for port in network.outputs):
        return {}
    return {
        value.name or "": value.const_value.numpy()
        for value in network.model.graph.outputs
        if value.producer() is None and value.const_value is not None
    }
