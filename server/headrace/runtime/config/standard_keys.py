"""The configuration keys that every device shares."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any

from headrace.runtime.config.key import Key

_AUTO = MappingProxyType({"AUTO": 0})
_DEVICE_ID = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})?")
_FOLDER = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]{0,127})?")


def _is_device_id(value: str) -> bool:
    return _DEVICE_ID.fullmatch(value) is not None


def _is_folder_name(value: str) -> bool:
    return _FOLDER.fullmatch(value) is not None


DEVICE_ID = Key(
    "DEVICE_ID",
    str,
    "",
    "Which device of the type to use: one of AVAILABLE_DEVICES. Empty: the first.",
    check=_is_device_id,
    form="empty, or letters, digits, '.', '_' and '-', at most 64",
)
PERF_COUNT = Key("PERF_COUNT", bool, False, "Whether the time of each layer is measured.")
PERFORMANCE_HINT = Key(
    "PERFORMANCE_HINT",
    str,
    "",
    "What streams and threads are chosen for where they are AUTO: the latency of one request, or "
    "the throughput of many.",
    choices=("LATENCY", "THROUGHPUT", ""),
    words=MappingProxyType({"UNDEFINED": ""}),
)
PERFORMANCE_HINT_NUM_REQUESTS = Key(
    "PERFORMANCE_HINT_NUM_REQUESTS",
    int,
    0,
    "How many requests the client keeps in flight at most. Bounds the streams under a "
    "PERFORMANCE_HINT. 0: not known.",
    minimum=0,
    maximum=1_000_000,
)
ALLOW_AUTO_BATCHING = Key(
    "ALLOW_AUTO_BATCHING",
    bool,
    True,
    "Whether PERFORMANCE_HINT=THROUGHPUT may join requests to batches, if a measurement at the "
    "load finds that batches are faster.",
)
AUTO_BATCH_TIMEOUT = Key(
    "AUTO_BATCH_TIMEOUT",
    int,
    1000,
    "The longest time that a request waits for others to join while the device is busy.",
    unit="milliseconds",
    minimum=0,
    maximum=1_000_000,
    mutable=True,
)
NUM_STREAMS = Key(
    "NUM_STREAMS",
    int,
    0,
    "Requests that the device runs at the same time. At a load: how many of them the network "
    "may use.",
    minimum=1,
    maximum=1024,
    words=_AUTO,
)
INFERENCE_NUM_THREADS = Key(
    "INFERENCE_NUM_THREADS",
    int,
    0,
    "Threads of all streams together. AUTO: one for each processor that the process may use.",
    minimum=1,
    maximum=4096,
    words=_AUTO,
)
INFERENCE_PRECISION_HINT = Key(
    "INFERENCE_PRECISION_HINT",
    str,
    "",
    "The type that floating-point layers are computed in. Empty: the network's own type.",
    choices=("f32", "bf16", "f16", ""),
    words=MappingProxyType({"UNDEFINED": "", "FP32": "f32", "FP16": "f16"}),
)
CPU_BIND_THREAD = Key(
    "CPU_BIND_THREAD",
    bool,
    False,
    "Whether each stream's thread is bound to a processor. Set it before the first load.",
    scope="device",
)
EXCLUSIVE_ASYNC_REQUESTS = Key(
    "EXCLUSIVE_ASYNC_REQUESTS",
    bool,
    False,
    "Whether requests of all networks with this key run one at a time.",
)
QUEUE_CAPACITY = Key(
    "QUEUE_CAPACITY",
    int,
    1024,
    "Requests that may wait for the device. One more is refused with RESOURCE_EXHAUSTED.",
    minimum=1,
    maximum=1_000_000,
    scope="device",
)
CACHE_DIR = Key(
    "CACHE_DIR",
    str,
    "default",
    "Folder for compiled networks inside the server's --cache-dir. Empty: the network is not "
    "cached and shares no weights. Without --cache-dir no compiled network is cached.",
    check=_is_folder_name,
    form="empty, or a folder's name of letters, digits, '_', '-' and '.' without separators, "
    "at most 128, not starting with '.' or '-'",
)
EXECUTION_TIMEOUT = Key(
    "EXECUTION_TIMEOUT",
    float,
    600.0,
    "The longest time that one run on the device may take. 0: no limit.",
    unit="seconds",
    minimum=0,
    maximum=1_000_000,
    mutable=True,
)
DISABLE_TRANSFORMATIONS = Key(
    "DISABLE_TRANSFORMATIONS",
    bool,
    False,
    "Whether the optional graph transformations are left out.",
)
NONE, PROCESS = "NONE", "PROCESS"
ISOLATION = Key(
    "ISOLATION",
    str,
    NONE,
    "PROCESS: the device has a process of its own, whose crash does not end the server. "
    "Default: PROCESS for OPENCL, OPENVINO and execution providers of libraries, NONE for the "
    "others. CPU runs networks that need a process in one beside the server, unless it is set.",
    choices=(NONE, PROCESS),
    scope="server",
)

STANDARD_KEYS: tuple[Key[Any], ...] = tuple(
    each for each in list(vars().values()) if isinstance(each, Key)
)
"""All of them, in their order here."""
