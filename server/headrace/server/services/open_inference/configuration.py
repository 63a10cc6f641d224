"""Describes a loaded network as Triton's ModelConfig, in the fields that apply here.

A client may load the network with it again: it has what a load may set and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

from google.protobuf import json_format

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.config.schema import ParameterValue
from headrace.runtime.config.standard_keys import AUTO_BATCH_TIMEOUT
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.loading.entry import NetworkEntry
from headrace.runtime.network.network import Port
from headrace.runtime.pipelines.description import DEVICE
from headrace.runtime.responses.keys import RESPONSE_CACHE
from headrace.runtime.transform.options import LoadRequest, Presentation
from headrace.runtime.transform.warm_up import WarmUp
from headrace.server.repository.ensembles import PLATFORM as ENSEMBLE
from headrace.server.repository.ensembles import ensemble_of
from headrace.server.repository.model_config import (
    BACKEND,
    MIDDLE_PRIORITY,
    MODEL,
    PLATFORM,
    PRIORITIES,
)
from headrace.server.repository.model_ports import data_type

_GROUP = oip.ModelInstanceGroup
_INPUT = oip.ModelInput
_FORMATS: Final = {"NHWC": _INPUT.FORMAT_NHWC, "NCHW": _INPUT.FORMAT_NCHW}
_KINDS: Final = {
    "CUDA": _GROUP.KIND_GPU,
    "CPU": _GROUP.KIND_CPU,
    "OPENVINO": _GROUP.KIND_CPU,
    "TEMPLATE": _GROUP.KIND_CPU,
    "AUTO": _GROUP.KIND_AUTO,
}
"""The kinds of devices. Any other device decides by itself where it computes."""


def model_config(entry: NetworkEntry, executable: ExecutableNetwork, name: str) -> oip.ModelConfig:
    """
    Args:
        name: the name under which the caller sees the network.

    Raises:
        Unimplemented: the protocol cannot describe an input or output of the network.
    """
    request: LoadRequest = entry.record.request
    presentation: Presentation = request.presentation
    batched = presentation.max_batch_size > 0
    config = oip.ModelConfig(
        name=name,
        platform=PLATFORM,
        backend=BACKEND,
        max_batch_size=presentation.max_batch_size,
        default_model_filename=MODEL,
        input=[
            _input(port, _reshape(port, entry, "inputs", batched=batched), batched=batched)
            for port in executable.inputs
        ],
        output=[
            oip.ModelOutput(
                name=port.name,
                data_type=data_type(port, "output"),
                dims=_dims(port, batched=batched),
                reshape=_reshape(port, entry, "outputs", batched=batched),
                label_filename=label_file(port.name) if presentation.labels_of(port.name) else "",
            )
            for port in executable.outputs
        ],
        instance_group=[
            _GROUP(
                name=str(request.device),
                kind=_KINDS.get(request.device.type, _GROUP.KIND_MODEL),
                count=_number(executable, "OPTIMAL_NUMBER_OF_INFER_REQUESTS"),
            )
        ],
        model_transaction_policy=oip.ModelTransactionPolicy(decoupled=False),
        model_warmup=_warm_ups(request.warm_ups, executable, batched=batched),
    )
    if executable.config.get(RESPONSE_CACHE):
        config.response_cache.enable = True
    if presentation.version_policy:
        json_format.ParseDict(dict(presentation.version_policy), config.version_policy)
    ensemble = ensemble_of(entry.record.given) if request.device.type == DEVICE else None
    if ensemble is not None:
        config.platform, config.backend, config.default_model_filename = ENSEMBLE, "", ""
        config.ClearField("instance_group")
        config.ensemble_scheduling.CopyFrom(ensemble)
        for key, text in request.config.items():
            config.parameters[key].string_value = text
        return config
    for key, text in _loadable(executable, request).items():
        config.parameters[key].string_value = text
    config.parameters["DEVICE"].string_value = str(request.device)
    if executable.states:
        batching = config.sequence_batching
        batching.direct.SetInParent()
        idle = config.parameters["SEQUENCE_IDLE_TIMEOUT"].string_value or "0"
        batching.max_sequence_idle_microseconds = round(float(idle) * 1e6)
        for name, output in executable.states.items():
            batching.state.add(input_name=name, output_name=output)
    elif batched and "BATCH_SIZE" in executable.metrics():
        joining = config.dynamic_batching
        joining.preferred_batch_size.append(_number(executable, "BATCH_SIZE"))
        if AUTO_BATCH_TIMEOUT.name in executable.config.explicit:
            joining.max_queue_delay_microseconds = executable.config[AUTO_BATCH_TIMEOUT] * 1000
        if presentation.priority:
            joining.priority_levels = PRIORITIES
            joining.default_priority_level = MIDDLE_PRIORITY - presentation.priority
    return config


def label_file(output: str) -> str:
    """The name of the file with the labels of an output. A client that loads the network again need
    not send it."""
    return f"{output.replace('/', '_')}.labels"


def _warm_ups(
    warm_ups: Iterable[WarmUp], executable: ExecutableNetwork, *, batched: bool
) -> list[oip.ModelWarmup]:
    """The warm-ups that the message can hold: without files, and with one number of rows."""
    told: list[oip.ModelWarmup] = []
    for warm_up in warm_ups:
        rows = {shape[:1] for shape in warm_up.shapes.values()} if batched else set()
        if warm_up.file or warm_up.raw or not warm_up.count or len(rows) > 1 or () in rows:
            continue
        said = oip.ModelWarmup(name=f"warm-up {len(told) + 1}", count=warm_up.count)
        for (size,) in rows:
            said.batch_size = size
        for port in executable.inputs:
            shape = warm_up.shapes.get(port.name)
            if shape is not None:
                dims = shape[1:] if batched else shape
                made = oip.ModelWarmup.Input(data_type=data_type(port, "input"), dims=dims)
                if port.name in warm_up.random:
                    made.random_data = True
                else:
                    made.zero_data = True
                said.inputs[port.name].CopyFrom(made)
        told.append(said)
    return told


def _loadable(executable: ExecutableNetwork, request: LoadRequest) -> dict[str, str]:
    """The keys that a load of the network may set, and those that this one set for one device of
    its list. The time that a request waits for others is left out if nobody set it: Triton has no
    word for the default, which is told as a delay of 0."""
    config = executable.config
    known = {key.name for key in config.schema if key.scope in ("network", "load")}
    if AUTO_BATCH_TIMEOUT.name not in config.explicit:
        known.discard(AUTO_BATCH_TIMEOUT.name)
    found = {key: text for key, text in config.shown_strings().items() if key in known}
    return found | {key: text for key, text in request.config.items() if "." in key}


def _reshape(
    port: Port, entry: NetworkEntry, side: Literal["inputs", "outputs"], *, batched: bool
) -> oip.ModelTensorReshape | None:
    """The shape that the model itself has, if clients see another one."""
    options = getattr(entry.record.request.options, side)
    if port.name not in options or options[port.name].shape is None:
        return None
    (own,) = (each for each in getattr(entry.record.given, side) if each.name == port.name)
    return oip.ModelTensorReshape(shape=_dims(own, batched=batched))


def _input(port: Port, reshape: oip.ModelTensorReshape | None, *, batched: bool) -> Any:
    return _INPUT(
        name=port.name,
        data_type=data_type(port, "input"),
        format=_FORMATS.get(port.layout, _INPUT.FORMAT_NONE),
        dims=_dims(port, batched=batched),
        reshape=reshape,
        optional=port.optional,
    )


def _dims(port: Port, *, batched: bool) -> list[int]:
    if port.shape is None:
        return [-1]
    sizes = [size if isinstance(size, int) else -1 for size in port.shape]
    return sizes[1:] if batched else sizes


def _number(executable: ExecutableNetwork, metric: str) -> int:
    value: ParameterValue = executable.get_metric(metric)
    assert isinstance(value, int)
    return value
