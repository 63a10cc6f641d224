"""Loads the parts of a network on their devices, which makes a network that runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
from headrace.runtime.intake.provenance import origins
from headrace.runtime.network.network import Network
from headrace.runtime.network.values import Value
from headrace.runtime.virtual.flow import Ends
from headrace.runtime.virtual.members import Target
from headrace.runtime.virtual.parts_request import named

_ANEW = "subgraph {} compiled anew: {}"


def load(
    network: Network,
    parts: Sequence[Part],
    targets: Sequence[Target],
    config: Configuration,
    token: CancelToken,
    exports: Sequence[SubgraphExport] = (),
) -> LoadResult:
    """Loads every part on its device. If a part fails, the parts that are loaded are closed.

    Args:
        network: transformed, with its types.
        parts: in execution order; their affinities are the targets' names.
        exports: the exports of an import, one for each part that has a result.

    Raises:
        What the devices raise, naming the subgraph.
    """
    by_name = {each.name: each for each in targets}
    stands_for = {node.name or "": origins(node) for node in network.nodes()}
    pieces = cut(network, parts)
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
            others = _others(network, parts, number, targets, target)
            subgraphs.append(_subgraph(number, piece, target, executable, stands_for, others))
        loaded = HeteroNetwork(network, config, subgraphs, _constants(network))
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


def parts_of(
    network: Network, exports: Sequence[SubgraphExport], targets: Sequence[Target]
) -> list[Part]:
    """The parts that an export was made of.

    Raises:
        InvalidArgument: the exports do not fit this network, or name other devices.
    """
    places = {node.name: index for index, node in enumerate(network.model.graph)}
    known = {target.name for target in targets}
    parts = []
    for number, exported in enumerate(exports, 1):
        if exported.device not in known:
            raise _mismatch(f"subgraph {number} was on {exported.device}")
        if not places.keys() >= set(exported.layers):
            raise _mismatch(f"subgraph {number} has other layers")
        parts.append(Part(exported.device, tuple(sorted(places[name] for name in exported.layers))))
    ends_now = [_ends(piece.network) for piece in cut(network, parts)]
    if ends_now != [exported.ends for exported in exports]:
        raise _mismatch("they have other inputs or outputs")
    made = {value.name for value in network.model.graph.inputs}
    made.update(network.model.graph.initializers)
    for ends in (*ends_now, Ends(tuple(port.name for port in network.outputs), ())):
        for name in ends.inputs:
            if name not in made:
                raise _mismatch(f"none of them makes {name!r} in time")
        made.update(ends.outputs)
    return parts


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
    stands_for: Mapping[str, tuple[str, ...]],
    others: Others,
) -> LoadedSubgraph:
    return LoadedSubgraph(
        number=number,
        device=target.name,
        executable=executable,
        ends=_ends(piece.network),
        layers=tuple(node.name or "" for node in piece.nodes),
        architecture=target.plugin.architecture,
        backend_version=target.plugin.backend_version,
        origins=stands_for,
        others=others,
        defaults=frozenset(port.name for port in piece.network.defaults),
    )


def _others(
    network: Network,
    parts: Sequence[Part],
    number: int,
    targets: Sequence[Target],
    target: Target,
) -> Others:
    """The devices behind that of subgraph `number` in the list."""
    names = [each.name for each in targets]
    behind = {each.name: each for each in targets[names.index(target.name) + 1 :]}

    def load_on(device: str, token: CancelToken) -> ExecutableNetwork:
        piece = cut(network, parts)[number - 1]
        return _load(piece, behind[device], b"", token)

    return Others([*behind], load_on)


def _ends(network: Network) -> Ends:
    return Ends(
        tuple(port.name for port in network.inputs), tuple(port.name for port in network.outputs)
    )


def _constants(network: Network) -> dict[str, Value]:
    """The outputs that are initialisers."""
    return {
        value.name or "": value.const_value.numpy()
        for value in network.model.graph.outputs
        if value.producer() is None and value.const_value is not None
    }
