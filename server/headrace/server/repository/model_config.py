"""Reads Triton's ModelConfig: a ``config.pbtxt`` of the model repository, or the JSON that a client
sends with a load. Both are one message, and mean the same.

protobuf's own parsers read both forms. A field that has no meaning here is refused by name, unless
it has its default value. Whoever sets such a field would not get what it asks for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from google.protobuf import json_format, text_format

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.errors import HeadraceError, InvalidArgument, Unimplemented
from headrace.runtime.pipelines.description import DEVICE, PipelineDescription
from headrace.runtime.responses.keys import RESPONSE_CACHE
from headrace.runtime.sequences.keys import Declaration, written
from headrace.runtime.transform.options import (
    InputOptions,
    LoadRequest,
    NetworkOptions,
    OutputOptions,
)
from headrace.runtime.transform.warm_up import WarmUp
from headrace.server.repository.ensembles import PLATFORM as ENSEMBLE
from headrace.server.repository.ensembles import read_ensemble
from headrace.server.repository.named_files import file_inside
from headrace.server.repository.policy import VersionPolicy, parse_policy

FILE: Final = "config.pbtxt"
MODEL: Final = "model.onnx"
PLATFORM: Final = "onnx"
BACKEND: Final = "headrace"
MAX_BYTES: Final = 1 << 20

_JSON: Final = "parameters['config']"
_PLATFORMS: Final = ("", PLATFORM, "onnxruntime_onnx", ENSEMBLE)
_OPENVINO: Final = "openvino"
_BACKENDS: Final = ("", BACKEND, "onnx", "onnxruntime", _OPENVINO)
_GROUP = oip.ModelInstanceGroup
_DEVICES: Final = {_GROUP.KIND_AUTO: "AUTO", _GROUP.KIND_CPU: "CPU", _GROUP.KIND_GPU: "CUDA"}
_KEYS: Final = {"intra_op_thread_count": "INFERENCE_NUM_THREADS"}
"""Parameters of Triton's backends that have another name here."""
_WARM_UPS: Final = "warmup"
"""The folder of a network that has the files of its warm-ups, as Triton has it."""
PRIORITIES: Final = 21
"""The priorities of a request go from 1, the first, to this one."""
MIDDLE_PRIORITY: Final = 11
"""The priority of a request that brings none, unless its model says another."""
_MAX_RUNS: Final = 1000

_OF_ALL: Final = frozenset(
    (
        "name",
        "platform",
        "backend",
        "version_policy",
        "max_batch_size",
        "input",
        "output",
        "parameters",
        "model_transaction_policy",
        "model_warmup",
        "response_cache",
    )
)
_OF_ENSEMBLE: Final = _OF_ALL | {"ensemble_scheduling"}
_OF_MODEL: Final = _OF_ALL | {
    "instance_group",
    "sequence_batching",
    "dynamic_batching",
    "default_model_filename",
    "optimization",
}
# The supported fields of messages that also have unsupported fields.
_HONOURED: Final[Mapping[str, frozenset[str]]] = {
    "ModelInput": frozenset(("name", "data_type", "format", "dims", "reshape", "optional")),
    "ModelOutput": frozenset(("name", "data_type", "dims", "reshape", "label_filename")),
    "ModelInstanceGroup": frozenset(("name", "kind", "count", "gpus")),
    "ModelSequenceBatching": frozenset(
        ("direct", "oldest", "state", "max_sequence_idle_microseconds")
    ),
    "StrategyDirect": frozenset(),
    "StrategyOldest": frozenset(("max_candidate_sequences",)),
    "State": frozenset(("input_name", "output_name", "data_type", "dims", "initial_state")),
    "InitialState": frozenset(("name", "data_type", "dims", "zero_data")),
    "ModelDynamicBatching": frozenset(
        (
            "preferred_batch_size",
            "max_queue_delay_microseconds",
            "priority_levels",
            "default_priority_level",
        )
    ),
    "ModelOptimizationPolicy": frozenset(("execution_accelerators",)),
    "ExecutionAccelerators": frozenset(("cpu_execution_accelerator",)),
    "Accelerator": frozenset(("name",)),
    "ModelTransactionPolicy": frozenset(),
    "Step": frozenset(("model_name", "model_version", "input_map", "output_map")),
}


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What a ModelConfig says about a load.

    Attributes:
        device: the device, or None if the configuration does not set it.
        batch: the most rows of a batch that requests are joined to. 0 changes nothing.
        priority: the priority of requests that bring none.
        label_files: the files of labels, by output.
        options: the shapes that clients see.
        ports: the inputs and outputs in the configuration, states included, to compare with the
            model's.
        model_file: the file of a version that has the model.
        pipeline: what an ensemble does; None for a model.
        place: where the configuration stands, for errors.
    """

    device: str | None = None
    batch: int = 0
    config: Mapping[str, str] = field(default_factory=dict)
    policy: VersionPolicy | None = None
    max_batch_size: int | None = None
    priority: int = 0
    warm_ups: tuple[WarmUp, ...] = ()
    label_files: Mapping[str, str] = field(default_factory=dict)
    options: NetworkOptions = field(default_factory=NetworkOptions)
    ports: oip.ModelConfig = field(default_factory=oip.ModelConfig)
    model_file: str = MODEL
    pipeline: PipelineDescription | None = None
    place: str = FILE

    def on(self, described: str) -> DeviceName:
        """The device to load onto.

        Args:
            described: the device if the configuration sets none.

        Raises:
            InvalidArgument: the configuration's device is not a device name.
        """
        text = self.device or described
        if self.batch and not text.startswith("BATCH:"):
            inner = f"[{text}]" if ":" in text else text
            text = f"BATCH:{inner}({self.batch})"
        return DeviceName.parse(text, field=self.place)

    def applied(self, request: LoadRequest, labels: Mapping[str, tuple[str, ...]]) -> LoadRequest:
        """The request with what the configuration sets.

        Args:
            labels: those of the files that the configuration names, by output.

        Raises:
            InvalidArgument: as `on`.
        """
        presentation, options = request.presentation, request.options
        rows = self.max_batch_size
        return replace(
            request,
            device=self.on(str(request.device)),
            config={**request.config, **self.config},
            options=replace(
                options,
                inputs={**options.inputs, **self.options.inputs},
                outputs={**options.outputs, **self.options.outputs},
            ),
            presentation=replace(
                presentation,
                max_batch_size=presentation.max_batch_size if rows is None else rows,
                labels={**presentation.labels, **labels},
                version_policy={} if self.policy is None else self.policy.told(),
                priority=self.priority or presentation.priority,
            ),
            warm_ups=self.warm_ups or request.warm_ups,
        )


def read_json(text: str, name: str) -> ModelSettings:
    """
    Args:
        text: a ModelConfig as JSON.
        name: the name of the model to load.

    Raises:
        InvalidArgument: the text is not a ModelConfig, or a value is invalid.
        Unimplemented: the text sets a field that has no meaning here.
    """
    with config_at(_JSON):
        if len(text) > MAX_BYTES:
            raise InvalidArgument(f"the configuration has more than {MAX_BYTES} characters")
        try:
            facts = json.loads(text)
            if not isinstance(facts, dict):
                raise InvalidArgument("the configuration is not a JSON object")
            config = json_format.ParseDict(facts, oip.ModelConfig())
        except (json_format.Error, ValueError, RecursionError) as error:
            raise _no_config(error, "JSON") from None
        if config.default_model_filename not in ("", MODEL):
            raise _bad("default_model_filename", f"is not {MODEL}")
        return replace(_settings(config, facts, name, None), place=_JSON)


def read_text(text: bytes, name: str, folder: Path) -> ModelSettings:
    """
    Args:
        text: a ModelConfig in protobuf's text form.
        name: the name of the network.
        folder: the network's, which has the files that the configuration names.

    Raises:
        InvalidArgument: the text is not a ModelConfig, or a value is invalid.
        Unimplemented: the text sets a field that has no meaning here.
    """
    with config_at(FILE):
        config = oip.ModelConfig()
        try:
            text_format.Parse(text, config)
        except (text_format.ParseError, UnicodeDecodeError, RecursionError) as error:
            raise _no_config(error, "text") from None
        # Text cannot tell a default value from none, so that neither says anything.
        facts = json_format.MessageToDict(config, preserving_proto_field_name=True)
        return _settings(config, facts, name, folder)


# -- inside --


@contextmanager
def config_at(place: str) -> Iterator[None]:
    """Says in what is raised where the configuration stands."""
    try:
        yield
    except HeadraceError as error:
        error.field = error.field or place
        raise


def _no_config(error: Exception, form: str) -> InvalidArgument:
    deep = isinstance(error, RecursionError)
    said = "it nests too deeply" if deep else str(error).partition("\n")[0][:300]
    return InvalidArgument(f"the configuration is not a ModelConfig as {form}: {said}")


def _settings(
    config: oip.ModelConfig, facts: Mapping[str, Any], name: str, folder: Path | None
) -> ModelSettings:
    """
    Args:
        facts: which fields are set, by name.
        folder: the network's; None if there is none.
    """
    ensemble = config.platform == ENSEMBLE or bool(config.ensemble_scheduling.step)
    _check_honoured(config, _OF_ENSEMBLE if ensemble else _OF_MODEL)
    if config.name not in ("", name):
        raise _bad("name", f"is {config.name[:200]!r}, but {name!r} is loaded")
    if config.platform not in _PLATFORMS:
        raise _bad("platform", f"is {config.platform[:100]!r}; headrace runs ONNX models")
    if config.backend not in _BACKENDS:
        raise _bad("backend", f"is {config.backend[:100]!r}; headrace runs ONNX models")
    if config.max_batch_size < 0:
        raise _bad("max_batch_size", f"is {config.max_batch_size}; give 0 or more")
    keys = {
        _KEYS.get(key, key): parameter.string_value for key, parameter in config.parameters.items()
    }
    device = keys.pop("DEVICE", None) or (DEVICE if ensemble else _device(config, facts))
    for group in config.instance_group:
        if group.count:
            keys.setdefault("NUM_STREAMS", str(group.count))
    if config.HasField("sequence_batching"):
        batched = config.max_batch_size > 0
        keys = _states(config.sequence_batching, batched=batched) | keys  # STATES says more
        if "STATES" not in keys:
            raise _bad("sequence_batching", "has no state; the server keeps nothing else")
    if config.HasField("dynamic_batching"):
        keys |= _batching(config)
    if config.response_cache.enable:
        keys = {RESPONSE_CACHE.name: "YES"} | keys
    return ModelSettings(
        device=device,
        batch=_batch(config),
        config=keys,
        policy=_policy(config),
        max_batch_size=config.max_batch_size if "max_batch_size" in _names(facts) else None,
        priority=_priority(config.dynamic_batching),
        warm_ups=tuple(
            _warm_up(each, folder, batched=config.max_batch_size > 0)
            for each in config.model_warmup
        ),
        label_files={
            each.name: each.label_filename for each in config.output if each.label_filename
        },
        options=_options(config),
        ports=_ports(config),
        model_file=config.default_model_filename or MODEL,
        pipeline=read_ensemble(config, _JSON if folder is None else FILE) if ensemble else None,
    )


def _names(facts: Mapping[str, Any]) -> set[str]:
    """The names of the fields that the JSON sets. JSON may write a name in either of two ways."""
    return {"max_batch_size" if name == "maxBatchSize" else name for name in facts}


def _check_honoured(message: Any, honoured: frozenset[str] | None, path: str = "") -> None:
    """Checks that a message sets no field but those that are `honoured`; None means all."""
    for each, value in message.ListFields():
        where = f"{path}{each.name}"
        if honoured is not None and each.name not in honoured and not _is_empty(value):
            raise Unimplemented(f"the configuration's {where} has no meaning here; leave it out")
        if each.message_type is None:
            continue
        if each.message_type.GetOptions().map_entry:
            if each.message_type.fields_by_name["value"].message_type is None:
                continue
            value = value.values()
        for inner in value if each.is_repeated else (value,):
            _check_honoured(inner, _honoured_in(inner), f"{where}.")


def _honoured_in(message: Any) -> frozenset[str] | None:
    kind: str = message.DESCRIPTOR.full_name.removeprefix("inference.")
    return _HONOURED.get(kind, _HONOURED.get(message.DESCRIPTOR.name))


def _is_empty(value: Any) -> bool:
    """Whether a message is present but sets no field, so that it asks for nothing."""
    return hasattr(value, "ListFields") and not value.ListFields()


def _device(config: oip.ModelConfig, facts: Mapping[str, Any]) -> str | None:
    accelerators = config.optimization.execution_accelerators.cpu_execution_accelerator
    for each in accelerators:
        if each.name != _OPENVINO:
            raise _bad(
                "optimization.execution_accelerators.cpu_execution_accelerator",
                f"is {each.name[:100]!r}; headrace has {_OPENVINO!r}",
            )
    openvino = _OPENVINO.upper() if config.backend == _OPENVINO or accelerators else None
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
    """The ports as the model has them: those of a `reshape` have its shape."""
    ports = oip.ModelConfig(input=config.input, output=config.output)
    said: Any
    for said in (*ports.input, *ports.output):
        if said.HasField("reshape"):
            said.dims[:] = said.reshape.shape
    for state in config.sequence_batching.state:
        ports.input.add(name=state.input_name, data_type=state.data_type, dims=state.dims)
        for each in state.initial_state:
            ports.input.add(name=state.input_name, data_type=each.data_type, dims=each.dims)
        ports.output.add(name=state.output_name, data_type=state.data_type, dims=state.dims)
    for warm_up in config.model_warmup:
        for name, made in warm_up.inputs.items():
            ports.input.add(name=name, data_type=made.data_type)
    return ports


def _options(config: oip.ModelConfig) -> NetworkOptions:
    """The shapes that clients see of ports with a `reshape`."""
    rows = (None,) if config.max_batch_size > 0 else ()
    shapes = {}
    for kind, ports in (("input", config.input), ("output", config.output)):
        shapes[kind] = {
            port.name: (*rows, *(None if size == -1 else size for size in port.dims))
            for port in ports
            if port.HasField("reshape")
        }
        for port in ports:
            if any(size < -1 for size in (*port.dims, *port.reshape.shape)):
                raise _bad(f"{kind}.dims", f"of {port.name[:200]!r} has a size below -1")
    return NetworkOptions(
        {name: InputOptions(shape=shape) for name, shape in shapes["input"].items()},
        {name: OutputOptions(shape=shape) for name, shape in shapes["output"].items()},
    )


def _policy(config: oip.ModelConfig) -> VersionPolicy | None:
    if config.version_policy.WhichOneof("policy_choice") is None:
        return None
    said = json_format.MessageToDict(config.version_policy, preserving_proto_field_name=True)
    return parse_policy(said, "version_policy")


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


def _priority(batching: oip.ModelDynamicBatching) -> int:
    """The priority of a request that brings none. Higher goes first."""
    levels, level = batching.priority_levels, batching.default_priority_level
    if not levels and not level:
        return 0
    if not 1 <= level <= levels <= PRIORITIES:
        raise _bad(
            "dynamic_batching.default_priority_level",
            f"is {level} of {levels} priority_levels; give 1 to at most {PRIORITIES} levels",
        )
    return MIDDLE_PRIORITY - int(level)


def _warm_up(said: oip.ModelWarmup, folder: Path | None, *, batched: bool) -> WarmUp:
    shapes, random, raw, stamp = {}, set(), {}, []
    rows = (max(said.batch_size, 1),) if batched else ()
    for name, each in sorted(said.inputs.items()):
        shapes[name] = (*rows, *each.dims)
        if any(size < 0 for size in each.dims):
            raise _bad("model_warmup.inputs.dims", f"of {name[:200]!r} has a size below 0")
        match each.WhichOneof("input_data_type"):
            case "random_data":
                random.add(name)
            case "input_data_file" if folder is not None:
                where = "model_warmup.inputs.input_data_file"
                file = f"{_WARM_UPS}/{each.input_data_file}"
                raw[name] = file_inside(folder, file, where, FILE)
                facts = raw[name].stat()
                stamp += [facts.st_size, facts.st_mtime_ns, facts.st_ino]
            case "input_data_file":
                raise _bad("model_warmup.inputs", "has input_data_file, and no file comes with it")
    count = max(said.count, 1)
    if count > _MAX_RUNS:
        raise _bad("model_warmup.count", f"is {count}; give at most {_MAX_RUNS}")
    return WarmUp(count, shapes, frozenset(random), raw, stamp=tuple(stamp))


def _bad(name: str, message: str) -> InvalidArgument:
    return InvalidArgument(f"the configuration's {name} {message}")
