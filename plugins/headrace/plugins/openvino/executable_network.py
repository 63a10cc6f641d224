"""A network on the device. OpenVINO runs the shapes that it has compiled, and CPU the others."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Final, TypeVar

import numpy as np

from headrace.plugins.openvino.config import COMPILED_SHAPES, FALLBACK, NO
from headrace.plugins.openvino.running.held_network import HeldNetwork
from headrace.plugins.openvino.running.shapes import (
    COMPILING,
    DOWN,
    EMPTY,
    MOST_TRIALS,
    SLOWER,
    UNCLAIMED,
    VALUES,
    CompileBudget,
    ShapeChoice,
    ShapeRow,
    ShapeTable,
)
from headrace.plugins.openvino.sizes import (
    Key,
    fixed_shapes,
    key_of,
    of_key,
    sizing_inputs,
    text_of,
)
from headrace.runtime.config.schema import Configuration, ParameterValue
from headrace.runtime.config.standard_keys import EXECUTION_TIMEOUT, INFERENCE_PRECISION_HINT
from headrace.runtime.device.executable_network import ExecutableNetwork, Place
from headrace.runtime.errors import (
    Cancelled,
    EndedWorker,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    Unavailable,
    UnsupportedLayer,
)
from headrace.runtime.execution.background import Background
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.execution_timeout import Patience
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.stages import StageRunner
from headrace.runtime.execution.streams_executor import StreamsExecutor
from headrace.runtime.intake.naming import walk
from headrace.runtime.intake.provenance import origins
from headrace.runtime.metrics.counters import NetworkCounters
from headrace.runtime.metrics.series import Family
from headrace.runtime.network.comparison import differing, tells
from headrace.runtime.network.graph import RunningShape
from headrace.runtime.network.network import Layer, Network
from headrace.runtime.network.values import Value
from headrace.runtime.system.asker import asking, current_asker
from headrace.runtime.system.graph_memory import free_graphs

_log = logging.getLogger(__name__)

FALLBACK_REQUESTS: Final = Family(
    "fallback_requests_total",
    "counter",
    ("device", "reason"),
    "Requests to OPENVINO that CPU ran, by reason: compiling, unclaimed, empty, slower, differed, "
    "values, down.",
)
_MOST_NOTES: Final = 100
_MOST_SHAPES: Final = 32
_MOST_NAMED: Final = 5
_NOTE: Final = (
    "CPU runs each shape until OpenVINO has compiled it, and has answered as CPU does and no "
    "slower: see the metrics COMPILED_SHAPES and FALLBACK_SHAPES"
)

_ENDED: Final = "compiles of its shapes have ended the process of the device"
_UNCLAIMED: Final = "it has layers that OPENVINO does not claim"
_NO_KEY: Final = "an input has no elements, or sizes follow from a long one"
_MOST_ENDS: Final = 3
"""So many shapes of a network may end the process. Then no more of its shapes are compiled."""
_PATIENCE_SECONDS: Final = 2.0
"""How long a run may go on after its EXECUTION_TIMEOUT has cancelled it. Then whatever runs it may
be ended."""

Compile = Callable[..., ExecutableNetwork]
_T = TypeVar("_T")


class OpenVinoNetwork(ExecutableNetwork):
    """Thread-safe: `_ready` is held while a request waits for a compile; single operations on
    dictionaries are atomic.

    A request that CPU runs for certain takes other stages than one that may run on OpenVINO: it
    may run on the thread that submits it, where CPU's own requests may.

    Args:
        compiles: compiles shapes beside the requests.
        compile_with: compiles the network with known sizes, or restores it: loads it onto the
            device that compiles.
        running: what runs jobs now, for all networks of the device. CPU runs those that are not
            there.
        unclaimed: the layers that OPENVINO does not claim. If there are any, CPU runs the network,
            or OPENVINO and CPU run parts of it.
    """

    def __init__(
        self,
        network: Network,
        config: Configuration,
        executor: StreamsExecutor,
        streams: int,
        compiles: Background,
        compile_with: Compile,
        running: dict[Job, HeldNetwork],
        unclaimed: Sequence[UnsupportedLayer] = (),
    ) -> None:
        super().__init__(network, config, executor, streams=streams)
        self._cpu: ExecutableNetwork
        self._parts: HeldNetwork | None = None
        self._compiles = compiles
        self._compile_with = compile_with
        self._running = running
        self.unclaimed = unclaimed
        self._waits = config[FALLBACK] == NO
        self._precision: str = config[INFERENCE_PRECISION_HINT]
        self._sizing = sizing_inputs(network)
        budget = None if self._waits else CompileBudget()
        self._shapes: ShapeTable[Key, HeldNetwork] = ShapeTable(
            config[COMPILED_SHAPES], budget, len(network.inputs)
        )
        self._ready = threading.Lock()
        self._is_fixed = False
        self._asker = current_asker()
        self._token = CancelToken()  # of compiles
        self._ends = 0
        self._why: dict[Key, str] = {}
        self._counters: NetworkCounters | None = None

    def compile_fixed(self, token: CancelToken) -> None:
        """Compiles the network now, if it says the sizes of all its inputs.

        Raises:
            HeadraceError: with FALLBACK=NO, it does not compile. Otherwise it stays on CPU. Or the
                error that `token` was cancelled with.
        """
        if self.unclaimed or self._sizing or fixed_shapes(self.network) is None:
            return
        error = self._compile(self._own_key(), partial(self._made, self.network, token))
        if token.error is not None:
            raise token.error
        if error is not None and self._waits:
            raise error
        self._is_fixed = error is None

    def restore(self, native: bytes, token: CancelToken) -> None:
        """Restores the compilation of a network that says the sizes of all its inputs.

        Raises:
            HeadraceError: the bytes are not accepted.
        """
        held = self._made(self.network, token, native)
        self._shapes.compiled(self._own_key(), held, 0.0)
        self._is_fixed = True

    def _made(self, network: Network, token: CancelToken, native: bytes = b"") -> HeldNetwork:
        return HeldNetwork(self._compile_with(network, token=token, native=native), "OpenVINO")

    def _own_key(self) -> Key:
        shapes = fixed_shapes(self.network)
        assert shapes is not None
        return tuple((shapes[port.name], b"") for port in self.network.inputs)

    def stand_on(self, cpu: ExecutableNetwork, *, copied: bool) -> None:
        """Gives it the same network on CPU, before it is opened. It belongs to this one.

        Args:
            copied: OpenVINO gets a copy of a request.

        Raises:
            Internal: CPU gives the network other inputs or outputs.
        """
        self._cpu = cpu
        self.inputs_may_change = copied and cpu.inputs_may_change and not self._sizing
        if _ports(cpu) != _ports(self):
            raise Internal("CPU gives the network other inputs or outputs")

    def split(self, parts: ExecutableNetwork) -> None:
        """Gives it the same network split over OPENVINO and CPU, to run the shapes that this is
        faster for. It belongs to this one."""
        self._parts = HeldNetwork(parts, f"{len(parts.subgraphs())} parts on OpenVINO and CPU")

    def open(self, place: Place) -> None:
        super().open(place)
        assert self.executor is not None
        assert self._share is not None
        self._on_cpu = StageRunner(
            [(self._share, self._answer_on_cpu)],
            place.timer,
            execution_timeout=self.config.get(EXECUTION_TIMEOUT),
            inline=self.executor.inline_budget(safe=self._cpu.inline_safe),
            patience=self._cpu.patience(),
        )

    def set_config(self, changes: Mapping[str, str]) -> None:
        super().set_config(changes)
        if not self._closed:
            self._on_cpu.timeout.seconds = self.config.get(EXECUTION_TIMEOUT)

    def patience(self) -> Patience:
        return Patience(_PATIENCE_SECONDS, self._end_run)

    def _end_run(self, job: Job) -> None:
        """Ends by force, where that can be done, what runs a job that does not end by itself. A
        part of it has its token, and began last."""
        running = [
            held.network for each, held in [*self._running.items()] if each.token is job.token
        ]
        patience = (running[-1] if running else self._cpu).patience()
        if patience is not None:
            patience.end(job)

    @property
    def load_notes(self) -> tuple[str, ...]:
        """What a load tells whoever asked for it."""
        if not self.unclaimed:
            stays = (f"{text_of(key)} stays on CPU: {why}" for key, why in self._why.items())
            return (*stays,) or (_NOTE,)
        named = list(dict.fromkeys(each.op_type for each in self.unclaimed))
        layers = (
            f"OPENVINO does not claim {len(self.unclaimed)} layer(s): "
            f"{', '.join(named[:_MOST_NAMED])}; the metric FALLBACK_LAYERS lists them"
        )
        if self._parts is None:
            return (f"CPU runs the whole network: {layers}",)
        return (
            f"CPU runs each shape of the whole network until {self._parts.where} have answered as "
            "it does and no slower: see the metrics COMPILED_SHAPES and FALLBACK_SHAPES",
            layers,
        )

    def count_as(self, name: str, counters: NetworkCounters) -> None:
        super().count_as(name, counters)
        self._counters = counters

    # -- requests --

    def _start(self, job: Job) -> None:
        if not self._waits:
            key = self._key(job)
            choice = self._choice(key)
            if choice.compilation is None:
                job.backend = key, choice.reason
                self._on_cpu.start(job)
                return
        self._runner.start(job)

    def _key(self, job: Job) -> Key | None:
        """What the job's compilation depends on; None if it can have none."""
        if self.unclaimed and self._parts is None:
            return None
        return key_of(self.network, job.inputs, self._sizing)

    def _choice(self, key: Key | None) -> ShapeChoice[HeldNetwork]:
        """What to do with a request. CPU runs one that can have no compilation."""
        if key is not None:
            return self._shapes.ask(key)
        is_unclaimed = self.unclaimed and self._parts is None
        return ShapeChoice(reason=UNCLAIMED if is_unclaimed else EMPTY)

    def _answer_on_cpu(self, job: Job) -> None:
        key, reason = job.backend
        self._leave_to_cpu(job, key, reason)

    def _infer(self, job: Job) -> None:
        key = self._key(job)
        choice = self._taken(key, job)
        held = choice.compilation
        if key is None or held is None:
            self._leave_to_cpu(job, key, choice.reason)
            return
        try:
            if not choice.trial:
                self._run(job, key, held)
            elif self._waits or tells(job.inputs):
                self._try(job, key, held)
            else:
                self._run_on_cpu(job, COMPILING, COMPILING)
        finally:
            held.give_back()

    def _taken(self, key: Key | None, job: Job) -> ShapeChoice[HeldNetwork]:
        """What to do with the job. What runs it is taken."""
        compiles = self._waits or self._compiles.is_here()
        while True:
            choice = self._choice(key)
            if choice.compilation is not None:
                if choice.compilation.take():
                    return choice  # otherwise it has been dropped meanwhile
            elif key is None or choice.reason != COMPILING or not compiles:
                return choice
            else:
                compiles = self._compile_now(key, job)

    def _leave_to_cpu(self, job: Job, key: Key | None, reason: str) -> None:
        """Has CPU run a job, and counts its answer."""
        if key is None:
            self._run_on_cpu(job, reason, _UNCLAIMED if reason == UNCLAIMED else _NO_KEY)
            return
        self._run_on_cpu(job, reason, self._why.get(key, reason))
        if reason == COMPILING and self._shapes.answered(key):
            self._compile_later(key, job)

    def _run_on_cpu(self, job: Job, reason: str, why: str) -> None:
        """
        Raises:
            FailedPrecondition: CPU may not run any requests.
        """
        if self._waits:
            raise FailedPrecondition(
                f"OPENVINO does not run this request: {why}; with {FALLBACK.name}=SHAPES, CPU does",
                field="inputs",
            )
        if self._counters is not None:
            device = self.place.device
            self._counters.series.get(FALLBACK_REQUESTS, device, reason).add(1)
        self._cpu.compute(job)

    def _run(self, job: Job, key: Key, held: HeldNetwork) -> None:
        """Runs the job on OpenVINO, or on CPU if that fails."""
        try:
            self._on(held, job, held.network.compute)
        except Exception as error:
            if job.token.error is not None:
                raise
            lost = self._lose(key, held, error)
            if self._waits:
                raise
            self._run_on_cpu(job, DOWN if lost else VALUES, str(error))
        else:
            if job.layers and held is not self._parts:
                job.layers = [
                    replace(each, origins=self._original(each.origins)) for each in job.layers
                ]

    def _try(self, job: Job, key: Key, held: HeldNetwork) -> None:
        """Runs the job on CPU, which answers it, and then on OpenVINO."""
        began = time.monotonic()
        self._cpu.compute(job)
        theirs = time.monotonic() - began
        if job.token.error is not None:
            return
        why, found = "", dict[str, Value]()
        began = time.monotonic()
        try:
            found.update(self._on(held, job, held.run_beside))
        except InvalidArgument as error:  # the values are none for OpenVINO
            if self._shapes.misfit(key, held):
                self._tell(key, f"{VALUES}: {error}")
                self._drop(held)
            return
        except Exception as error:  # noqa: BLE001 - the job has its answer
            if job.token.cancelled or self._lose(key, held, error):
                return
            why = f"it failed: {error}"
        ours = time.monotonic() - began
        why = why or differing(found, job.outputs, self._precision) or ""
        decided = self._shapes.tried(key, held, (ours, theirs), equal=not why)
        if decided:
            self._tell(key, f"{decided}: {self._times(key) if decided == SLOWER else why}")
            self._drop(held)

    def _on(self, held: HeldNetwork, job: Job, run: Callable[[Job], _T]) -> _T:
        """Has a network run a job."""
        self._running[job] = held
        try:
            return run(job)
        finally:
            del self._running[job]

    def _lose(self, key: Key, held: HeldNetwork, error: Exception) -> bool:
        """Whether the error says that the process has ended. CPU then runs the shape: for good if a
        request of it ended the process, otherwise until it is compiled again."""
        if not isinstance(error, Unavailable | EndedWorker):
            return False
        if held is not self._parts:
            ended = isinstance(error, EndedWorker)
            if self._shapes.lost(key, held, DOWN if ended else ""):
                held.drop()
            if ended:
                self._tell(key, f"{DOWN}: {error}")
        return True

    def forget_compilations(self) -> None:
        """Drops what no longer runs because the process has ended. All shapes are as if new."""
        for key, held in self._shapes.compilations():
            if held is not self._parts and self._shapes.lost(key, held):
                held.drop()

    def _drop(self, held: HeldNetwork) -> None:
        """Drops what a shape does not need any more. All shapes have the same parts."""
        if held is not self._parts:
            held.drop()

    def _times(self, key: Key) -> str:
        where = self._parts.where if self._parts is not None else "OpenVINO"
        ours, theirs = (each * 1e3 for each in self._shapes.typical(key))
        return f"in the median {ours:.3g} ms on {where}, {theirs:.3g} ms on CPU"

    # -- compiles --

    def _compile_now(self, key: Key, job: Job) -> bool:
        """Compiles the shape while the job waits. Returns whether it was this one that did.

        Raises:
            Unavailable: the device's process is being started again.
        """
        with self._ready:
            begun = self._shapes.begin(key)
            error = self._compile(key, self._making(key, job)) if begun else None
        if isinstance(error, Unavailable):
            raise error
        return begun

    def _compile_later(self, key: Key, job: Job) -> None:
        self._compiles.start(self, partial(self._compile, key, self._making(key, job)))

    def _making(self, key: Key, job: Job) -> Callable[[], HeldNetwork]:
        """Makes what runs requests like this one. It does not refer to the job's memory."""
        if self._parts is not None:
            inputs = {name: np.array(value) for name, value in job.inputs.items()}
            return partial(self._parts.settled, inputs, job.output_names, MOST_TRIALS)
        sizes = {
            port.name: np.array(job.inputs[port.name])
            for port, (_, elements) in zip(self.network.inputs, key, strict=True)
            if elements
        }
        return lambda: self._made(of_key(self.network, key, sizes), self._token)

    def _compile(self, key: Key, make: Callable[[], HeldNetwork]) -> Exception | None:
        """Compiles a shape. Returns why it cannot be compiled: then CPU runs it."""
        began = time.monotonic()
        try:
            if self._ends >= _MOST_ENDS:
                raise FailedPrecondition(_ENDED, field="model")
            with asking(self._asker):
                held = make()
        except Unavailable as error:
            self._shapes.postponed(key, time.monotonic() - began)
            _log.info("%s: %s is not compiled now: %s", self._called, text_of(key), error)
            return error
        except Exception as error:  # noqa: BLE001 - whatever OpenVINO says, CPU runs the shape
            self._ends += isinstance(error, EndedWorker)
            self._shapes.refused(key, time.monotonic() - began)
            self._tell(key, f"{UNCLAIMED}: {error}")
            return error
        for dropped in self._shapes.compiled(key, held, time.monotonic() - began):
            self._drop(dropped)
        free_graphs(wait=False)  # of networks that were dropped
        return None

    def _tell(self, key: Key, why: str) -> None:
        _log.info("%s: %s stays on CPU: %s", self._called, text_of(key), why)
        if len(self._why) < _MOST_NOTES:
            self._why[key] = why

    @property
    def _called(self) -> str:
        return self.name or "a network"

    # -- what it says of itself --

    def works(self, up: Mapping[str, bool]) -> bool:
        return super().works(up) if self._waits else self._cpu.works(up)

    def _metrics(self) -> Mapping[str, Callable[[], ParameterValue]]:
        return {
            "COMPILED_SHAPES": lambda: [text_of(key) for key, _ in self._shapes.compilations()],
            "FALLBACK_LAYERS": lambda: [
                f"{each.layer} ({each.op_type}): {each.reason}" for each in self.unclaimed
            ],
            "FALLBACK_SHAPES": lambda: [
                f"{text_of(key)}: {self._why.get(key, why)}"
                for key, why in self._shapes.left_to_cpu()
            ],
        }

    def is_settled(self) -> bool:
        return self._shapes.is_settled()

    def shapes(self) -> tuple[RunningShape, ...]:
        if self.unclaimed and self._parts is None:
            return (RunningShape("all", "CPU", _UNCLAIMED, 0),)
        return tuple(map(self._shown, self._shapes.latest(_MOST_SHAPES)))

    def _shown(self, row: ShapeRow[Key, HeldNetwork]) -> RunningShape:
        key, why, taken_bytes = row.key, row.why, 0
        if row.compilation is not None:
            why = self._times(key) if row.trials else "compiled"
            if row.trials and not row.decided:
                why = f"trial {row.trials} of at most {MOST_TRIALS}: {why}"
            device = self.place.device
            if self._parts is not None:
                device = self._parts.where
            else:
                taken = row.compilation.network.shapes()
                taken_bytes = sum(each.memory_bytes for each in taken)
        else:
            why = self._why.get(key, why or f"{COMPILING}: answered {row.answers} time(s)")
            device = "CPU"
        return RunningShape(text_of(key), device, why, taken_bytes)

    def _layers(self) -> tuple[Layer, ...]:
        """The graph of the shape that OpenVINO has run last, or that CPU runs."""
        for _, held in reversed(self._shapes.compilations()):
            if not held.take():
                continue
            try:
                layers = held.network.layers()
            except (Unavailable, EndedWorker):
                continue  # its process has ended
            finally:
                held.give_back()
            if held is self._parts:
                return layers
            return tuple(replace(each, origins=self._original(each.origins)) for each in layers)
        return self._cpu.layers()

    def _original(self, layers: Sequence[str]) -> tuple[str, ...]:
        """What layers of the transformed network stand for in the network as it was loaded."""
        found = (origin for layer in layers for origin in self._origins.get(layer, ()))
        return tuple(dict.fromkeys(found))

    @cached_property
    def _origins(self) -> Mapping[str, tuple[str, ...]]:
        return {node.name or "": origins(node) for node in walk(self.network.model.graph)}

    def _export(self) -> bytes:
        """The compilation of a network that says all its sizes. There is none if CPU is faster."""
        for _, held in self._shapes.compilations() if self._is_fixed else []:
            if held.take():
                try:
                    return held.network.export()
                finally:
                    held.give_back()
        return b""

    def _close(self) -> None:
        self._token.cancel(Cancelled("the network is unloaded"))
        if self._parts is not None:
            self._parts.drop()
        self._compiles.forget(self)
        for held in self._shapes.clear():
            self._drop(held)
        if hasattr(self, "_cpu"):
            self._cpu.close()
        if runner := vars(self).pop("_on_cpu", None):  # its stage refers to this network
            runner.timeout.close()
        del self._compile_with  # it keeps the network alive


def _ports(network: ExecutableNetwork) -> list[tuple[object, ...]]:
    return [(each.name, each.dtype, each.kind) for each in (*network.inputs, *network.outputs)]
