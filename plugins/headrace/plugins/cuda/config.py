"""The device's configuration, and the providers' options that follow from it."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from headrace.plugins.cpu.backend.custom_ops import CUSTOM_OPS_LIBRARIES, libraries
from headrace.plugins.cpu.backend.session import Provider
from headrace.plugins.cuda.backend.machine import PROVIDER, TENSORRT
from headrace.runtime.config.key import Key
from headrace.runtime.config.schema import ConfigSchema, Configuration
from headrace.runtime.config.standard_keys import (
    INFERENCE_PRECISION_HINT,
    NUM_STREAMS,
    PERFORMANCE_HINT,
    PERFORMANCE_HINT_NUM_REQUESTS,
    STANDARD_KEYS,
)

EXECUTION_PROVIDER: Final = Key(
    "EXECUTION_PROVIDER",
    str,
    "CUDA",
    "The provider of ONNX Runtime. TENSORRT compiles longer, and leaves to CUDA what it does not "
    "support.",
    choices=("CUDA", "TENSORRT"),
)
CUDA_GRAPH: Final = Key(
    "CUDA_GRAPH",
    bool,
    False,
    "Whether a run is recorded once and then repeated: for small networks with fixed shapes. Each "
    "stream has weights of its own. If NUM_STREAMS is AUTO, there is one stream.",
)
TF32: Final = Key(
    "TF32",
    bool,
    False,
    "Whether float32 layers may round factors to 10 bits of mantissa, which is several times "
    "faster on tensor cores.",
)
GPU_MEMORY_LIMIT: Final = Key(
    "GPU_MEMORY_LIMIT",
    int,
    0,
    "Memory that a network may take on the GPU for weights and work. 0: no limit.",
    unit="bytes",
    minimum=0,
    maximum=2**63 - 1,
)

SCHEMA: Final = ConfigSchema(
    *STANDARD_KEYS,
    replace(INFERENCE_PRECISION_HINT, choices=("f32", "f16", "")),
    EXECUTION_PROVIDER,
    CUDA_GRAPH,
    TF32,
    GPU_MEMORY_LIMIT,
    CUSTOM_OPS_LIBRARIES,
)

_USUAL_STREAMS: Final = 2  # one copies while the other computes
MOST_STREAMS: Final = 32


def cuda(config: Configuration, device_id: str, *, graph: bool = False) -> Provider:
    """The CUDA provider on one GPU.

    Args:
        graph: whether runs are recorded and repeated.
    """
    options = {"device_id": device_id, "use_tf32": "1" if config[TF32] else "0"}
    if config[GPU_MEMORY_LIMIT]:
        # By default the arena doubles what is asked for. It would hit the limit with half of the
        # memory unused.
        options["gpu_mem_limit"] = str(config[GPU_MEMORY_LIMIT])
        options["arena_extend_strategy"] = "kSameAsRequested"
    if graph:
        options["enable_cuda_graph"] = "1"
    return Provider(PROVIDER, MappingProxyType(options), libraries=libraries(config))


def provider(config: Configuration, device_id: str) -> Provider:
    """The provider that the configuration asks for."""
    behind = cuda(config, device_id)
    if config[EXECUTION_PROVIDER] == "CUDA":
        return behind
    # The binding parses this provider's options by itself. For a flag it accepts only "True" and
    # "False".
    half = str(config[INFERENCE_PRECISION_HINT] == "f16")
    options = {"device_id": device_id, "trt_fp16_enable": half}
    return Provider(TENSORRT, MappingProxyType(options), (behind,), libraries(config))


def auto_streams(config: Configuration) -> int:
    """The number of streams if NUM_STREAMS is AUTO. For latency it is one. Otherwise one stream can
    copy while another computes, but there are no more than the client keeps in flight."""
    if config.get(PERFORMANCE_HINT) == "LATENCY":
        return 1
    requests = config.get(PERFORMANCE_HINT_NUM_REQUESTS)
    return min(requests, _USUAL_STREAMS) if requests else _USUAL_STREAMS


def streams(config: Configuration) -> int:
    """How many requests of a network with this configuration run at once, if the device allows it.
    For a recorded network, AUTO is one: if a second stream allocates memory while the first one
    records, CUDA fails both the allocation and the recording."""
    return config.get(NUM_STREAMS) or (1 if config[CUDA_GRAPH] else auto_streams(config))
