"""Which layers of the network as it was loaded a node stands for.

Before the first transformation each node is stamped with its own name; whatever replaces it
carries the stamp on. The stamp is a JSON list under one metadata key, so that it survives every
pass, every clone and every trip through a serialised model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import onnx_ir as ir

METADATA_PREFIX = "headrace."
ORIGINS = METADATA_PREFIX + "origins"


def origins(node: ir.Node) -> tuple[str, ...]:
    """Names of the original layers that `node` stands for; none if we added it ourselves, or if
    the network was never transformed."""
    stamp = node.metadata_props.get(ORIGINS)
    return tuple(json.loads(stamp)) if stamp else ()


def is_stamped(node: ir.Node) -> bool:
    return ORIGINS in node.metadata_props


def stamp(node: ir.Node, names: Iterable[str]) -> None:
    """Says that `node` stands for the layers `names`, each once, in the order given."""
    node.metadata_props[ORIGINS] = json.dumps(list(dict.fromkeys(names)))
