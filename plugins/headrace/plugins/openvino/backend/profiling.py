"""The graph that OpenVINO runs, and the cost of each of its layers, by the network's layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import onnx_ir as ir

from headrace.plugins.openvino.backend.fusion import fused_layers
from headrace.plugins.openvino.library import openvino
from headrace.runtime.execution.job import LayerProfile
from headrace.runtime.network.network import Layer, Network

_DOMAIN: Final = "openvino"
_NO_LAYER: Final = frozenset({"Input", "Output", "Const", "Parameter", "Result", "Constant"})


def graph(runtime_model: openvino.Model, network: Network) -> dict[str, Layer]:
    """The compiled network's layers by OpenVINO's name for them, in execution order.

    Args:
        network: the network as transformed for the device. The layers are named after its layers.
    """
    computing = [each for each in runtime_model.get_ordered_ops() if kind(each) not in _NO_LAYER]
    parts = _parts(computing, network)
    known = {layer.name: layer for layer in network.layers}
    layers: dict[str, Layer] = {}
    for operation in computing:
        name = operation.get_friendly_name()
        made_of = [known[each] for each in parts[name]]
        layers[name] = Layer(
            name=made_of[0].name if made_of else name,
            op_type=kind(operation),
            domain=_DOMAIN,
            inputs=tuple(
                port.get_source_output().get_node().get_friendly_name()
                for port in operation.inputs()
            ),
            outputs=(name,),
            origins=tuple(dict.fromkeys(origin for layer in made_of for origin in layer.origins)),
        )
    return layers


def _parts(computing: Iterable[openvino.Node], network: Network) -> dict[str, list[str]]:
    """The network's layers that each operation was made from. OpenVINO does not name all layers. A
    layer that it does not name was folded into a layer that reads its results, for example a
    convolution into a normalisation after it. If there is no such reader, the layer was folded into
    a layer whose results it reads."""
    nodes = list(network.model.graph)
    order = {node.name or "": position for position, node in enumerate(nodes)}
    owner: dict[str, str] = {}
    parts: dict[str, list[str]] = {}
    for operation in computing:
        name = operation.get_friendly_name()
        parts[name] = [each for each in fused_layers(operation) if each in order]
        for each in parts[name]:
            owner.setdefault(each, name)
    for neighbours, sequence in ((_readers, reversed(nodes)), (_sources, iter(nodes))):
        for node in sequence:
            if node.name not in owner:
                near = (owner[each] for each in neighbours(node) if each in owner)
                heir = next(near, None)
                if heir is not None:
                    owner[node.name or ""] = heir
                    parts[heir].append(node.name or "")
    return parts


def _readers(node: ir.Node) -> Iterator[str]:
    return (reader.name or "" for value in node.outputs for reader, _ in value.uses())


def _sources(node: ir.Node) -> Iterator[str]:
    makers = (value.producer() for value in node.inputs if value is not None)
    return (maker.name or "" for maker in makers if maker is not None)


def layers(
    costs: Iterable[openvino.ProfilingInfo], known: Mapping[str, Layer], device: str
) -> list[LayerProfile]:
    """One entry for each layer, in execution order. Layers that OpenVINO did not run are left
    out."""
    profiles: dict[str, LayerProfile] = {}
    for cost in costs:
        layer = known.get(cost.node_name)
        if layer is None or cost.status != openvino.ProfilingInfo.Status.EXECUTED:
            continue
        profile = profiles.get(layer.name) or LayerProfile(
            layer=layer.name,
            op_type=cost.node_type,
            device=device,
            execution_type=cost.exec_type,
            seconds=0.0,
            origins=layer.origins,
        )
        seconds = profile.seconds + cost.real_time.total_seconds()
        profiles[layer.name] = replace(profile, seconds=seconds)
    return list(profiles.values())


def kind(operation: openvino.Node) -> str:
    """OpenVINO's name for the type of the operation."""
    info = operation.get_rt_info()
    return str(info["layerType"].astype(str)) if "layerType" in info else operation.get_type_name()
