"""Opens ONNX Runtime sessions from models, bytes and files.

This module uses the binding's own class, not the wrapper around it. The wrapper keeps the
serialised model for the session's whole life, and falls back to another execution provider with a
print. Aligned weights are not serialised: the session reads them where they are in memory. On a
ResNet-50 of 102 MB, best of three, loading takes 0.40 s and a peak of 175 to 190 MB, against 0.85 s
and 218 MB from serialised bytes. A model beyond protobuf's 2 GiB loads the same way.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, Final

import onnx
import onnx_ir as ir
import onnxruntime
from onnxruntime.capi import _pybind_state as binding

from headrace.plugins.cpu.backend import custom_ops, failures, rewritings, tensors
from headrace.plugins.cpu.backend.structure import structure
from headrace.runtime.errors import HeadraceError, Internal, InvalidModel, Unavailable
from headrace.runtime.execution.cancel import CancelToken, current_token
from headrace.runtime.intake.naming import walk
from headrace.runtime.network.constants import const_tensor
from headrace.runtime.network.values import Array
from headrace.runtime.system.interruption import check
from headrace.runtime.system.mapped_files import settle_pages

CPU_PROVIDER = "CPUExecutionProvider"
_FATAL = 4  # ONNX Runtime's log level: failures are raised, and printed nowhere
_MESSAGE_BYTES = 2**30  # half of protobuf's limit
_INLINE_BYTES = 4096  # shape inference and constant folding want small tensors in the model itself
_FOLDED_BYTES: Final = 2**20
"""What a layer may always make of constants while a session opens. Else it runs in each request."""
_ALL_FOLDED_BYTES: Final = 2**30
_UNPACKED: Final = 8
"""How many bytes a layer may make of each byte of a constant: float32 of 4 bits."""


@dataclass(frozen=True, slots=True)
class Provider:
    """An execution provider of ONNX Runtime, and its options.

    Layers that it cannot run go to the providers in `behind`, and last to the CPU provider, unless
    the session is `strict`.

    Attributes:
        libraries: native libraries of custom operators. Their kernels count as the provider's own.
        keeps_int8: multiplies int8 by int8, which otherwise becomes uint8 by int8.
        device: what a library of the operator offers, as ONNX Runtime describes it; None for a
            provider that ONNX Runtime has itself.
        turn: held while ONNX Runtime opens or runs a session with a provider that does so with one
            session at a time; None if it need not be.
    """

    name: str = CPU_PROVIDER
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    behind: tuple[Provider, ...] = ()
    libraries: tuple[str, ...] = ()
    keeps_int8: bool = False
    device: Any = None
    turn: Lock | None = None


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How a session is opened.

    Args:
        threads: the number of threads that one run may use, the calling thread included.
        strict: fail if the provider leaves a layer to another one.
        optimize: rewrite the graph; False for a graph that was rewritten before.
        folded_bytes: the most bytes that a layer may make of constants while the session opens.
        profile_prefix: path prefix of the profile to write when the session ends; none if empty.
        optimized_path: where to write the rewritten graph; nowhere if None.
        weights_name: how the file beside it is called that gets its weights.
        packs: write the weights also as the kernels want them.
        mapped_folder: where a graph of bytes has its file of weights; it has none if None.
    """

    threads: int = 1
    strict: bool = False
    optimize: bool = True
    folded_bytes: int = _FOLDED_BYTES
    profile_prefix: str = ""
    optimized_path: Path | None = None
    weights_name: str = "weights"
    packs: bool = False
    mapped_folder: Path | None = None


class OnnxRuntimeSession:
    """A loaded model. `run`, `run_values` and `run_bound` are the binding's own, and thread-safe.

    ``run(output_names, feed, run_options)`` takes and returns NumPy arrays, lists and None;
    ``run_values(feed, output_names, run_options)`` takes and returns the binding's OrtValues;
    ``run_bound(ports, run_options)`` uses the memory that was bound to `ports`.

    Attributes:
        optimized: ONNX Runtime has rewritten the graph.
        digest: of the file that its weights are mapped from; empty if there is none.
    """

    __slots__ = (
        "__weakref__",
        "_native",
        "_weights",
        "digest",
        "optimized",
        "run",
        "run_bound",
        "run_values",
    )

    def __init__(
        self,
        native: Any,
        weights: Sequence[Array] = (),
        optimized: bool = True,
        turn: Lock | None = None,
    ) -> None:
        self._native = native
        self._weights = weights  # the runtime reads these arrays
        self.optimized = optimized
        self.digest = ""
        self.run = _in_turn(native.run, turn)
        self.run_values = _in_turn(native.run_with_ort_values, turn)
        self.run_bound = _in_turn(native.run_with_iobinding, turn)

    def output_shapes(self) -> list[list[int | str | None]]:
        """The sizes that ONNX Runtime infers; a name or None for a size that it does not know."""
        return [list(each.shape) for each in self._native.outputs_meta]

    def ports(self) -> Any:
        """Ports for `run_bound`. Memory is bound to them; they serve one run at a time."""
        return binding.SessionIOBinding(self._native)

    def shrink(self) -> None:
        """Gives back memory that no tensor uses. That is the end of a run, also of one that
        computes nothing."""
        options = run_options()
        options.terminate = True
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        with suppress(Exception):  # the run was ended
            self.run([self._native.outputs_meta[0].name], {}, options)

    def end_profiling(self) -> Path:
        """Writes the profile. Call it once, because the session does not time later runs."""
        return Path(self._native.end_profiling())


def _in_turn(call: Callable[..., Any], turn: Lock | None) -> Callable[..., Any]:
    if turn is None:
        return call

    def alone(*arguments: Any) -> Any:
        with turn:
            return call(*arguments)

    return alone


def run_options() -> Any:
    """Options of a run, which log nothing and have a flag that ends the run. They serve one run at
    a time, and none after the flag is set, because it stays set."""
    options = onnxruntime.RunOptions()
    options.log_severity_level = _FATAL
    return options


@dataclass(frozen=True, slots=True)
class Source:
    """What a session is opened from.

    Attributes:
        structure: the serialised model without the weights.
        weights: the weights that are handed over, by name.
        left_out: the rewritings that the backend must not make of the model.
        is_safe: whether the backend may rewrite the model at all.
        folded_bytes: as in `SessionSettings`.
    """

    structure: bytes
    weights: Mapping[str, tuple[Array, ir.DataType]]
    left_out: Collection[str]
    is_safe: bool
    folded_bytes: int


def source_of(model: ir.Model) -> Source:
    """The model as a session is opened from. The weights are not copied; they must not change while
    a session of it lives."""
    structure, weights = _without_weights(model)
    return Source(
        structure, weights, rewritings.left_out(model), rewritings.are_safe(model), _foldable(model)
    )


def open_model(
    model: ir.Model, provider: Provider, settings: SessionSettings, token: CancelToken | None = None
) -> OnnxRuntimeSession:
    """A session of the model. Raises as `open_source`."""
    return open_source(source_of(model), provider, settings, token)


def open_source(
    source: Source, provider: Provider, settings: SessionSettings, token: CancelToken | None = None
) -> OnnxRuntimeSession:
    """Loads a model.

    While ONNX Runtime rewrites a graph, it folds constants and infers shapes again. It then refuses
    some graphs that its kernels accept. Such a model is loaded without rewriting.

    Raises:
        HeadraceError: see `failures.load_failure`.
    """
    settings = replace(settings, folded_bytes=source.folded_bytes)
    if not source.is_safe:
        settings = replace(settings, optimize=False)
    try:
        return _open_source(source, provider, settings, token)
    except (InvalidModel, Internal):
        if settings.optimize:
            with suppress(HeadraceError):
                return _open_source(source, provider, replace(settings, optimize=False), token)
        raise


def _open_source(
    source: Source, provider: Provider, settings: SessionSettings, token: CancelToken | None
) -> OnnxRuntimeSession:
    options = _options(provider, settings)
    if source.weights:
        values = [tensors.to_ort(array, dtype) for array, dtype in source.weights.values()]
        options.add_external_initializers(list(source.weights), values)
    arrays = [array for array, _ in source.weights.values()]
    native = _open(source.structure, False, options, provider, token, source.left_out)
    return OnnxRuntimeSession(native, arrays, settings.optimize, provider.turn)


def write_packed(
    source: Source,
    provider: Provider,
    settings: SessionSettings,
    token: CancelToken,
    path: Path,
    weights_name: str,
) -> None:
    """Writes the model as ONNX Runtime rewrites it, and its weights and packed weights beside it.

    Raises:
        HeadraceError: ONNX Runtime refuses its own form of the model, or there is no room.
    """
    settings = replace(
        settings,
        optimize=source.is_safe,
        folded_bytes=source.folded_bytes,
        optimized_path=path,
        weights_name=weights_name,
        packs=True,
    )
    _open_source(source, provider, settings, token)


def open_mapped(
    model: bytes,
    path: Path,
    optimized: bool,
    provider: Provider,
    settings: SessionSettings,
    token: CancelToken,
) -> OnnxRuntimeSession:
    """Loads what `write_packed` wrote. Raises the same errors as `open_model`.

    Args:
        path: its file of weights. It must neither change nor get shorter.
        optimized: whether ONNX Runtime has rewritten the model.
    """
    settings = replace(settings, optimize=False, mapped_folder=path.parent)
    native = _open(model, False, _options(provider, settings), provider, token)
    settle_pages(path)  # it was read twice: the weights as they were, and as the kernels want them
    weakref.finalize(native, settle_pages, path).atexit = False  # nothing maps it any more then
    return OnnxRuntimeSession(native, optimized=optimized)


def open_bytes(data: bytes, provider: Provider, settings: SessionSettings) -> OnnxRuntimeSession:
    """Loads a serialised model. Raises the same errors as `open_model`."""
    native = _open(data, False, _options(provider, settings), provider)
    return OnnxRuntimeSession(native, turn=provider.turn)


def open_file(path: Path, provider: Provider, settings: SessionSettings) -> OnnxRuntimeSession:
    """Loads a model file that the server wrote. Raises the same errors as `open_model`."""
    native = _open(str(path), True, _options(provider, settings), provider)
    return OnnxRuntimeSession(native, turn=provider.turn)


def _open(
    source: bytes | str,
    is_path: bool,
    options: Any,
    provider: Provider,
    token: CancelToken | None = None,
    left_out: Collection[str] = (rewritings.BELIEVES_SYMBOLS,),
) -> Any:
    def cancel() -> None:
        options.set_load_cancellation_flag(True)

    token = token or current_token()  # a trial of a layer has none of its own
    if token is not None:
        token.attach(cancel)
    order = () if provider.device else (provider, *provider.behind)
    try:
        with provider.turn or nullcontext():
            session = binding.InferenceSession(options, source, is_path, False)
            session.initialize_session(
                [each.name for each in order], [dict(each.options) for each in order], {*left_out}
            )
    except Exception as error:
        check()  # a trial must not take the cancel for a refusal
        raise failures.load_failure(error) from error
    finally:
        if token is not None:
            token.detach(cancel)
    if provider.name not in session.get_providers():
        # If the binding cannot load a provider, it goes on without, and says so only in its log.
        raise Unavailable(f"ONNX Runtime cannot load its {provider.name}")
    return session


def _options(provider: Provider, settings: SessionSettings) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _FATAL
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    if provider.device is not None:
        options.add_provider_for_devices([provider.device], dict(provider.options))
    for library in provider.libraries:
        custom_ops.register(options, library)
    # Spinning gains nothing measurable (25.1 and 26.7 ms a run on two threads), and takes the
    # processor away from the other streams and the front-end.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # A product with blockwise quantised weights otherwise rounds the other operand to 8 bits, too.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if provider.keeps_int8:
        options.add_session_config_entry("session.qdqisint8allowed", "1")
    options.add_session_config_entry(
        "optimization.constant_folding_max_output_size_in_bytes", str(settings.folded_bytes)
    )
    if settings.strict and provider.name != CPU_PROVIDER:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if not settings.optimize:
        level = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_DISABLE_ALL
    if settings.profile_prefix:
        options.enable_profiling = True
        options.profile_file_prefix = settings.profile_prefix
    if settings.optimized_path is not None:
        options.optimized_model_filepath = str(settings.optimized_path)
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name",
            settings.weights_name,
        )
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_min_size_in_bytes", str(_INLINE_BYTES)
        )
        options.add_session_config_entry(
            "session.save_external_prepacked_constant_initializers", str(int(settings.packs))
        )
    if settings.mapped_folder is not None:
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(settings.mapped_folder)
        )
    return options


def _foldable(model: ir.Model) -> int:
    """The most bytes that a layer of the model may make of constants. A layer of some bytes can
    make gigabytes of them, and there can be many layers. Weights are turned and unpacked so."""
    nodes = list(walk(model.graph))
    constants = [const_tensor(node.outputs[0]) for node in nodes if node.op_type == "Constant"]
    constants += [value.const_value for value in model.graph.initializers.values()]
    known = (
        constant
        for constant in constants
        if constant is not None and not constant.dtype.is_string()
    )
    largest = max((tensor.nbytes for tensor in known), default=0)
    return max(_FOLDED_BYTES, _ALL_FOLDED_BYTES // (len(nodes) + 1), _UNPACKED * largest)


def _without_weights(model: ir.Model) -> tuple[bytes, dict[str, tuple[Array, ir.DataType]]]:
    """The serialised model without the weights that are handed over, and these weights by name."""
    large = {
        name: value.const_value
        for name, value in model.graph.initializers.items()
        if value.const_value is not None and _can_be_handed_over(value.const_value)
    }
    unaligned = sum(tensor.nbytes for tensor in large.values() if not tensor.numpy().flags.aligned)
    # Protobuf reads concatenated messages as one message with merged fields.
    pieces = [structure(model, large).SerializeToString()]
    weights: dict[str, tuple[Array, ir.DataType]] = {}
    for name, tensor in large.items():
        array = tensor.numpy()
        proto = onnx.TensorProto(name=name, dims=array.shape, data_type=tensor.dtype.value)
        # A copy that is handed over lives as long as the session, even if the session packs the
        # weights anew. A serialised copy is freed after loading.
        if array.flags.aligned or unaligned > _MESSAGE_BYTES:
            weights[name] = (tensors.aligned(array), tensor.dtype)
            proto.data_location = onnx.TensorProto.EXTERNAL
            proto.external_data.add(key="location", value="weights")
        else:
            proto.raw_data = array.tobytes()
        graph = onnx.GraphProto(initializer=[proto])
        pieces.append(onnx.ModelProto(graph=graph).SerializeToString())
    return b"".join(pieces), weights


def _can_be_handed_over(tensor: ir.TensorProtocol) -> bool:
    dtype = tensor.dtype
    return not dtype.is_string() and dtype.bitwidth >= 8 and tensor.nbytes > _INLINE_BYTES
