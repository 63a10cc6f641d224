"""Tells which real networks OPENVINO claims whole: `python -m tools.claims.zoo`.

The networks are those of `make zoo`, with the sizes of their first request there. What follows from
sizes and constants is computed first, as the device does before it compiles.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime

from headrace.plugins.openvino.claims.unclaimed import type_bound, unclaimed
from headrace.plugins.openvino.plugin import OpenVinoPlugin
from headrace.runtime.errors import HeadraceError
from headrace.runtime.intake.naming import bodies
from headrace.runtime.network.constants import const_tensor
from headrace.runtime.network.network import Network
from headrace.runtime.network.type_inference import TypeInference
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.transform.single_layer import network_of
from headrace.testing.command_line import say
from headrace.testing.services import services
from tools.zoo.collection import networks
from tools.zoo.hints import hint_for
from tools.zoo.inputs import generate, ports

_MOST_BYTES = 1 << 16
_SHOWN = 4
_BOUND = 2**20
"""The device refuses requests with larger integers where that matters."""


def sized(plugin: OpenVinoPlugin, name: str, path: Path) -> ir.Model:
    """A network as the device transforms it, with the sizes of its first request.

    Raises:
        HeadraceError, ValueError: it is not a network, or its inputs are no tensors.
    """
    request = generate(ports(path), hint_for(name), 0)[0]
    network = Network.from_file(path, path.parent)
    model = plugin.transform_network(network, plugin.config, NetworkOptions()).model
    for value in model.graph.inputs:
        if (array := request.arrays.get(value.name or "")) is not None:
            value.shape = ir.Shape(array.shape)
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value.shape is not None and not value.shape.is_static():
                value.shape = None
    fold(model)
    return model


def fold(model: ir.Model) -> None:
    """Infers all sizes, and gives values that follow from sizes and constants their contents."""
    inference = TypeInference(model)
    for node in list(model.graph):
        inference.add(node)
        inference.flush()
        if node.op_type == "Constant" or any(bodies(node)):
            continue
        for value, contents in zip(node.outputs, _contents(node, model), strict=False):
            value.const_value = ir.tensor(contents, name=value.name)
            value.type = ir.TensorType(value.const_value.dtype)
            value.shape = ir.Shape(contents.shape)


def _contents(node: ir.Node, model: ir.Model) -> list[np.ndarray[Any, Any]]:
    """The results of a layer if they are the same in every run; otherwise none."""
    given = [None if value is None else const_tensor(value) for value in node.inputs]
    if node.op_type == "Shape" and node.inputs[0] is not None:
        shape = node.inputs[0].shape
        if shape is None or not shape.is_static():
            return []
        start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", 99)
        return [np.array(shape.numpy()[start:end], np.int64)]
    if not node.inputs or any(
        tensor is None and value is not None
        for tensor, value in zip(given, node.inputs, strict=True)
    ):
        return []
    if sum(tensor.nbytes for tensor in given if tensor is not None) > _MOST_BYTES:
        return []
    layer = network_of(node, model, 10, lambda _, version: version, sizes=True)
    constants = {each.name for each in layer.graph.initializer}
    feeds = {
        name: tensor.numpy()
        for name, tensor in zip(layer.graph.node[0].input, given, strict=True)
        if tensor is not None and name not in constants
    }
    try:
        session = onnxruntime.InferenceSession(
            layer.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        found = session.run(None, feeds)
    except Exception:  # noqa: BLE001 - it raises errors of many kinds, and the layer stays
        return []
    return found if sum(each.nbytes for each in found) <= _MOST_BYTES else []


def _bound(value: ir.Value) -> int:
    known = type_bound(value)
    return _BOUND if known is None else min(known, _BOUND)


def judged(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Each network with the reasons of the layers that are not claimed."""
    onnxruntime.set_default_logger_severity(4)
    with services() as offered:
        plugin = OpenVinoPlugin("OPENVINO", offered, {})
        for name, path in networks(folder).items():
            try:
                reasons = unclaimed(sized(plugin, name, path), bounds=_bound)
            except (HeadraceError, ValueError) as error:
                yield name, [str(error)]
                continue
            yield name, [f"{node.name} ({node.op_type}): {why}" for node, why in reasons.items()]


def main(folder: Path) -> int:
    claimed = 0
    for name, reasons in judged(folder):
        claimed += not reasons
        say(f"{name}: {'claimed' if not reasons else f'{len(reasons)} layers are not'}")
        for reason in dict.fromkeys(reasons[:_SHOWN]):
            say(f"    {reason}")
    say(f"{claimed} claimed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".cache/zoo")))
