"""Checks that the bodies of a layer give as many results as the layer hands on.

Backends and evaluators find the results by their position and do not survive one that is missing.
"""

from __future__ import annotations

import onnx

from headrace.runtime.intake.declarations import invalid

_GRAPH = onnx.AttributeProto.GRAPH
_WITHOUT_LENGTHS = 9
"""Since this version, the first input of a Scan is not the lengths of its sequences."""


def check_bodies(node: onnx.NodeProto, version: int, label: str) -> None:
    """Checks a layer of ONNX's own domain.

    Args:
        version: the version of the domain.

    Raises:
        InvalidModel: a body has too few outputs.
    """
    least = len(node.output)
    if node.op_type == "Loop":
        states = len(node.input) - 2  # after the number of rounds and the condition
        least = 1 + max(least, states)
    elif node.op_type == "Scan":
        given = [each for each in node.attribute if each.name == "num_scan_inputs"]
        if given and not given[0].ref_attr_name:
            before = 1 if version < _WITHOUT_LENGTHS else 0
            least = max(least, len(node.input) - before - given[0].i)
    elif node.op_type not in ("If", "SequenceMap"):
        return
    for each in node.attribute:
        if each.type == _GRAPH and not each.ref_attr_name and len(each.g.output) < least:
            raise invalid(
                f"attribute {each.name!r} of {label} has {len(each.g.output)} outputs; it needs "
                f"{least} for this {node.op_type}"
            )
