from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA_TYPE_UNSPECIFIED: _ClassVar[DataType]
    FLOAT: _ClassVar[DataType]
    UINT8: _ClassVar[DataType]
    INT8: _ClassVar[DataType]
    UINT16: _ClassVar[DataType]
    INT16: _ClassVar[DataType]
    INT32: _ClassVar[DataType]
    INT64: _ClassVar[DataType]
    STRING: _ClassVar[DataType]
    BOOL: _ClassVar[DataType]
    FLOAT16: _ClassVar[DataType]
    DOUBLE: _ClassVar[DataType]
    UINT32: _ClassVar[DataType]
    UINT64: _ClassVar[DataType]
    COMPLEX64: _ClassVar[DataType]
    COMPLEX128: _ClassVar[DataType]
    BFLOAT16: _ClassVar[DataType]
    FLOAT8E4M3FN: _ClassVar[DataType]
    FLOAT8E4M3FNUZ: _ClassVar[DataType]
    FLOAT8E5M2: _ClassVar[DataType]
    FLOAT8E5M2FNUZ: _ClassVar[DataType]
    UINT4: _ClassVar[DataType]
    INT4: _ClassVar[DataType]
    FLOAT4E2M1: _ClassVar[DataType]
    FLOAT8E8M0: _ClassVar[DataType]
    UINT2: _ClassVar[DataType]
    INT2: _ClassVar[DataType]

class ValueKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VALUE_KIND_TENSOR: _ClassVar[ValueKind]
    VALUE_KIND_SEQUENCE: _ClassVar[ValueKind]

class NetworkState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NETWORK_STATE_UNSPECIFIED: _ClassVar[NetworkState]
    LOADING: _ClassVar[NetworkState]
    READY: _ClassVar[NetworkState]
    DRAINING: _ClassVar[NetworkState]
    NETWORK_FAILED: _ClassVar[NetworkState]
    KNOWN: _ClassVar[NetworkState]
    EVICTED: _ClassVar[NetworkState]

class DeviceState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEVICE_STATE_UNSPECIFIED: _ClassVar[DeviceState]
    UP: _ClassVar[DeviceState]
    DOWN: _ClassVar[DeviceState]
    RESTARTING: _ClassVar[DeviceState]
DATA_TYPE_UNSPECIFIED: DataType
FLOAT: DataType
UINT8: DataType
INT8: DataType
UINT16: DataType
INT16: DataType
INT32: DataType
INT64: DataType
STRING: DataType
BOOL: DataType
FLOAT16: DataType
DOUBLE: DataType
UINT32: DataType
UINT64: DataType
COMPLEX64: DataType
COMPLEX128: DataType
BFLOAT16: DataType
FLOAT8E4M3FN: DataType
FLOAT8E4M3FNUZ: DataType
FLOAT8E5M2: DataType
FLOAT8E5M2FNUZ: DataType
UINT4: DataType
INT4: DataType
FLOAT4E2M1: DataType
FLOAT8E8M0: DataType
UINT2: DataType
INT2: DataType
VALUE_KIND_TENSOR: ValueKind
VALUE_KIND_SEQUENCE: ValueKind
NETWORK_STATE_UNSPECIFIED: NetworkState
LOADING: NetworkState
READY: NetworkState
DRAINING: NetworkState
NETWORK_FAILED: NetworkState
KNOWN: NetworkState
EVICTED: NetworkState
DEVICE_STATE_UNSPECIFIED: DeviceState
UP: DeviceState
DOWN: DeviceState
RESTARTING: DeviceState

class SharedMemory(_message.Message):
    __slots__ = ("region", "offset", "bytes")
    REGION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    region: str
    offset: int
    bytes: int
    def __init__(self, region: _Optional[str] = ..., offset: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "data", "strings", "attachment", "shared_memory")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    dtype: DataType
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    strings: _containers.RepeatedScalarFieldContainer[bytes]
    attachment: int
    shared_memory: SharedMemory
    def __init__(self, dtype: _Optional[_Union[DataType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ..., strings: _Optional[_Iterable[bytes]] = ..., attachment: _Optional[int] = ..., shared_memory: _Optional[_Union[SharedMemory, _Mapping]] = ...) -> None: ...

class Sequence(_message.Message):
    __slots__ = ("elements",)
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    elements: _containers.RepeatedCompositeFieldContainer[Value]
    def __init__(self, elements: _Optional[_Iterable[_Union[Value, _Mapping]]] = ...) -> None: ...

class Absent(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Value(_message.Message):
    __slots__ = ("name", "tensor", "sequence", "absent")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    tensor: Tensor
    sequence: Sequence
    absent: Absent
    def __init__(self, name: _Optional[str] = ..., tensor: _Optional[_Union[Tensor, _Mapping]] = ..., sequence: _Optional[_Union[Sequence, _Mapping]] = ..., absent: _Optional[_Union[Absent, _Mapping]] = ...) -> None: ...

class UploadModelRequest(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    def __init__(self, chunk: _Optional[bytes] = ...) -> None: ...

class UploadModelReply(_message.Message):
    __slots__ = ("digest", "size_bytes")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    digest: str
    size_bytes: int
    def __init__(self, digest: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class ModelSource(_message.Message):
    __slots__ = ("data", "digest", "repository", "pipeline")
    DATA_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    REPOSITORY_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    digest: str
    repository: str
    pipeline: Pipeline
    def __init__(self, data: _Optional[bytes] = ..., digest: _Optional[str] = ..., repository: _Optional[str] = ..., pipeline: _Optional[_Union[Pipeline, _Mapping]] = ...) -> None: ...

class Pipeline(_message.Message):
    __slots__ = ("description", "models")
    class ModelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    description: str
    models: _containers.ScalarMap[str, str]
    def __init__(self, description: _Optional[str] = ..., models: _Optional[_Mapping[str, str]] = ...) -> None: ...

class InputOptions(_message.Message):
    __slots__ = ("dtype", "layout", "network_layout", "resize", "mean", "scale")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    NETWORK_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    RESIZE_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    dtype: DataType
    layout: str
    network_layout: str
    resize: str
    mean: _containers.RepeatedScalarFieldContainer[float]
    scale: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, dtype: _Optional[_Union[DataType, str]] = ..., layout: _Optional[str] = ..., network_layout: _Optional[str] = ..., resize: _Optional[str] = ..., mean: _Optional[_Iterable[float]] = ..., scale: _Optional[_Iterable[float]] = ...) -> None: ...

class OutputOptions(_message.Message):
    __slots__ = ("dtype", "layout", "network_layout")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    NETWORK_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    dtype: DataType
    layout: str
    network_layout: str
    def __init__(self, dtype: _Optional[_Union[DataType, str]] = ..., layout: _Optional[str] = ..., network_layout: _Optional[str] = ...) -> None: ...

class LoadNetworkRequest(_message.Message):
    __slots__ = ("name", "model", "device", "config", "inputs", "outputs", "affinities", "replace")
    class ConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: InputOptions
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[InputOptions, _Mapping]] = ...) -> None: ...
    class OutputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: OutputOptions
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[OutputOptions, _Mapping]] = ...) -> None: ...
    class AffinitiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    AFFINITIES_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    name: str
    model: ModelSource
    device: str
    config: _containers.ScalarMap[str, str]
    inputs: _containers.MessageMap[str, InputOptions]
    outputs: _containers.MessageMap[str, OutputOptions]
    affinities: _containers.ScalarMap[str, str]
    replace: bool
    def __init__(self, name: _Optional[str] = ..., model: _Optional[_Union[ModelSource, _Mapping]] = ..., device: _Optional[str] = ..., config: _Optional[_Mapping[str, str]] = ..., inputs: _Optional[_Mapping[str, InputOptions]] = ..., outputs: _Optional[_Mapping[str, OutputOptions]] = ..., affinities: _Optional[_Mapping[str, str]] = ..., replace: bool = ...) -> None: ...

class Dimension(_message.Message):
    __slots__ = ("size", "symbol")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SYMBOL_FIELD_NUMBER: _ClassVar[int]
    size: int
    symbol: str
    def __init__(self, size: _Optional[int] = ..., symbol: _Optional[str] = ...) -> None: ...

class PortInfo(_message.Message):
    __slots__ = ("name", "dtype", "has_rank", "shape", "kind", "optional", "layout", "class_names", "class_numbers")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    HAS_RANK_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    OPTIONAL_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAMES_FIELD_NUMBER: _ClassVar[int]
    CLASS_NUMBERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: DataType
    has_rank: bool
    shape: _containers.RepeatedCompositeFieldContainer[Dimension]
    kind: ValueKind
    optional: bool
    layout: str
    class_names: _containers.RepeatedScalarFieldContainer[str]
    class_numbers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[DataType, str]] = ..., has_rank: bool = ..., shape: _Optional[_Iterable[_Union[Dimension, _Mapping]]] = ..., kind: _Optional[_Union[ValueKind, str]] = ..., optional: bool = ..., layout: _Optional[str] = ..., class_names: _Optional[_Iterable[str]] = ..., class_numbers: _Optional[_Iterable[int]] = ...) -> None: ...

class NetworkInfo(_message.Message):
    __slots__ = ("name", "device", "generation", "state", "reason", "inputs", "outputs", "config", "load_seconds", "from_cache", "notes", "execution_devices", "origin", "version", "states", "replicas", "metadata", "memory_bytes", "idle_seconds")
    class ConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class StatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    LOAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FROM_CACHE_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_DEVICES_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    device: str
    generation: int
    state: NetworkState
    reason: str
    inputs: _containers.RepeatedCompositeFieldContainer[PortInfo]
    outputs: _containers.RepeatedCompositeFieldContainer[PortInfo]
    config: _containers.ScalarMap[str, str]
    load_seconds: float
    from_cache: bool
    notes: _containers.RepeatedScalarFieldContainer[str]
    execution_devices: _containers.RepeatedScalarFieldContainer[str]
    origin: str
    version: str
    states: _containers.ScalarMap[str, str]
    replicas: _containers.RepeatedScalarFieldContainer[str]
    metadata: _containers.ScalarMap[str, str]
    memory_bytes: int
    idle_seconds: float
    def __init__(self, name: _Optional[str] = ..., device: _Optional[str] = ..., generation: _Optional[int] = ..., state: _Optional[_Union[NetworkState, str]] = ..., reason: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[PortInfo, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[PortInfo, _Mapping]]] = ..., config: _Optional[_Mapping[str, str]] = ..., load_seconds: _Optional[float] = ..., from_cache: bool = ..., notes: _Optional[_Iterable[str]] = ..., execution_devices: _Optional[_Iterable[str]] = ..., origin: _Optional[str] = ..., version: _Optional[str] = ..., states: _Optional[_Mapping[str, str]] = ..., replicas: _Optional[_Iterable[str]] = ..., metadata: _Optional[_Mapping[str, str]] = ..., memory_bytes: _Optional[int] = ..., idle_seconds: _Optional[float] = ...) -> None: ...

class UnloadNetworkRequest(_message.Message):
    __slots__ = ("name", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class UnloadNetworkReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListNetworksRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListNetworksReply(_message.Message):
    __slots__ = ("networks",)
    NETWORKS_FIELD_NUMBER: _ClassVar[int]
    networks: _containers.RepeatedCompositeFieldContainer[NetworkInfo]
    def __init__(self, networks: _Optional[_Iterable[_Union[NetworkInfo, _Mapping]]] = ...) -> None: ...

class GetNetworkRequest(_message.Message):
    __slots__ = ("name", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class ExecutableLayer(_message.Message):
    __slots__ = ("name", "op_type", "domain", "device", "inputs", "outputs", "original_layers")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OP_TYPE_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_LAYERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    op_type: str
    domain: str
    device: str
    inputs: _containers.RepeatedScalarFieldContainer[str]
    outputs: _containers.RepeatedScalarFieldContainer[str]
    original_layers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., op_type: _Optional[str] = ..., domain: _Optional[str] = ..., device: _Optional[str] = ..., inputs: _Optional[_Iterable[str]] = ..., outputs: _Optional[_Iterable[str]] = ..., original_layers: _Optional[_Iterable[str]] = ...) -> None: ...

class LayerProfile(_message.Message):
    __slots__ = ("layer", "op_type", "device", "execution_type", "seconds", "original_layers", "subgraph")
    LAYER_FIELD_NUMBER: _ClassVar[int]
    OP_TYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_TYPE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_LAYERS_FIELD_NUMBER: _ClassVar[int]
    SUBGRAPH_FIELD_NUMBER: _ClassVar[int]
    layer: str
    op_type: str
    device: str
    execution_type: str
    seconds: float
    original_layers: _containers.RepeatedScalarFieldContainer[str]
    subgraph: int
    def __init__(self, layer: _Optional[str] = ..., op_type: _Optional[str] = ..., device: _Optional[str] = ..., execution_type: _Optional[str] = ..., seconds: _Optional[float] = ..., original_layers: _Optional[_Iterable[str]] = ..., subgraph: _Optional[int] = ...) -> None: ...

class GetNetworkReply(_message.Message):
    __slots__ = ("info", "layers", "performance_counts")
    INFO_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    PERFORMANCE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    info: NetworkInfo
    layers: _containers.RepeatedCompositeFieldContainer[ExecutableLayer]
    performance_counts: _containers.RepeatedCompositeFieldContainer[LayerProfile]
    def __init__(self, info: _Optional[_Union[NetworkInfo, _Mapping]] = ..., layers: _Optional[_Iterable[_Union[ExecutableLayer, _Mapping]]] = ..., performance_counts: _Optional[_Iterable[_Union[LayerProfile, _Mapping]]] = ...) -> None: ...

class QueryNetworkRequest(_message.Message):
    __slots__ = ("model", "device", "config", "inputs", "outputs", "affinities", "graph")
    class ConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: InputOptions
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[InputOptions, _Mapping]] = ...) -> None: ...
    class OutputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: OutputOptions
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[OutputOptions, _Mapping]] = ...) -> None: ...
    class AffinitiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    AFFINITIES_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    model: ModelSource
    device: str
    config: _containers.ScalarMap[str, str]
    inputs: _containers.MessageMap[str, InputOptions]
    outputs: _containers.MessageMap[str, OutputOptions]
    affinities: _containers.ScalarMap[str, str]
    graph: bool
    def __init__(self, model: _Optional[_Union[ModelSource, _Mapping]] = ..., device: _Optional[str] = ..., config: _Optional[_Mapping[str, str]] = ..., inputs: _Optional[_Mapping[str, InputOptions]] = ..., outputs: _Optional[_Mapping[str, OutputOptions]] = ..., affinities: _Optional[_Mapping[str, str]] = ..., graph: bool = ...) -> None: ...

class UnsupportedLayer(_message.Message):
    __slots__ = ("layer", "op_type", "reason", "device")
    LAYER_FIELD_NUMBER: _ClassVar[int]
    OP_TYPE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    layer: str
    op_type: str
    reason: str
    device: str
    def __init__(self, layer: _Optional[str] = ..., op_type: _Optional[str] = ..., reason: _Optional[str] = ..., device: _Optional[str] = ...) -> None: ...

class Subgraph(_message.Message):
    __slots__ = ("device", "layers", "step")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    device: str
    layers: _containers.RepeatedScalarFieldContainer[str]
    step: str
    def __init__(self, device: _Optional[str] = ..., layers: _Optional[_Iterable[str]] = ..., step: _Optional[str] = ...) -> None: ...

class Graph(_message.Message):
    __slots__ = ("layers", "inputs", "outputs", "tensors")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    layers: _containers.RepeatedCompositeFieldContainer[ExecutableLayer]
    inputs: _containers.RepeatedCompositeFieldContainer[PortInfo]
    outputs: _containers.RepeatedCompositeFieldContainer[PortInfo]
    tensors: _containers.RepeatedCompositeFieldContainer[PortInfo]
    def __init__(self, layers: _Optional[_Iterable[_Union[ExecutableLayer, _Mapping]]] = ..., inputs: _Optional[_Iterable[_Union[PortInfo, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[PortInfo, _Mapping]]] = ..., tensors: _Optional[_Iterable[_Union[PortInfo, _Mapping]]] = ...) -> None: ...

class QueryNetworkReply(_message.Message):
    __slots__ = ("supported_layers", "unsupported", "subgraphs", "graph", "notes")
    class SupportedLayersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SUPPORTED_LAYERS_FIELD_NUMBER: _ClassVar[int]
    UNSUPPORTED_FIELD_NUMBER: _ClassVar[int]
    SUBGRAPHS_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    supported_layers: _containers.ScalarMap[str, str]
    unsupported: _containers.RepeatedCompositeFieldContainer[UnsupportedLayer]
    subgraphs: _containers.RepeatedCompositeFieldContainer[Subgraph]
    graph: Graph
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, supported_layers: _Optional[_Mapping[str, str]] = ..., unsupported: _Optional[_Iterable[_Union[UnsupportedLayer, _Mapping]]] = ..., subgraphs: _Optional[_Iterable[_Union[Subgraph, _Mapping]]] = ..., graph: _Optional[_Union[Graph, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class Session(_message.Message):
    __slots__ = ("id", "start", "end")
    ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    id: str
    start: bool
    end: bool
    def __init__(self, id: _Optional[str] = ..., start: bool = ..., end: bool = ...) -> None: ...

class InferRequest(_message.Message):
    __slots__ = ("network", "id", "inputs", "outputs", "priority", "performance_counts", "timeout_seconds", "version", "session", "output_regions", "traceparent", "tracestate", "attachments")
    class OutputRegionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: SharedMemory
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[SharedMemory, _Mapping]] = ...) -> None: ...
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PERFORMANCE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_REGIONS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENTS_FIELD_NUMBER: _ClassVar[int]
    network: str
    id: str
    inputs: _containers.RepeatedCompositeFieldContainer[Value]
    outputs: _containers.RepeatedScalarFieldContainer[str]
    priority: int
    performance_counts: bool
    timeout_seconds: float
    version: str
    session: Session
    output_regions: _containers.MessageMap[str, SharedMemory]
    traceparent: str
    tracestate: str
    attachments: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, network: _Optional[str] = ..., id: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Value, _Mapping]]] = ..., outputs: _Optional[_Iterable[str]] = ..., priority: _Optional[int] = ..., performance_counts: bool = ..., timeout_seconds: _Optional[float] = ..., version: _Optional[str] = ..., session: _Optional[_Union[Session, _Mapping]] = ..., output_regions: _Optional[_Mapping[str, SharedMemory]] = ..., traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ..., attachments: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queue_seconds", "execution_seconds", "inference_seconds")
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    INFERENCE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    queue_seconds: float
    execution_seconds: float
    inference_seconds: float
    def __init__(self, queue_seconds: _Optional[float] = ..., execution_seconds: _Optional[float] = ..., inference_seconds: _Optional[float] = ...) -> None: ...

class InferReply(_message.Message):
    __slots__ = ("id", "outputs", "timings", "performance_counts", "generation", "version", "in_flight", "attachments")
    ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    PERFORMANCE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    outputs: _containers.RepeatedCompositeFieldContainer[Value]
    timings: Timings
    performance_counts: _containers.RepeatedCompositeFieldContainer[LayerProfile]
    generation: int
    version: str
    in_flight: int
    attachments: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, id: _Optional[str] = ..., outputs: _Optional[_Iterable[_Union[Value, _Mapping]]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., performance_counts: _Optional[_Iterable[_Union[LayerProfile, _Mapping]]] = ..., generation: _Optional[int] = ..., version: _Optional[str] = ..., in_flight: _Optional[int] = ..., attachments: _Optional[_Iterable[bytes]] = ...) -> None: ...

class InferStreamRequest(_message.Message):
    __slots__ = ("requests", "cancel", "ask_limits")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    ASK_LIMITS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[InferRequest]
    cancel: _containers.RepeatedScalarFieldContainer[str]
    ask_limits: bool
    def __init__(self, requests: _Optional[_Iterable[_Union[InferRequest, _Mapping]]] = ..., cancel: _Optional[_Iterable[str]] = ..., ask_limits: bool = ...) -> None: ...

class StreamLimits(_message.Message):
    __slots__ = ("in_flight", "message_bytes")
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    in_flight: int
    message_bytes: int
    def __init__(self, in_flight: _Optional[int] = ..., message_bytes: _Optional[int] = ...) -> None: ...

class InferStreamResult(_message.Message):
    __slots__ = ("id", "reply", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    reply: InferReply
    error: _status_pb2.Status
    def __init__(self, id: _Optional[str] = ..., reply: _Optional[_Union[InferReply, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class InferStreamReply(_message.Message):
    __slots__ = ("results", "limits", "messages_read")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_READ_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[InferStreamResult]
    limits: StreamLimits
    messages_read: int
    def __init__(self, results: _Optional[_Iterable[_Union[InferStreamResult, _Mapping]]] = ..., limits: _Optional[_Union[StreamLimits, _Mapping]] = ..., messages_read: _Optional[int] = ...) -> None: ...

class Target(_message.Message):
    __slots__ = ("device", "network", "version")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    device: str
    network: str
    version: str
    def __init__(self, device: _Optional[str] = ..., network: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class StringList(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, values: _Optional[_Iterable[str]] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("minimum", "maximum", "step")
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    minimum: int
    maximum: int
    step: int
    def __init__(self, minimum: _Optional[int] = ..., maximum: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Parameter(_message.Message):
    __slots__ = ("string_value", "int_value", "float_value", "bool_value", "list_value", "range_value")
    STRING_VALUE_FIELD_NUMBER: _ClassVar[int]
    INT_VALUE_FIELD_NUMBER: _ClassVar[int]
    FLOAT_VALUE_FIELD_NUMBER: _ClassVar[int]
    BOOL_VALUE_FIELD_NUMBER: _ClassVar[int]
    LIST_VALUE_FIELD_NUMBER: _ClassVar[int]
    RANGE_VALUE_FIELD_NUMBER: _ClassVar[int]
    string_value: str
    int_value: int
    float_value: float
    bool_value: bool
    list_value: StringList
    range_value: Range
    def __init__(self, string_value: _Optional[str] = ..., int_value: _Optional[int] = ..., float_value: _Optional[float] = ..., bool_value: bool = ..., list_value: _Optional[_Union[StringList, _Mapping]] = ..., range_value: _Optional[_Union[Range, _Mapping]] = ...) -> None: ...

class GetMetricRequest(_message.Message):
    __slots__ = ("target", "name", "options")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TARGET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    target: Target
    name: str
    options: _containers.ScalarMap[str, str]
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., name: _Optional[str] = ..., options: _Optional[_Mapping[str, str]] = ...) -> None: ...

class GetMetricReply(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: Parameter
    def __init__(self, value: _Optional[_Union[Parameter, _Mapping]] = ...) -> None: ...

class GetConfigRequest(_message.Message):
    __slots__ = ("target", "name", "options")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TARGET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    target: Target
    name: str
    options: _containers.ScalarMap[str, str]
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., name: _Optional[str] = ..., options: _Optional[_Mapping[str, str]] = ...) -> None: ...

class GetConfigReply(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: Parameter
    def __init__(self, value: _Optional[_Union[Parameter, _Mapping]] = ...) -> None: ...

class SetConfigRequest(_message.Message):
    __slots__ = ("target", "config")
    class ConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TARGET_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    target: Target
    config: _containers.ScalarMap[str, str]
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., config: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SetConfigReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ImportOptions(_message.Message):
    __slots__ = ("name", "device", "config", "replace")
    class ConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    name: str
    device: str
    config: _containers.ScalarMap[str, str]
    replace: bool
    def __init__(self, name: _Optional[str] = ..., device: _Optional[str] = ..., config: _Optional[_Mapping[str, str]] = ..., replace: bool = ...) -> None: ...

class ImportNetworkRequest(_message.Message):
    __slots__ = ("options", "chunk")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    options: ImportOptions
    chunk: bytes
    def __init__(self, options: _Optional[_Union[ImportOptions, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class ExportNetworkRequest(_message.Message):
    __slots__ = ("name", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class ExportNetworkReply(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    def __init__(self, chunk: _Optional[bytes] = ...) -> None: ...

class AddExtensionRequest(_message.Message):
    __slots__ = ("device", "functions")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    device: str
    functions: bytes
    def __init__(self, device: _Optional[str] = ..., functions: _Optional[bytes] = ...) -> None: ...

class AddExtensionReply(_message.Message):
    __slots__ = ("operators",)
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    operators: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, operators: _Optional[_Iterable[str]] = ...) -> None: ...

class DeviceInfo(_message.Message):
    __slots__ = ("name", "state", "reason", "full_name", "device_ids", "backend_version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FULL_NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_IDS_FIELD_NUMBER: _ClassVar[int]
    BACKEND_VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: DeviceState
    reason: str
    full_name: str
    device_ids: _containers.RepeatedScalarFieldContainer[str]
    backend_version: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[_Union[DeviceState, str]] = ..., reason: _Optional[str] = ..., full_name: _Optional[str] = ..., device_ids: _Optional[_Iterable[str]] = ..., backend_version: _Optional[str] = ...) -> None: ...

class ListDevicesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListDevicesReply(_message.Message):
    __slots__ = ("devices",)
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedCompositeFieldContainer[DeviceInfo]
    def __init__(self, devices: _Optional[_Iterable[_Union[DeviceInfo, _Mapping]]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ("match",)
    MATCH_FIELD_NUMBER: _ClassVar[int]
    match: str
    def __init__(self, match: _Optional[str] = ...) -> None: ...

class GetStatusReply(_message.Message):
    __slots__ = ("document",)
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    document: bytes
    def __init__(self, document: _Optional[bytes] = ...) -> None: ...

class RepositoryVersion(_message.Message):
    __slots__ = ("name", "version", "state", "reason", "share", "memory_bytes", "idle_seconds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    state: NetworkState
    reason: str
    share: int
    memory_bytes: int
    idle_seconds: float
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., state: _Optional[_Union[NetworkState, str]] = ..., reason: _Optional[str] = ..., share: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., idle_seconds: _Optional[float] = ...) -> None: ...

class ListRepositoryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRepositoryReply(_message.Message):
    __slots__ = ("versions",)
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[RepositoryVersion]
    def __init__(self, versions: _Optional[_Iterable[_Union[RepositoryVersion, _Mapping]]] = ...) -> None: ...

class SetTrafficRequest(_message.Message):
    __slots__ = ("network", "shares")
    class SharesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    network: str
    shares: _containers.ScalarMap[str, int]
    def __init__(self, network: _Optional[str] = ..., shares: _Optional[_Mapping[str, int]] = ...) -> None: ...

class SetTrafficReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetShadowRequest(_message.Message):
    __slots__ = ("network", "version", "device", "percent")
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PERCENT_FIELD_NUMBER: _ClassVar[int]
    network: str
    version: str
    device: str
    percent: int
    def __init__(self, network: _Optional[str] = ..., version: _Optional[str] = ..., device: _Optional[str] = ..., percent: _Optional[int] = ...) -> None: ...

class SetShadowReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RegisterSharedMemoryRequest(_message.Message):
    __slots__ = ("name", "key", "offset", "bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    key: str
    offset: int
    bytes: int
    def __init__(self, name: _Optional[str] = ..., key: _Optional[str] = ..., offset: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class RegisterSharedMemoryReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UnregisterSharedMemoryRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class UnregisterSharedMemoryReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SharedMemoryInfo(_message.Message):
    __slots__ = ("name", "key", "offset", "bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    key: str
    offset: int
    bytes: int
    def __init__(self, name: _Optional[str] = ..., key: _Optional[str] = ..., offset: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class ListSharedMemoryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSharedMemoryReply(_message.Message):
    __slots__ = ("regions",)
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    regions: _containers.RepeatedCompositeFieldContainer[SharedMemoryInfo]
    def __init__(self, regions: _Optional[_Iterable[_Union[SharedMemoryInfo, _Mapping]]] = ...) -> None: ...
