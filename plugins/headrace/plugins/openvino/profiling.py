"""The graph that OpenVINO runs, and what each of its layers cost, in terms of the network's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from headrace.plugins.openvino.fusion import fused_layers
from headrace.plugins.openvino.library import openvino
from headrace.runtime.job import LayerProfile
from headrace.runtime.network import Layer, Network

_DOMAIN: Final = "openvino"
_NO_LAYER: Final = frozenset({"Input", "Output", "Const", "Parameter", "Result", "Constant"})


def graph(runtime_model: openvino.Model, network: Network) -> dict[str, Layer]:
    """The compiled network's layers by OpenVINO's name for them, in execution order.

    Args:
        network: as transformed for the device; layers are called after its.
    """
    known = {layer.name: layer for layer in network.layers}
    found: dict[str, Layer] = {}
    for operation in runtime_model.get_ordered_ops():
        kind = _info(operation, "layerType") or operation.get_type_name()
        if kind in _NO_LAYER:
            continue
        made_of = [known[name] for name in fused_layers(operation) if name in known]
        name = operation.get_friendly_name()
        found[name] = Layer(
            name=made_of[0].name if made_of else name,
            op_type=kind,
            domain=_DOMAIN,
            inputs=tuple(
                port.get_source_output().get_node().get_friendly_name()
                for port in operation.inputs()
            ),
            outputs=(name,),
            origins=tuple(dict.fromkeys(each for layer in made_of for each in layer.origins)),
        )
    return found


def layers(
    costs: Iterable[openvino.ProfilingInfo], known: Mapping[str, Layer], device: str
) -> list[LayerProfile]:
    """One entry a layer, in execution order; what OpenVINO did not run is left out."""
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


def _info(operation: openvino.Node, key: str) -> str:
    info = operation.get_rt_info()
    return str(info[key].astype(str)) if key in info else ""
