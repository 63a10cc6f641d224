"""A process that tries layers: what ONNX Runtime makes of each, and what OPENVINO does."""

from __future__ import annotations

import enum
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from headrace.plugins.openvino.backend.compilation import Compilation
from headrace.plugins.openvino.backend.core import Runtime
from headrace.plugins.openvino.claims.attributes import limit
from headrace.plugins.openvino.claims.forms import LayerForm, form_of
from headrace.runtime.errors import HeadraceError, InvalidArgument
from headrace.runtime.execution.job import Job
from headrace.runtime.network.network import Network
from headrace.runtime.network.type_inference import infer_types
from tools.claims.layer import Array, Layer, dtype_of

_TOLERANCES: Final = {"float64": (1e-10, 1e-12), "float16": (1e-2, 2e-3), "bfloat16": (4e-2, 2e-2)}
_USUAL: Final = (1e-3, 1e-5)
_MEMORY_BYTES: Final = 2**30
_EXHAUSTED: Final = ("can't alloc", "Broken promise", "bad_alloc")
"""What OpenVINO says when the process has no memory left, which tells nothing about a layer."""
_PROPERTIES: Final[Mapping[str, object]] = MappingProxyType(
    {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
)


class Verdict(enum.Enum):
    RIGHT = "right"
    WRONG = "wrong"  # other values, types or shapes
    FAILED = "failed"  # an error in a run
    REFUSED = "refused"  # it does not compile, which harms nobody
    ENDED = "ended"
    INVALID = "invalid"  # ONNX Runtime does not run it, a limit excludes it, or CPU answers it


@dataclass(frozen=True, slots=True)
class Trial:
    """
    Attributes:
        form: None if the layer is invalid.
    """

    verdict: Verdict
    form: LayerForm | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class _Ready:
    """A valid layer with what is right for it."""

    layer: Layer
    trial: Trial
    expected: Mapping[str, Array]


def run_worker(device: str, connection: Connection) -> None:
    """Answers each list of layers that arrives with their trials. Before it gives them to OpenVINO,
    it answers with the trials that stand if this process ends."""
    onnxruntime.set_default_logger_severity(4)
    runtime = Runtime()
    _limit_memory()
    try:
        while True:
            layers: list[Layer] = connection.recv()
            ready = [_prepared(layer) for layer in layers]
            connection.send([each.trial if each else Trial(Verdict.INVALID) for each in ready])
            found = _verdicts(runtime, device, [each for each in ready if each])
            connection.send([next(found) if each else Trial(Verdict.INVALID) for each in ready])
    except (EOFError, BrokenPipeError):
        return


def run_judge(connection: Connection) -> None:
    """Answers each layer that arrives with whether it is valid."""
    onnxruntime.set_default_logger_severity(4)
    _limit_memory()
    with suppress(EOFError, BrokenPipeError):
        while True:
            connection.send(_prepared(connection.recv()) is not None)


def _limit_memory() -> None:
    """Some values are sizes in some layers: a tensor of many gigabytes is not worth its time."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _prepared(layer: Layer) -> _Ready | None:
    model = layer.model()
    expected = layer.expected or _reference(model.SerializeToString(), layer.feeds)
    inferred = None if expected is None else known(model, expected)
    if inferred is None or expected is None:
        return None
    node = next(iter(inferred.graph))
    form = form_of(node, layer.opset)
    if limit(node, form.since) is not None:
        return None
    return _Ready(layer, Trial(Verdict.ENDED, form), expected)


def _verdicts(runtime: Runtime, device: str, ready: Sequence[_Ready]) -> Iterator[Trial]:
    """The trials in order."""
    found: dict[int, Trial] = {}
    left = []
    for at, each in enumerate(ready):
        if (refusal := _refusal(runtime, each)) is not None:
            found[at] = replace(each.trial, verdict=Verdict.REFUSED, detail=refusal)
        else:
            left.append(at)
    _try(runtime, device, ready, left, found)
    return (found[at] for at in range(len(ready)))


def _try(
    runtime: Runtime,
    device: str,
    ready: Sequence[_Ready],
    places: Sequence[int],
    found: dict[int, Trial],
) -> None:
    """Layers that are right in one network are right. Of others each half has a network."""
    if not places:
        return
    verdict, detail = _verdict(runtime, device, *_joined([ready[at] for at in places]))
    if verdict is Verdict.RIGHT or len(places) == 1:
        for at in places:
            found[at] = replace(ready[at].trial, verdict=verdict, detail=detail)
        return
    middle = len(places) // 2
    for half in (places[:middle], places[middle:]):
        _try(runtime, device, ready, half, found)


def _refusal(runtime: Runtime, each: _Ready) -> str | None:
    """Why the layer is not converted, which takes less time than a compile tells. None if it is."""
    try:
        runtime.convert(_network(_joined([each])[0]).model)
    except HeadraceError as error:
        return _told(error)
    except Exception:  # noqa: BLE001 - it fails in a network of its own as well, which tells how
        return None
    return None


def _told(error: HeadraceError) -> str:
    """Why a layer is refused.

    Raises:
        MemoryError: not for what it is. The process has to end, and another one tries it.
    """
    reason = str(error)
    if any(each in reason for each in _EXHAUSTED):
        raise MemoryError(reason)
    return reason[-300:]


def _network(data: bytes) -> Network:
    network = Network(ir.from_proto(onnx.load_from_string(data)))
    infer_types(network.model)
    return network


def _joined(ready: Sequence[_Ready]) -> tuple[bytes, dict[str, Array], dict[str, Array]]:
    """One network of all layers side by side, its inputs, and its right outputs."""
    whole = ready[0].layer.model()
    for name in ("node", "input", "output", "initializer"):
        whole.graph.ClearField(name)
    feeds: dict[str, Array] = {}
    outputs: dict[str, Array] = {}
    for at, each in enumerate(ready):
        graph, prefix = each.layer.model().graph, f"l{at}_"
        for node in graph.node:
            node.name = prefix + node.name
            node.input[:] = [name and prefix + name for name in node.input]
            node.output[:] = [name and prefix + name for name in node.output]
        for ports in (graph.input, graph.initializer):
            for port in ports:
                port.name = prefix + port.name
        whole.graph.node.extend(graph.node)
        whole.graph.input.extend(graph.input)
        for name, value in each.expected.items():
            kind = int(dtype_of(value))
            port = onnx.helper.make_tensor_value_info(prefix + name, kind, value.shape)
            whole.graph.output.append(port)
        whole.graph.initializer.extend(graph.initializer)
        feeds |= {prefix + name: value for name, value in each.layer.feeds.items()}
        outputs |= {prefix + name: value for name, value in each.expected.items()}
    return whole.SerializeToString(), feeds, outputs


def _reference(data: bytes, feeds: Mapping[str, Array]) -> dict[str, Array] | None:
    """What ONNX Runtime computes without rewriting anything."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", "1")
    try:
        session = onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])
        names = [each.name for each in session.get_outputs()]
        given = {
            name: onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
                np.ascontiguousarray(value), int(dtype_of(value))
            )
            if value.dtype.kind == "V"
            else onnxruntime.OrtValue.ortvalue_from_numpy(
                np.ascontiguousarray(value).reshape(value.shape)
            )
            for name, value in feeds.items()
        }
        found = session.run_with_ort_values(names, given)
        kinds = [each.data_type() for each in found]
        if any(kind == "tensor(bfloat16)" or not kind.startswith("tensor") for kind in kinds):
            return None
        return {name: each.numpy() for name, each in zip(names, found, strict=True)}
    except Exception:  # noqa: BLE001 - whatever it does not take is not tried
        return None


def known(network: onnx.ModelProto, expected: Mapping[str, Array]) -> ir.Model | None:
    """The network with its types and sizes. None if they are not known before a run."""
    model = ir.serde.deserialize_model(network)
    infer_types(model)
    for value in model.graph.outputs:
        array = expected.get(value.name or "")
        static = value.type is not None and value.shape is not None and value.shape.is_static()
        if array is None:
            return None
        if not static:
            if next(iter(model.graph)).domain in ("", "ai.onnx"):
                return None
            value.type, value.shape = ir.TensorType(dtype_of(array)), ir.Shape(array.shape)
    return model


def _verdict(
    runtime: Runtime,
    device: str,
    data: bytes,
    feeds: Mapping[str, Array],
    expected: Mapping[str, Array],
) -> tuple[Verdict, str]:
    network = _network(data)
    try:
        converted = runtime.convert(network.model)
        settable = runtime.settable(device)
        properties = {name: value for name, value in _PROPERTIES.items() if name in settable}
        compiled = runtime.compile(converted.model, device, properties)
        compilation = Compilation(network, compiled, converted.bound)
    except HeadraceError as error:
        return Verdict.REFUSED, _told(error)
    except Exception as error:  # noqa: BLE001 - as below
        return Verdict.FAILED, f"{type(error).__name__}: {error}"[-300:]
    try:
        job = Job(feeds, lambda _: None, output_names=(*expected,))
        found = compilation.run(job, device, marked=True)
    except InvalidArgument as error:
        # OpenVINO's own error, or a check of ours: then CPU answers such values.
        own = error.__cause__ is not None
        return Verdict.FAILED if own else Verdict.INVALID, str(error)[-300:]
    except HeadraceError as error:
        return Verdict.FAILED, str(error)[-300:]
    except Exception as error:  # noqa: BLE001 - a fault of ours, which must not end the process
        return Verdict.FAILED, f"{type(error).__name__}: {error}"[-300:]
    for name, value in expected.items():
        if (detail := difference(np.asarray(found[name]), value)) is not None:
            return Verdict.WRONG, f"{name}: {detail}"
    return Verdict.RIGHT, ""


def difference(found: Array, expected: Array) -> str | None:
    """How two values differ; None if they do not, within what the type can show."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"{found.dtype}{found.shape}, not {expected.dtype}{expected.shape}"
    if expected.dtype.kind in "iub":
        return None if np.array_equal(found, expected) else "other numbers"
    info: Any = ml_dtypes.finfo(expected.dtype)  # type: ignore[no-untyped-call]
    one, other = found.astype(np.float64), expected.astype(np.float64)
    relative, absolute = _TOLERANCES.get(expected.dtype.name, _USUAL)
    finite = np.abs(other[np.isfinite(other)])
    scale = min(float(finite.max(initial=0.0)), float(info.max))
    with np.errstate(all="ignore"):
        close = np.isclose(one, other, relative, absolute * scale + 1e-30, equal_nan=True)
        if close.all():
            return None
        return f"{(~close).sum()} of {close.size} numbers, by {np.abs(one - other)[~close].max()}"
