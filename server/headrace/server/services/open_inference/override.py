"""Reads a ModelConfig that a client sends with a load, and applies the fields that it supports.

A field that has no meaning here is refused by name, unless it has its default value. A client that
sets such a field would not get what it asks for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf import json_format

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.errors import InvalidArgument, Unimplemented
from headrace.runtime.sequences.keys import Declaration, written
from headrace.runtime.transform.warm_up import WarmUp
from headrace.server.repository.policy import VersionPolicy, parse_policy
from headrace.server.services.open_inference.configuration import BACKEND, MODEL_FILE, PLATFORM

MAX_BYTES: Final = 1 << 20

_FIELD: Final = "parameters['config']"
_PLATFORMS: Final = ("", PLATFORM, "onnxruntime_onnx")
_OPENVINO: Final = "openvino"
_BACKENDS: Final = ("", BACKEND, "onnx", "onnxruntime", _OPENVINO)
_GROUP = oip.ModelInstanceGroup
_DEVICES: Final = {_GROUP.KIND_AUTO: "AUTO", _GROUP.KIND_CPU: "CPU", _GROUP.KIND_GPU: "CUDA"}

# The supported fields of messages that also have unsupported fields.
_HONOURED: Final[Mapping[str, frozenset[str]]] = {
    "ModelConfig": frozenset(
        (
            "name",
            "platform",
            "backend",
            "version_policy",
            "max_batch_size",
            "input",
            "output",
            "instance_group",
            "parameters",
            "sequence_batching",
            "dynamic_batching",
            "default_model_filename",
            "model_transaction_policy",
            "model_warmup",
        )
    ),
    "ModelInput": frozenset(("name", "data_type", "format", "dims", "optional")),
    "ModelOutput": frozenset(("name", "data_type", "dims", "label_filename")),
    "ModelInstanceGroup": frozenset(("name", "kind", "count", "gpus")),
    "ModelSequenceBatching": frozenset(
        ("direct", "oldest", "state", "max_sequence_idle_microseconds")
    ),
    "StrategyDirect": frozenset(),
    "StrategyOldest": frozenset(("max_candidate_sequences",)),
    "State": frozenset(("input_name", "output_name", "data_type", "dims", "initial_state")),
    "InitialState": frozenset(("name", "data_type", "dims", "zero_data")),
    "ModelDynamicBatching": frozenset(("preferred_batch_size", "max_queue_delay_microseconds")),
    "ModelTransactionPolicy": frozenset(),
    "ModelWarmup": frozenset(("name", "batch_size", "inputs", "count")),
    "ModelWarmup.Input": frozenset(("data_type", "dims", "zero_data")),
}


@dataclass(frozen=True, slots=True)
class Override:
    """
    Attributes:
        device: the device, or None if the configuration does not set it.
        batch: the most rows of a batch that requests are joined to. 0 changes nothing.
        label_files: the files of labels, by output.
        ports: the inputs and outputs in the configuration, states included, to compare with the
            model's.
    """

    device: str | None = None
    batch: int = 0
    config: Mapping[str, str] = field(default_factory=dict)
    policy: VersionPolicy | None = None
    max_batch_size: int | None = None
    warm_up: WarmUp | None = None
    label_files: Mapping[str, str] = field(default_factory=dict)
    ports: oip.ModelConfig = field(default_factory=oip.ModelConfig)

    def on(self, described: DeviceName) -> DeviceName:
        """The device to load onto.

        Args:
            described: the device in the repository's description.

        Raises:
            InvalidArgument: the configuration's device is not a device name.
        """
        text = self.device or str(described)
        if self.batch and not text.startswith("BATCH:"):
            inner = f"[{text}]" if ":" in text else text
            text = f"BATCH:{inner}({self.batch})"
        return DeviceName.parse(text, field=_FIELD)


def read_override(text: str, name: str) -> Override:
    """
    Args:
        text: a ModelConfig as JSON.
        name: the name of the model to load.

    Raises:
        InvalidArgument: the text is not a ModelConfig, or a value is invalid.
        Unimplemented: the text sets a field that has no meaning here.
    """
    facts, config = _parse(text)
    _check_honoured(config)
    if config.name not in ("", name):
        raise _bad("name", f"is {config.name[:200]!r}, but {name!r} is loaded")
    if config.platform not in _PLATFORMS:
        raise _bad("platform", f"is {config.platform[:100]!r}; headrace runs ONNX models")
    if config.backend not in _BACKENDS:
        raise _bad("backend", f"is {config.backend[:100]!r}; headrace runs ONNX models")
    if config.default_model_filename not in ("", MODEL_FILE):
        raise _bad("default_model_filename", f"is not {MODEL_FILE}")
    if config.max_batch_size < 0:
        raise _bad("max_batch_size", f"is {config.max_batch_size}; give 0 or more")
    keys = {key: parameter.string_value for key, parameter in config.parameters.items()}
    device = keys.pop("DEVICE", None) or _device(config, facts)
    for group in config.instance_group:
        if group.count:
            keys.setdefault("NUM_STREAMS", str(group.count))
    if config.HasField("sequence_batching"):
        batched = config.max_batch_size > 0
        keys = _states(config.sequence_batching, batched=batched) | keys  # STATES says more
    if config.HasField("dynamic_batching"):
        keys |= _batching(config)
    return Override(
        device=device,
        batch=_batch(config),
        config=keys,
        policy=_policy(config),
        max_batch_size=config.max_batch_size if "max_batch_size" in _names(facts) else None,
        warm_up=_warm_up(config),
        label_files={
            each.name: each.label_filename for each in config.output if each.label_filename
        },
        ports=_ports(config),
    )


def _parse(text: str) -> tuple[dict[str, Any], oip.ModelConfig]:
    if len(text) > MAX_BYTES:
        raise InvalidArgument(
            f"the configuration has more than {MAX_BYTES} characters", field=_FIELD
        )
    try:
        facts = json.loads(text)
        if not isinstance(facts, dict):
            raise InvalidArgument("the configuration is not a JSON object", field=_FIELD)
        return facts, json_format.ParseDict(facts, oip.ModelConfig())
    except (json_format.Error, ValueError, RecursionError) as error:
        said = (
            "it nests too deeply"
            if isinstance(error, RecursionError)
            else str(error).partition("\n")[0][:300]
        )
        raise InvalidArgument(
            f"the configuration is not a ModelConfig as JSON: {said}", field=_FIELD
        ) from None


def _names(facts: Mapping[str, Any]) -> set[str]:
    """The names of the fields that the JSON sets. JSON may write a name in either of two ways."""
    return {"max_batch_size" if name == "maxBatchSize" else name for name in facts}


def _check_honoured(message: Any, path: str = "") -> None:
    kind = message.DESCRIPTOR.full_name.removeprefix("inference.")
    honoured = _HONOURED.get(kind) or _HONOURED.get(message.DESCRIPTOR.name)
    for each, value in message.ListFields():
        where = f"{path}{each.name}"
        if honoured is not None and each.name not in honoured and not _is_empty(value):
            raise Unimplemented(
                f"the configuration's {where} has no meaning here; leave it out", field=_FIELD
            )
        if each.message_type is None:
            continue
        if each.message_type.GetOptions().map_entry:
            if each.message_type.fields_by_name["value"].message_type is not None:
                for inner in value.values():
                    _check_honoured(inner, f"{where}.")
        elif each.is_repeated:
            for inner in value:
                _check_honoured(inner, f"{where}.")
        else:
            _check_honoured(value, f"{where}.")


def _is_empty(value: Any) -> bool:
    """Whether a message is present but sets no field, so that it asks for nothing."""
    return hasattr(value, "ListFields") and not value.ListFields()


def _device(config: oip.ModelConfig, facts: Mapping[str, Any]) -> str | None:
    openvino = _OPENVINO.upper() if config.backend == _OPENVINO else None
    groups = facts.get("instance_group") or facts.get("instanceGroup") or []
    if len(config.instance_group) > 1:
        raise _bad("instance_group", "has several groups; give one, or parameters.DEVICE")
    for group, said in zip(config.instance_group, groups, strict=True):
        if group.count < 0:
            raise _bad("instance_group.count", f"is {group.count}; give 1 or more")
        if "kind" not in said or group.kind == _GROUP.KIND_MODEL:
            continue
        device = _DEVICES[group.kind]
        if group.gpus:
            if group.kind != _GROUP.KIND_GPU:
                raise _bad("instance_group.gpus", "is for KIND_GPU")
            ids = ",".join(f"{device}.{number}" for number in group.gpus)
            return ids if len(group.gpus) == 1 else f"MULTI:{ids}"
        return openvino if openvino and group.kind == _GROUP.KIND_CPU else device
    return openvino


def _ports(config: oip.ModelConfig) -> oip.ModelConfig:
    ports = oip.ModelConfig(input=config.input, output=config.output)
    for state in config.sequence_batching.state:
        ports.input.add(name=state.input_name, data_type=state.data_type, dims=state.dims)
        for said in state.initial_state:
            ports.input.add(name=state.input_name, data_type=said.data_type, dims=said.dims)
        ports.output.add(name=state.output_name, data_type=state.data_type, dims=state.dims)
    for warm_up in config.model_warmup:
        for name, each in warm_up.inputs.items():
            ports.input.add(name=name, data_type=each.data_type)
    return ports


def _policy(config: oip.ModelConfig) -> VersionPolicy | None:
    if config.version_policy.WhichOneof("policy_choice") is None:
        return None
    said = json_format.MessageToDict(config.version_policy, preserving_proto_field_name=True)
    return parse_policy(said, f"{_FIELD}.version_policy")


def _states(batching: oip.ModelSequenceBatching, *, batched: bool) -> dict[str, str]:
    keys = {}
    for state in batching.state:
        for initial in state.initial_state:
            if not initial.zero_data:
                raise _bad(
                    "sequence_batching.state.initial_state", "states begin with zeros: zero_data"
                )
    if batching.state:
        keys["STATES"] = written([_state(each, batched=batched) for each in batching.state])
    if batching.max_sequence_idle_microseconds:
        keys["SEQUENCE_IDLE_TIMEOUT"] = f"{batching.max_sequence_idle_microseconds / 1e6:g}"
    return keys


def _state(state: oip.ModelSequenceBatching.State, *, batched: bool) -> Declaration:
    """An initial state has the sizes that the state itself leaves open. A batch is in neither."""
    dims = [*state.dims]
    for initial in state.initial_state[:1]:
        if len(initial.dims) == len(dims):
            pairs = zip(dims, initial.dims, strict=True)
            dims = [first if size == -1 else size for size, first in pairs]
    if any(size < -1 for size in dims):
        raise _bad("sequence_batching.state.dims", f"is {dims}; give -1 or more")
    sizes = [None] * batched + [None if size == -1 else size for size in dims]
    shape = tuple(sizes) if state.dims else None
    return Declaration(state.input_name, state.output_name, shape)


def _batching(config: oip.ModelConfig) -> dict[str, str]:
    if config.max_batch_size < 1:
        raise _bad("dynamic_batching", "needs max_batch_size")
    delay = config.dynamic_batching.max_queue_delay_microseconds
    return {"AUTO_BATCH_TIMEOUT": str(math.ceil(delay / 1000))} if delay else {}


def _batch(config: oip.ModelConfig) -> int:
    if not config.HasField("dynamic_batching"):
        return 0
    most: int = config.max_batch_size
    preferred = config.dynamic_batching.preferred_batch_size
    if any(not 1 <= each <= most for each in preferred):
        raise _bad("dynamic_batching.preferred_batch_size", f"has to be from 1 to {most}")
    return max(preferred, default=most)


def _warm_up(config: oip.ModelConfig) -> WarmUp | None:
    if not config.model_warmup:
        return None
    if len(config.model_warmup) > 1:
        raise _bad("model_warmup", "has several entries; give one")
    (said,) = config.model_warmup
    shapes = {}
    for name, each in said.inputs.items():
        if not each.zero_data:
            raise _bad("model_warmup.inputs", "only zero_data is possible")
        rows = (max(said.batch_size, 1),) if config.max_batch_size else ()
        shapes[name] = (*rows, *each.dims)
    return WarmUp(count=max(said.count, 1), shapes=shapes)


def _bad(name: str, message: str) -> InvalidArgument:
    return InvalidArgument(f"the configuration's {name} {message}", field=_FIELD)
