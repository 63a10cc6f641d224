"""RotaryEmbeddings of odd numbers of elements.

The kernel turns pairs. It leaves the last element of an odd number as it finds it in memory, and
reads beyond the end of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import onnx_ir as ir


def rotary_elements(node: ir.Node, sizes: Sequence[int | None] | None) -> int | None:
    """How many elements of each head a RotaryEmbedding turns. None if that depends on the request.

    Args:
        sizes: those of the layer's data, as far as they are known.
    """
    given = node.attributes.get_int("rotary_embedding_dim", 0)
    if given or sizes is None or len(sizes) not in (3, 4) or sizes[-1] is None:
        return given or None
    heads = node.attributes.get_int("num_heads", 0) if len(sizes) == 3 else 1
    return sizes[-1] // heads if heads > 0 else None


def _rotary(node: ir.Node) -> str | None:
    shape = node.inputs[0].shape if node.inputs and node.inputs[0] is not None else None
    sizes = None if shape is None else [size if isinstance(size, int) else None for size in shape]
    count = rotary_elements(node, sizes)
    return "it turns an odd number of elements" if count is not None and count % 2 else None


RULES: Final[Mapping[str, Callable[[ir.Node], str | None]]] = MappingProxyType(
    {"RotaryEmbedding": _rotary}
)
