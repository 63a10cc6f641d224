"""Compares what ONNX Runtime rewrites with the network as it was written: `make fuzz-rewritings`.

ONNX Runtime rewrites a network before it runs it. Most rewritings are right for the networks that
they were made for. This tool makes neighbours of such networks: it changes the sizes, ranks, types
and values of constants, attributes, operators, the order of operands and who else reads a value.
Each neighbour runs on a session without any rewriting and on the device CPU, and both have to
answer the same. With `--bare` it asks a default session in place of the device, and names the
rewritings that a difference goes away without. The same seed makes the same neighbours.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.printer
import onnxruntime
from onnx import helper

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.errors import UnsupportedLayers
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import LoadRequest
from headrace.testing.backend_cases.cases import BackendCase
from headrace.testing.backend_cases.worker import DeviceUnderTest
from headrace.testing.infer_request import InferRequest
from tools.fuzz.devices import mutations
from tools.fuzz.devices.mutations import Draft
from tools.fuzz.devices.sweep.further_cases import (
    further_cases,
    fusion_case,
    lines_of,
)
from tools.fuzz.devices.sweep.ranks import FUSION
from tools.fuzz.devices.values import resized

_FURTHER: Final = Path(__file__).with_name("rewritten.txt")
REWRITINGS: Final = """
    BiasGeluFusion BiasSoftmaxFusion CastElimination ClipQuantRewrite CommonSubexpressionElimination
    ConstantFolding ConstantSharing ConvActivationFusion ConvAddActivationFusion ConvAddFusion
    ConvBNFusion ConvMulFusion DivMulFusion DoubleQDQPairsRemover DynamicQuantizeMatMulFusion
    EliminateDropout EliminateIdentity EliminateSlice EmbedLayerNormFusion EnsureUniqueDQForNodeUnit
    ExpandElimination FastGeluFusion FuseReluClip GatherSliceToSplitFusion GatherToSliceFusion
    GeluFusionL1 GeluFusionL2 GemmActivationFusion GemmSumFusion GemmTransposeFusion
    LabelEncoderFusion LayerNormFusionL1 LayerNormFusionL2 MatMulAddFusion
    MatMulIntegerToFloatFusion MatMulNBitsFusion MatMulScaleFusion
    MatMul_BatchNormalization_Fusion MatmulTransposeFusion NchwcTransformer NhwcTransformer
    NoopElimination NotWhereFusion Pad_Fusion PreShapeNodeElimination QDQFinalCleanupTransformer
    QDQPropagationTransformer QDQS8ToU8Transformer QDQSelectorActionTransformer QuickGeluFusion
    ReluQuantRewrite ReshapeFusion SimplifiedLayerNormFusion SkipLayerNormFusion
    SliceConcatToSpaceToDepthFusion TransposeOptimizer TransposeOptimizer_CPUExecutionProvider
    UnsqueezeElimination WeightBiasQuantization
"""
_TOLERANCE: Final = 3e-5
_NUDGE: Final = 1e-6
_SECONDS: Final = 20.0
_SOUND: Final = ("invalid", "refused", "right", "undefined")
"""Verdicts on networks that ONNX Runtime does not run as written, that the device does not run,
that are right, and that take the largest of NaN and a number."""
_GUARDED: Final = re.compile("layer '[^']*': ")
"""What the device says of a layer that it does not let run; a layer that fails has its operator."""
_CONSTANTS: Final = (0.0, 1.0, -1.0, 2.0, 0.5, 3.0, 1e-3, 1e-5, 1e-6, 1e-12, 100.0)
_SCALES: Final = (0.5, 0.3, 0.1, 0.07, 0.03, 0.02, 0.01)
_OPSETS: Final = (7, 11, 12, 13, 14, 17, 18, 19, 20, 21)
_ALIKE: Final = (
    ("Add", "Sub", "Mul", "Div", "Max", "Min"),
    ("Relu", "LeakyRelu", "Sigmoid", "Tanh", "Neg", "Abs", "Sqrt", "Erf", "Softplus", "Identity"),
    ("Softmax", "LogSoftmax", "Hardmax"),
    ("ReduceMean", "ReduceSum", "ReduceMax"),
    ("MaxPool", "AveragePool"),
)


class Neighbour(NamedTuple):
    """A network near one that ONNX Runtime rewrites, and a request for it."""

    origin: str
    model: bytes
    feed: Mapping[str, Any]
    done: Sequence[str]


def cases(patterns: Sequence[str]) -> list[BackendCase]:
    """Networks that ONNX Runtime rewrites: those of the sweep of ranks, and
    ``rewritten.txt``."""
    found = [each for each in further_cases() if each.kind == FUSION]
    found += [fusion_case(1000 + at, line) for at, line in enumerate(lines_of(_FURTHER))]
    return [
        case
        for case in found
        if not patterns or any(fnmatchcase(case.name, each) for each in patterns)
    ]


def neighbour(seeds: Sequence[BackendCase], seed: int, number: int) -> Neighbour:
    rng = np.random.default_rng([seed, number])
    case = seeds[int(rng.integers(len(seeds)))]
    feed = {
        name: np.asarray(rng.standard_normal(value.shape), value.dtype)
        if isinstance(value, np.ndarray) and value.dtype == np.float32
        else value
        for name, value in case.data_sets[0][0].items()
    }
    draft = Draft(onnx.ModelProto.FromString(case.model), feed, {}, [])
    changes = (
        (_value, 0.4),
        (_value, 0.2),
        (_shape, 0.35),
        (_spread, 0.1),
        (_swap, 0.25),
        (_other_operator, 0.2),
        (_shown, 0.2),
        (_opset, 0.1),
        (_size_of_input, 0.2),
        (mutations.mutate_attribute, 0.25),
        (mutations.make_constants, 0.1),
        (_type, 0.25),
    )
    for change, chance in changes:
        if rng.random() < chance:
            change(draft, rng)
    mutations.declare(draft, rng)
    return Neighbour(case.name, draft.model.SerializeToString(), draft.feed, tuple(draft.done))


def _constant(draft: Draft, rng: np.random.Generator) -> tuple[Any, Any] | None:
    tensors = [each for each in draft.model.graph.initializer if each.data_type < 8]
    if not tensors:
        return None
    tensor = tensors[int(rng.integers(len(tensors)))]
    return tensor, onnx.numpy_helper.to_array(tensor)


def _replace(draft: Draft, tensor: Any, array: Any, how: str) -> None:
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))
    draft.done.append(f"{tensor.name} {how}")


def _value(draft: Draft, rng: np.random.Generator) -> None:
    """Gives a constant of one number another, or changes one number of a larger one."""
    found = _constant(draft, rng)
    if found is None or not found[1].size:
        return
    tensor, array = found[0], found[1].copy()
    quantising = {
        name
        for node in draft.model.graph.node
        if "QuantizeLinear" in node.op_type or "DequantizeLinear" in node.op_type
        for name in node.input[1:2]
    }
    if array.dtype.kind == "f":
        known = _SCALES if tensor.name in quantising else _CONSTANTS
        number = known[int(rng.integers(len(known)))]
    else:
        number = int(rng.integers(0, 5))
    array.reshape(-1)[int(rng.integers(array.size))] = number
    _replace(draft, tensor, array, f"has {number}")


def _shape(draft: Draft, rng: np.random.Generator) -> None:
    """Gives a constant axes of one more, or fewer."""
    found = _constant(draft, rng)
    if found is None:
        return
    tensor, array = found
    if array.ndim and array.shape[0] == 1 and rng.integers(2):
        array = array[0]
    else:
        array = array.reshape((1,) * int(rng.integers(1, 4)) + array.shape)
    _replace(draft, tensor, array, f"is {array.shape}")


def _spread(draft: Draft, rng: np.random.Generator) -> None:
    """Repeats or cuts an axis of a constant."""
    found = _constant(draft, rng)
    if found is None or not found[1].ndim:
        return
    tensor, array = found
    shape = [*array.shape]
    shape[int(rng.integers(len(shape)))] = int(rng.choice([1, 2, 3, 4]))
    _replace(draft, tensor, resized(array, shape), f"is {tuple(shape)}")


def _swap(draft: Draft, rng: np.random.Generator) -> None:
    """Swaps the operands of a layer."""
    pairs = [node for node in draft.model.graph.node if len(node.input) == 2]
    if pairs:
        node = pairs[int(rng.integers(len(pairs)))]
        node.input[0], node.input[1] = node.input[1], node.input[0]
        draft.done.append(f"operands of {node.op_type} swapped")


def _other_operator(draft: Draft, rng: np.random.Generator) -> None:
    nodes = [
        (node, group)
        for node in draft.model.graph.node
        for group in _ALIKE
        if node.op_type in group
    ]
    if nodes:
        node, group = nodes[int(rng.integers(len(nodes)))]
        before = node.op_type
        node.op_type = group[int(rng.integers(len(group)))]
        draft.done.append(f"{before} is {node.op_type}")


def _shown(draft: Draft, rng: np.random.Generator) -> None:
    """Makes a value inside the network a result of it, or gives it another reader."""
    graph = draft.model.graph
    shown = {port.name for port in graph.output}
    inside = [name for node in graph.node for name in node.output[:1] if name not in shown]
    if not inside:
        return
    name = inside[int(rng.integers(len(inside)))]
    if rng.integers(2):
        graph.node.append(helper.make_node("Identity", [name], [f"{name}_read"]))
        name = f"{name}_read"
    graph.output.append(helper.make_empty_tensor_value_info(name))
    draft.done.append(f"{name} shown")


def _opset(draft: Draft, rng: np.random.Generator) -> None:
    version = int(rng.choice(_OPSETS))
    for each in draft.model.opset_import:
        if each.domain == "":
            each.version = version
    draft.done.append(f"operator set {version}")


def _size_of_input(draft: Draft, rng: np.random.Generator) -> None:
    """Gives an axis of an input another size, all its axes, or an axis more."""
    arrays = draft.arrays()
    if not arrays:
        return
    name = [*arrays][int(rng.integers(len(arrays)))]
    array = arrays[name]
    shape = [*array.shape]
    if shape and rng.integers(3):
        shape[int(rng.integers(len(shape)))] = int(rng.choice([1, 2, 3, 5]))
    else:
        shape, array = [int(rng.choice([1, 2])), *shape], array[np.newaxis]
    draft.feed[name] = resized(array, shape)
    draft.done.append(f"{name} is {tuple(shape)}")


def _type(draft: Draft, rng: np.random.Generator) -> None:
    """Gives all floats of the network another type."""
    word = ("float64", "float64", "float16")[int(rng.integers(3))]
    element = helper.np_dtype_to_tensor_dtype(np.dtype(word))
    graph = draft.model.graph
    for tensor in graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            array = onnx.numpy_helper.to_array(tensor).astype(word)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for port in (*graph.input, *graph.output):
        if port.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            port.type.tensor_type.elem_type = element
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == 1:
                attribute.i = element
    for name, array in draft.arrays().items():
        if array.dtype == np.float32:
            draft.feed[name] = array.astype(word)
    draft.done.append(word)


# -- answers --


def _session(model: bytes, level: Any, without: Sequence[str] = ()) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = level
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return onnxruntime.InferenceSession(
        model, options, providers=["CPUExecutionProvider"], disabled_optimizers=[*without]
    )


def _as_written(model: bytes, feed: Mapping[str, Any]) -> list[Any]:
    level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    found: list[Any] = _session(model, level).run(None, dict(feed))
    return found


def _typed(model: bytes, results: Sequence[Any]) -> bytes:
    """The model with the types of its results, which the device wants to know."""
    proto = onnx.ModelProto.FromString(model)
    for port, value in zip(proto.graph.output, results, strict=True):
        if isinstance(value, np.ndarray):
            element = helper.np_dtype_to_tensor_dtype(value.dtype)
            port.type.tensor_type.elem_type = element
    return proto.SerializeToString()


def _rewritten(model: bytes, feed: Mapping[str, Any], without: Sequence[str] = ()) -> list[Any]:
    level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    found: list[Any] = _session(model, level, without).run(None, dict(feed))
    return found


def _has_nan(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and bool(np.isnan(value).any())


def _difference(found: Sequence[Any], wanted: Sequence[Any], slack: Sequence[float]) -> str:
    for at, (one, other, extra) in enumerate(zip(found, wanted, slack, strict=True)):
        if not isinstance(other, np.ndarray):
            continue
        if not isinstance(one, np.ndarray):
            return f"output {at}: nothing"
        if one.shape != other.shape or one.dtype != other.dtype:
            return f"output {at}: {one.dtype}{one.shape} for {other.dtype}{other.shape}"
        if other.dtype.kind not in "fiub":
            if (one != other).any():
                return f"output {at}: other texts"
            continue
        left, right = one.astype(np.float64), other.astype(np.float64)
        if (np.isfinite(left) != np.isfinite(right)).any():
            return f"output {at}: NaN or infinity in one alone"
        sound = np.isfinite(right)
        if not sound.any():
            continue
        distance = np.abs(left[sound] - right[sound]).max()
        if distance > extra:
            return f"output {at}: {distance:.3g} off, {extra:.3g} allowed"
    return ""


def _slack(model: bytes, feed: Mapping[str, Any], wanted: Sequence[Any]) -> list[float]:
    """How far each output may be off: what rounding does, which is found by changing the inputs a
    little, and a step if numbers are quantised inside."""
    proto = onnx.ModelProto.FromString(model)
    values = {each.name: onnx.numpy_helper.to_array(each) for each in proto.graph.initializer}
    quantised = [node for node in proto.graph.node if "Quantize" in node.op_type]
    quantised += [node for node in proto.graph.node if node.op_type == "DequantizeLinear"]
    scales = [values[name] for node in quantised for name in node.input[1:2] if name in values]
    step = max((float(np.abs(each).max(initial=0)) for each in scales), default=0.0)
    half = any(getattr(each, "dtype", None) == np.float16 for each in (*feed.values(), *wanted))
    moved = [0.0] * len(wanted)
    rng = np.random.default_rng(0)
    for _ in range(3):
        nudged = {
            name: (value * (1 + _NUDGE * rng.standard_normal(value.shape))).astype(value.dtype)
            if isinstance(value, np.ndarray) and value.dtype in (np.float32, np.float64)
            else value
            for name, value in feed.items()
        }
        for at, (one, other) in enumerate(zip(_as_written(model, nudged), wanted, strict=True)):
            if isinstance(other, np.ndarray) and other.dtype.kind == "f" and one.size:
                with np.errstate(all="ignore"):
                    far = np.abs(one.astype(np.float64) - other.astype(np.float64))
                moved[at] = max(moved[at], float(np.nanmax(np.nan_to_num(far))))
    slack = []
    for at, value in enumerate(wanted):
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
            slack.append(0.0)
            continue
        numbers = value.astype(np.float64)
        largest = float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0))
        relative = 2e-2 if half else _TOLERANCE
        whole = 1.0 if value.dtype in (np.int8, np.uint8) and quantised else 0.0
        slack.append(10 * moved[at] + relative * largest + 1.01 * step + whole + 1e-9)
    return slack


class _Judge:
    """Compares neighbours; on the device CPU, or on a bare session."""

    def __init__(self, bare: bool) -> None:
        self._bare = bare
        self._name = DeviceName.parse("CPU")
        self._core = None if bare else Core(DeviceUnderTest("CPU").sources(), blob_key=b"fuzz")

    def verdict(self, each: Neighbour) -> tuple[str, str]:
        """What became of a neighbour, and how it differs if it does."""
        try:
            wanted = _as_written(each.model, each.feed)
            slack = _slack(each.model, each.feed, wanted)
            each = each._replace(model=_typed(each.model, wanted))
        except Exception:  # noqa: BLE001 - of many kinds; such a network says nothing
            return "invalid", ""
        try:
            found = self._found(each)
        except UnsupportedLayers:
            return "refused", ""
        except Exception as error:  # noqa: BLE001 - whatever it is, the network as written runs
            if _GUARDED.search(str(error)):
                return "refused", ""
            return "failed", self._blamed(each, wanted, slack, f"{error}"[:300])
        if b"MaxPool" in each.model and any(map(_has_nan, (*found, *wanted))):
            return "undefined", ""
        how = _difference(found, wanted, slack)
        return ("wrong", self._blamed(each, wanted, slack, how)) if how else ("right", "")

    def _found(self, each: Neighbour) -> list[Any]:
        if self._core is None:
            return _rewritten(each.model, each.feed)
        entry = self._core.load_network(
            LoadRequest("neighbour", self._name, {}), lambda: Network.from_bytes(each.model)
        ).result()
        try:
            assert entry.executable is not None
            found = InferRequest(entry.executable).infer(dict(each.feed))
        finally:
            self._core.unload_network("neighbour").result()
        proto = onnx.ModelProto.FromString(each.model)
        return [found[port.name] for port in proto.graph.output]

    def _blamed(
        self, each: Neighbour, wanted: Sequence[Any], slack: Sequence[float], how: str
    ) -> str:
        """The difference, and the rewritings without which a bare session is right."""
        guilty = []
        for name in REWRITINGS.split():
            try:
                found = _rewritten(each.model, each.feed, [name])
            except Exception:  # noqa: BLE001 - as above
                continue
            if not _difference(found, wanted, slack):
                guilty.append(name)
        if len(guilty) == len(REWRITINGS.split()):
            return f"[not a bare session] {how}"
        return f"[{', '.join(guilty) or 'several, or none'}] {how}"


def _work(bare: bool, seed: int, patterns: Sequence[str], connection: Connection) -> None:
    judge, seeds = _Judge(bare), cases(patterns)
    while True:
        try:
            number = connection.recv()
        except EOFError:
            return
        connection.send(judge.verdict(neighbour(seeds, seed, number)))


class _Worker:
    """A process that judges; another one follows if it ends or hangs."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._arguments = (options.bare, options.seed, options.cases)
        self._process: Any = None

    def ask(self, number: int) -> tuple[str, str]:
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(
                target=_work, args=(*self._arguments, theirs), daemon=True
            )
            self._process.start()
            theirs.close()
        self._pipe.send(number)
        try:
            if self._pipe.poll(_SECONDS):
                answer: tuple[str, str] = self._pipe.recv()
                return answer
        except EOFError:
            self.stop()
            return "ended", ""
        self.stop()
        return "hung", ""

    def stop(self) -> None:
        if self._process is not None:
            self._pipe.close()
            self._process.terminate()
            self._process.join()
            self._process = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 if a neighbour is wrong or fails, or ends or hangs the process."""
    options = _parser().parse_args(arguments)
    seeds, counts = cases(options.cases), Counter[str]()
    worker, end = _Worker(options), time.monotonic() + options.seconds
    try:
        for number in _numbers(options):
            if time.monotonic() > end:
                break
            verdict, how = worker.ask(number)
            counts[verdict] += 1
            if verdict not in _SOUND:
                _report(number, verdict, how, neighbour(seeds, options.seed, number))
    finally:
        worker.stop()
    print(f"seed {options.seed}: {dict(counts)}")
    return int(not {*counts} <= {*_SOUND})


def _numbers(options: argparse.Namespace) -> Iterator[int]:
    number = options.first
    while options.count is None or number < options.first + options.count:
        yield number
        number += 1


def _report(number: int, verdict: str, how: str, each: Neighbour) -> None:
    print(f"{number} {verdict} {each.origin} ({', '.join(each.done)})\n  {how}", flush=True)
    text = onnx.printer.to_text(onnx.ModelProto.FromString(each.model))
    print("  " + " ".join(text.split("g (", 1)[-1].split())[:700], flush=True)
    shapes = {
        name: f"{value.dtype}{value.shape}"
        for name, value in each.feed.items()
        if isinstance(value, np.ndarray)
    }
    print(f"  {shapes}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz.rewritings", description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, default=0, help="seed of the neighbours (default 0)")
    add("--first", type=int, default=0, help="number of the first neighbour (default 0)")
    add("--count", type=int, help="how many neighbours (default: as many as the time allows)")
    add("--seconds", type=float, default=300.0, help="how long (default 300)")
    add("--bare", action="store_true", help="ask a bare session in place of the device")
    add(
        "--cases",
        action="append",
        default=[],
        help="start from networks with names of this pattern",
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
