"""What is known of a network without its model, as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import onnx_ir as ir

from headrace.runtime.network.network import Network, Port, port_from_json, port_to_json


class _Form(NamedTuple):
    to_json: Callable[[Any], Any]
    from_json: Callable[[Any], Any]


def _ports_to_json(ports: Iterable[Port]) -> list[Any]:
    return [port_to_json(port) for port in ports]


def _ports_from_json(told: Iterable[Any]) -> tuple[Port, ...]:
    return tuple(port_from_json(each) for each in told)


def _operators_from_json(told: Iterable[Any]) -> frozenset[tuple[str, str]]:
    return frozenset((str(domain), str(name)) for domain, name in told)


PORTS: Final = _Form(_ports_to_json, _ports_from_json)
_TEXTS: Final = _Form(list, tuple)
_TYPES: Final = _Form(sorted, lambda told: frozenset(map(ir.DataType, told)))
_FORMS: Final[Mapping[str, _Form]] = {
    "defaults": PORTS,
    "digest": _Form(str, str),
    "inputs": PORTS,
    "notes": _TEXTS,
    "operators": _Form(sorted, _operators_from_json),
    "outputs": PORTS,
    "properties": _Form(dict, dict),
    "random_layers": _TEXTS,
    "size": _Form(int, int),
    "types": _TYPES,
    "weight_bytes": _Form(int, int),
    "widened_bytes": _Form(int, int),
}


FACTS: Final = tuple(_FORMS)
"""All that a network says of itself before it is compiled."""


def facts_to_json(network: Network, names: Iterable[str]) -> dict[str, Any]:
    """These properties of a network, as `Network.unread` takes them."""
    return {name: _FORMS[name].to_json(getattr(network, name)) for name in names}


def facts_from_json(told: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """What `facts_to_json` wrote.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    return {name: _FORMS[name].from_json(told[name]) for name in names}
