"""ONNX Runtime's options: they are taken, and the server decides what they would."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from headrace.client.onnxruntime.refusals import refusing

_OPERATORS = "the server has custom operators; see docs/use/custom-operators.md"
_WEIGHTS = "put the weights into the model, or beside it as external data"


class GraphOptimizationLevel(IntEnum):
    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class _Entries:
    """Keys and values that nobody here reads."""

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}

    def _set(self, key: str, value: str) -> None:
        self._entries[key] = value

    def _get(self, key: str) -> str:
        try:
            return self._entries[key]
        except KeyError:
            raise RuntimeError(f"there is no entry {key!r}") from None


class SessionOptions(_Entries):
    """Options of a session. A server knows better how many threads it has, and how it logs and
    optimises, so it does not get them."""

    def __init__(self) -> None:
        super().__init__()
        self.enable_cpu_mem_arena = True
        self.enable_mem_pattern = True
        self.enable_mem_reuse = True
        self.enable_profiling = False
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.execution_order = ExecutionOrder.DEFAULT
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.inter_op_num_threads = 0
        self.intra_op_num_threads = 0
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.optimized_model_filepath = ""
        self.profile_file_prefix = "onnxruntime_profile_"
        self.use_deterministic_compute = False
        self.use_per_session_threads = True

    add_session_config_entry = _Entries._set
    get_session_config_entry = _Entries._get

    def add_provider(self, provider: str, options: Any) -> None:
        """Does nothing: `InferenceSession` chooses the server's device."""

    def has_providers(self) -> bool:
        return False

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Does nothing: a network runs with the sizes of its inputs."""

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Does nothing: a network runs with the sizes of its inputs."""

    register_custom_ops_library = refusing("register_custom_ops_library", _OPERATORS)
    add_initializer = refusing("add_initializer", _WEIGHTS)
    add_external_initializers = refusing("add_external_initializers", _WEIGHTS)
    add_external_initializers_from_files_in_memory = refusing(
        "add_external_initializers_from_files_in_memory", _WEIGHTS
    )


class RunOptions(_Entries):
    """Options of a run. `terminate`, set before the run, is the one that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False
        self.terminate = False

    add_run_config_entry = _Entries._set
    get_run_config_entry = _Entries._get
