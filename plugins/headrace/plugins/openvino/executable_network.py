"""A network on the device. OpenVINO runs the shapes that it has compiled, and CPU the others."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from headrace.plugins.openvino.backend.compilation import Compilation
from headrace.plugins.openvino.backend.sizes import Key, key_of, of_key, sizing_inputs, text_of
from headrace.plugins.openvino.config import COMPILED_SHAPES, FALLBACK, NO
from headrace.plugins.openvino.running.comparison import differing, tells
from headrace.plugins.openvino.running.compiles import Compiles
from headrace.plugins.openvino.running.shapes import (
    COMPILING,
    EMPTY,
    UNCLAIMED,
    VALUES,
    CompileBudget,
    ShapeChoice,
    ShapeTable,
)
from headrace.runtime.config.schema import Configuration, ParameterValue
from headrace.runtime.config.standard_keys import INFERENCE_PRECISION_HINT
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import FailedPrecondition, Internal, InvalidArgument, UnsupportedLayer
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.streams_executor import StreamsExecutor
from headrace.runtime.metrics.counters import NetworkCounters
from headrace.runtime.metrics.series import Family
from headrace.runtime.network.network import Layer, Network

_log = logging.getLogger(__name__)

FALLBACK_REQUESTS: Final = Family(
    "fallback_requests_total",
    "counter",
    ("device", "reason"),
    "Requests to OPENVINO that CPU ran, by reason: compiling, unclaimed, empty, slower, differed, "
    "values.",
)
_MOST_NOTES: Final = 100
_MOST_NAMED: Final = 5
_NOTE: Final = (
    "CPU runs each shape until OpenVINO has compiled it, and has answered as CPU does and no "
    "slower: see the metrics COMPILED_SHAPES and FALLBACK_SHAPES"
)

Compile = Callable[[Network], Compilation]


class OpenVinoNetwork(ExecutableNetwork):
    """Thread-safe. Neither device is `inline_safe`, because the thread's processor time says little
    about a run on OpenVINO.

    Args:
        compiles: compiles shapes beside the requests.
        compile_with: compiles the network with known sizes.
        compilation: of the network's own shapes, if it says all of them.
        unclaimed: the layers that OPENVINO does not claim. If there are any, CPU runs the network.
    """

    def __init__(
        self,
        network: Network,
        config: Configuration,
        executor: StreamsExecutor,
        streams: int,
        compiles: Compiles,
        compile_with: Compile,
        compilation: Compilation | None,
        unclaimed: Sequence[UnsupportedLayer] = (),
    ) -> None:
        super().__init__(network, config, executor, streams=streams)
        self._cpu: ExecutableNetwork
        self._compiles = compiles
        self._compile_with = compile_with
        self._unclaimed = unclaimed
        self._waits = config[FALLBACK] == NO
        self._precision: str = config[INFERENCE_PRECISION_HINT]
        self._sizing = sizing_inputs(network)
        budget = None if self._waits else CompileBudget()
        self._shapes: ShapeTable[Key, Compilation] = ShapeTable(config[COMPILED_SHAPES], budget)
        self._ready = threading.Lock()  # held while a request waits for a compile
        self._is_fixed = compilation is not None
        if compilation is not None:
            shapes = (tuple(map(int, port.shape or ())) for port in network.inputs)  # type: ignore[arg-type]
            self._shapes.compiled(tuple((shape, b"") for shape in shapes), compilation, 0.0)
        self._why: dict[Key, str] = {}
        self._counters: NetworkCounters | None = None

    def stand_on(self, cpu: ExecutableNetwork) -> None:
        """Gives it the same network on CPU, before it is opened. It belongs to this one.

        Raises:
            Internal: CPU gives the network other inputs or outputs.
        """
        self._cpu = cpu
        if _ports(cpu) != _ports(self):
            raise Internal("CPU gives the network other inputs or outputs")

    @property
    def load_notes(self) -> tuple[str, ...]:
        """What a load tells whoever asked for it."""
        if not self._unclaimed:
            return (_NOTE,)
        named = list(dict.fromkeys(each.op_type for each in self._unclaimed))
        return (
            f"CPU runs the whole network, because OPENVINO does not claim {len(self._unclaimed)} "
            f"layer(s): {', '.join(named[:_MOST_NAMED])}; the metric FALLBACK_LAYERS lists them",
        )

    def count_as(self, name: str, counters: NetworkCounters) -> None:
        super().count_as(name, counters)
        self._counters = counters

    # -- requests --

    def _infer(self, job: Job) -> None:
        if self._unclaimed:
            self._run_on_cpu(job, UNCLAIMED, "it has layers that OPENVINO does not claim")
            return
        key = key_of(self.network, job.inputs, self._sizing)
        if key is None:
            self._run_on_cpu(
                job, EMPTY, "an input has no elements, or sizes follow from a long one"
            )
            return
        choice = self._shapes.ask(key)
        if choice.compilation is None and self._waits:
            choice = self._compiled_now(key, job)
        if choice.compilation is None:
            self._run_on_cpu(job, choice.reason, self._why.get(key, choice.reason))
            if choice.reason == COMPILING and self._shapes.answered(key):
                self._compile_later(key, job)
        elif choice.trial and not self._waits and not tells(job.inputs):
            self._run_on_cpu(job, COMPILING, COMPILING)
        elif choice.trial:
            self._try(job, key, choice.compilation)
        else:
            try:
                job.outputs = choice.compilation.run(job, self.place.device)
            except Exception as error:
                if job.token.error is not None or self._waits:
                    raise
                self._run_on_cpu(job, VALUES, str(error))

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

    def _try(self, job: Job, key: Key, compilation: Compilation) -> None:
        """Runs the job on CPU, which answers it, and then on OpenVINO."""
        began = time.monotonic()
        self._cpu.compute(job)
        answered = time.monotonic()
        if job.token.error is not None:
            return
        why = ""
        try:
            found = compilation.run(job, self.place.device, trial=True)
        except InvalidArgument:
            return  # the values are none for OpenVINO, which says nothing about others
        except Exception as error:  # noqa: BLE001 - the job has its answer
            if job.token.cancelled:
                return
            why = f"it failed: {error}"
        ended = time.monotonic()
        if not why and (name := differing(found, job.outputs, self._precision)):
            why = f"output {name!r} differs from CPU's"
        seconds = ended - answered, answered - began
        decided = self._shapes.tried(key, compilation, seconds, equal=not why)
        if decided:
            self._tell(key, f"{decided}: {why}" if why else decided)

    # -- compiles --

    def _compiled_now(self, key: Key, job: Job) -> ShapeChoice[Compilation]:
        with self._ready:
            if self._shapes.begin(key):
                self._compile(key, of_key(self.network, key, job.inputs))
        return self._shapes.ask(key)

    def _compile_later(self, key: Key, job: Job) -> None:
        network = of_key(self.network, key, job.inputs)
        self._compiles.start(self, lambda: self._compile(key, network))

    def _compile(self, key: Key, network: Network) -> None:
        began = time.monotonic()
        try:
            compilation = self._compile_with(network)
        except Exception as error:  # noqa: BLE001 - whatever OpenVINO says, CPU runs the shape
            self._shapes.refused(key, time.monotonic() - began)
            self._tell(key, f"{UNCLAIMED}: {error}")
        else:
            self._shapes.compiled(key, compilation, time.monotonic() - began)

    def _tell(self, key: Key, why: str) -> None:
        _log.info("%s: %s stays on CPU: %s", self.name or "a network", text_of(key), why)
        if len(self._why) < _MOST_NOTES:
            self._why[key] = why

    # -- what it says of itself --

    def _metrics(self) -> Mapping[str, Callable[[], ParameterValue]]:
        return {
            "COMPILED_SHAPES": lambda: [text_of(key) for key, _ in self._shapes.compilations()],
            "FALLBACK_LAYERS": lambda: [
                f"{each.layer} ({each.op_type}): {each.reason}" for each in self._unclaimed
            ],
            "FALLBACK_SHAPES": lambda: [
                f"{text_of(key)}: {self._why.get(key, why)}"
                for key, why in self._shapes.left_to_cpu()
            ],
        }

    def _layers(self) -> tuple[Layer, ...]:
        """The graph of the shape that OpenVINO has run last, or that CPU runs."""
        found = self._shapes.compilations()
        return tuple(found[-1][1].graph.values()) if found else self._cpu.layers()

    def _export(self) -> bytes:
        """The compilation of a network that says all its sizes. There is none if CPU is faster."""
        found = self._shapes.compilations() if self._is_fixed else []
        return found[0][1].export() if found else b""

    @property
    def compilations(self) -> int:
        """How many shapes are compiled. Each has the weights once more."""
        return len(self._shapes.compilations())

    def _close(self) -> None:
        self._compiles.forget(self)
        self._shapes.clear()
        if hasattr(self, "_cpu"):
            self._cpu.close()
        del self._compile_with  # it keeps the network alive


def _ports(network: ExecutableNetwork) -> list[tuple[object, ...]]:
    return [(each.name, each.dtype, each.kind) for each in (*network.inputs, *network.outputs)]
