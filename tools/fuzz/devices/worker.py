"""The processes that run variants: on a device, or through ONNX's reference."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.plugin_source import installed_plugins
from headrace.runtime.errors import (
    FailedPrecondition,
    HeadraceError,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
    UnsupportedLayers,
)
from headrace.runtime.network.network import Network
from headrace.runtime.network.reference.evaluator import CorrectedEvaluator
from headrace.runtime.transform.options import LoadRequest, NetworkOptions
from headrace.testing.backend_cases.worker import DeviceUnderTest, wait_until_up
from headrace.testing.infer_request import InferRequest
from tools.fuzz.devices import canaries
from tools.fuzz.devices.answer import TWO_ANSWERS, Answer, How, Reply, Stage, portable
from tools.fuzz.devices.compare import differs
from tools.fuzz.devices.variant import Feed, Variant, input_names

MEMORY_BYTES = 3 << 30
_FAULTLESS = (InvalidArgument, FailedPrecondition, NotFound, Unimplemented)
_ENDINGS = (How.ANSWERED, How.REFUSED)
_TRACES = ("Traceback (most recent call last)", 'File "')

Tell: TypeAlias = Callable[[Stage], None]


def run_device(device: DeviceUnderTest, connection: Connection, together: bool = False) -> None:
    """Answers each variant that arrives with an `Answer`, and before that with each stage.

    First it sends the backend's version, or the error that kept the device from starting. It ends
    when the other end of the connection closes.
    """
    _prepare()
    sources = _in_this_process(device).sources()
    if all(each.device != "CPU" for each in sources):  # which OPENVINO has behind it
        sources.append(installed_plugins()["CPU"])
    core = Core(sources, blob_key=b"fuzz")
    try:
        name = DeviceName.parse(device.name)
        try:
            plugin = core.plugin(name)
            known = {*plugin.schema.names}
        except HeadraceError as error:
            connection.send(error)
            return
        one: dict[str, str] = {
            key: "1" for key in ("NUM_STREAMS", "INFERENCE_NUM_THREADS") if key in known
        }
        connection.send(plugin.backend_version)
        _be_silent()
        runner = DeviceRunner(core, name, {**one, **device.config}, together)
        _serve(connection, lambda variant: runner.run(variant, connection.send))
    finally:
        core.stop()


def run_device_together(device: DeviceUnderTest, connection: Connection) -> None:
    """As `run_device`, and the second time all requests of a variant run at once."""
    run_device(device, connection, together=True)


def run_runtime(connection: Connection) -> None:
    """As `run_device`, by ONNX Runtime as it is, without any rewriting of networks."""
    _prepare()
    connection.send(f"ONNX Runtime {onnxruntime.__version__}")
    _be_silent()
    _serve(connection, runtime_answer)


def run_reference(connection: Connection) -> None:
    """As `run_device`, by ONNX's reference evaluator."""
    _prepare()
    connection.send("reference")
    _be_silent()
    _serve(connection, reference_answer)


def _in_this_process(device: DeviceUnderTest) -> DeviceUnderTest:
    """The device without a process of its own, if it needs none and none was requested: only then
    are the canaries in its memory."""
    for source in device.sources():
        if source.device == DeviceName.parse(device.name).type:
            with contextlib.suppress(Exception):  # which the core tells about
                if getattr(source.load(), "headrace_isolated", False) is not True:
                    return replace(device, settings={"ISOLATION": "NONE", **device.settings})
    return device


def _prepare() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")


def _be_silent() -> None:
    """Backends write about every network that is refused. What they write before is the reason of
    a start that fails. Python's own last words, about an exception that nobody caught, are kept."""
    sys.stderr = os.fdopen(os.dup(2), "w")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)


def _serve(connection: Connection, run: Callable[[Variant], Answer]) -> None:
    with contextlib.suppress(EOFError, BrokenPipeError):  # nobody asks any more
        while True:
            variant = connection.recv()
            try:
                answer = run(variant)
            except MemoryError as error:  # what it answered is too large to be copied
                answer = Answer(How.NO_MEMORY, Stage.RUN, text=_text(error))
            connection.send(answer)


class DeviceRunner:
    """Queries, loads and runs variants on one device, each request twice."""

    def __init__(
        self, core: Core, device: DeviceName, config: Mapping[str, str], together: bool = False
    ) -> None:
        self._core = core
        self._device = device
        self._config = config
        self._together = together

    def run(self, variant: Variant, tell: Tell = lambda _: None) -> Answer:
        stage, claimed = Stage.QUERY, False
        try:
            wait_until_up(self._core, self._device)
            tell(stage)

            def network() -> Network:  # a new one each time, because a query takes its own apart
                return Network.from_bytes(variant.model)

            query = self._core.query_network(
                self._device, self._config, NetworkOptions(), network
            ).result()
            claimed = not query.unsupported
            stage = Stage.LOAD
            tell(stage)
            request = LoadRequest("fuzz", self._device, self._config)
            entry = self._core.load_network(request, network).result()
        except Exception as error:  # noqa: BLE001 - whatever a device raises is its answer
            return Answer(_how(error), stage, claimed, _text(error))
        try:
            tell(Stage.RUN)
            assert entry.executable is not None
            replies = run_twice(entry.executable, variant.feeds, self._together)
        finally:
            self._core.unload_network("fuzz").result()
        return Answer(How.ANSWERED, Stage.RUN, claimed, replies=tuple(replies))


def run_twice(
    network: ExecutableNetwork, feeds: tuple[Feed, ...], together: bool = False
) -> list[Reply]:
    """Runs all requests, and then all again in the opposite order with other bytes around them.

    Args:
        together: the second time, all of them start before any is waited for.
    """
    earlier: list[canaries.GuardedArray] = []
    canaries.fill_heap(0)
    first = [_started(network, feed, 0, earlier)() for feed in feeds]
    canaries.fill_heap(1)
    if together:
        started = [_started(network, feed, 1, earlier) for feed in reversed(feeds)]
        second = [end() for end in started][::-1]
    else:
        second = [_started(network, feed, 1, earlier)() for feed in reversed(feeds)][::-1]
    return [_joined(one, other) for one, other in zip(first, second, strict=True)]


def _started(
    network: ExecutableNetwork, feed: Feed, run: int, earlier: list[canaries.GuardedArray]
) -> Callable[[], Reply]:
    """Starts a request. What it returns waits for the reply.

    Args:
        earlier: what guards the memory of earlier requests, to which this one's is added.
    """
    parts = {name: canaries.guarded(value, run) for name, value in feed.items()}
    earlier += (guard for _, guards in parts.values() for guard in guards)
    request, failure = InferRequest(network), None
    try:
        request.start_async({name: part for name, (part, _) in parts.items()})
    except Exception as error:  # noqa: BLE001 - whatever a device raises is its answer
        failure = Reply(_how(error), text=_text(error))

    def reply() -> Reply:
        if failure is not None:
            return failure
        try:
            outputs = request.result()
        except Exception as error:  # noqa: BLE001 - whatever a device raises is its answer
            return Reply(_how(error), text=_text(error))
        foreign = canaries.shown(outputs, run)
        if not all(guard.is_intact() for guard in earlier):
            foreign = "memory of this or an earlier request, or next to it, was written to"
        # Outputs may share memory with inputs, or with what the backend uses again.
        return Reply(How.ANSWERED, _copied(portable(outputs)), foreign=foreign)

    return reply


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copied(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_copied(each) for each in value]
    return value.copy() if isinstance(value, np.ndarray) else value


def _joined(first: Reply, second: Reply) -> Reply:
    """The first reply, with what the second one shows."""
    first = replace(first, foreign=first.foreign or second.foreign)
    if first.how is not second.how:
        broken = next((each for each in (first, second) if each.how not in _ENDINGS), None)
        text = f"{first.how.value}, and then {second.how.value}: {first.text}{second.text}"
        return broken or replace(first, unsteady=text)
    if first.how is How.ANSWERED:
        assert first.outputs is not None
        assert second.outputs is not None
        if (found := differs(second.outputs, first.outputs)) is not None:
            return replace(first, unsteady=f"{TWO_ANSWERS}: {found[1]}")
    return first


def runtime_answer(variant: Variant) -> Answer:
    """What ONNX Runtime makes of a variant without rewriting its network."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", "1")
    try:
        session = onnxruntime.InferenceSession(variant.model, options, ["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - it raises errors of many kinds
        return Answer(How.REFUSED, Stage.LOAD, text=_text(error))
    names = [port.name for port in session.get_outputs()]
    replies = []
    for feed in variant.feeds:
        try:
            outputs = session.run(None, dict(feed))
        except Exception as error:  # noqa: BLE001 - it raises errors of many kinds
            replies.append(Reply(How.REFUSED, text=_text(error)))
        else:
            named = dict(zip(names, outputs, strict=True))
            replies.append(Reply(How.ANSWERED, _copied(portable(named))))
    return Answer(How.ANSWERED, Stage.RUN, True, replies=tuple(replies))


def reference_answer(variant: Variant) -> Answer:
    """The outputs of ONNX's reference evaluator for a variant, with its known faults mended."""
    try:
        network = variant.proto
        evaluator = CorrectedEvaluator(network)
    except Exception as error:  # noqa: BLE001 - each operator refuses in its own way
        return Answer(How.REFUSED, Stage.LOAD, text=_text(error))
    names = input_names(network)
    replies = []
    for feed in variant.feeds:
        given = {name: _copied(feed.get(name)) for name in names}
        try:
            with np.errstate(all="ignore"):
                outputs = evaluator.run(None, given)
        except MemoryError as error:
            replies.append(Reply(How.NO_MEMORY, text=_text(error)))
        except Exception as error:  # noqa: BLE001 - each operator refuses in its own way
            how = How.UNABLE if _is_unable(error) else How.REFUSED
            replies.append(Reply(how, text=_text(error)))
        else:
            named = {
                port.name: _declared(_value(value), port.type)
                for port, value in zip(network.graph.output, outputs, strict=True)
            }
            replies.append(Reply(How.ANSWERED, _copied(portable(named))))
    return Answer(How.ANSWERED, Stage.RUN, True, replies=tuple(replies))


def _is_unable(error: Exception) -> bool:
    """Whether an operator of the evaluator lacks a mode or a rank, which it says in either way, or
    has NumPy find out one size of a tensor without elements, where that may be any."""
    text = str(error).lower()
    unknown = "cannot reshape array of size 0" in text and "newaxis" in text
    return isinstance(error, NotImplementedError) or "not implemented" in text or unknown


def _declared(value: Any, declared: onnx.TypeProto) -> Any:
    """The output in the type that the network declares; some operators of the reference give it
    another one."""
    if isinstance(value, list):
        return [_declared(each, declared.sequence_type.elem_type) for each in value]
    element = declared.tensor_type.elem_type
    if not element or not isinstance(value, np.ndarray) or value.dtype == object:
        return value
    with np.errstate(all="ignore"):
        return value.astype(onnx.helper.tensor_dtype_to_np_dtype(element))


def _value(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return [_value(each) for each in value]
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array


def _how(error: Exception) -> How:
    text = str(error)
    if isinstance(error, ResourceExhausted | MemoryError):
        return How.NO_MEMORY
    if isinstance(error, Unavailable):
        return How.ENDED
    if any(trace in text for trace in _TRACES):
        return How.BROKEN
    return How.REFUSED if isinstance(error, _FAULTLESS) else How.BROKEN


def _text(error: Exception) -> str:
    if isinstance(error, UnsupportedLayers):
        layers = [layer for layer in error.layers if layer.op_type != "Constant"] or error.layers
        return f"UnsupportedLayers: {layers[0].op_type}: {layers[0].reason}"[:500]
    return f"{type(error).__name__}: {error}"[:500]
