"""A network on the device. OpenVINO runs the shapes that it has compiled, and CPU the others."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Final, TypeAlias

import numpy as np

from headrace.plugins.openvino.backend.compilation import Compilation
from headrace.plugins.openvino.backend.sizes import (
    Key,
    fixed_shapes,
    key_of,
    of_key,
    sizing_inputs,
    text_of,
)
from headrace.plugins.openvino.config import COMPILED_SHAPES, FALLBACK, NO
from headrace.plugins.openvino.running.comparison import differing, tells
from headrace.plugins.openvino.running.compiles import Compiles
from headrace.plugins.openvino.running.parts import Parts
from headrace.plugins.openvino.running.shapes import (
    COMPILING,
    EMPTY,
    SLOWER,
    TRIALS,
    UNCLAIMED,
    VALUES,
    CompileBudget,
    ShapeChoice,
    ShapeRow,
    ShapeTable,
)
from headrace.runtime.config.schema import Configuration, ParameterValue
from headrace.runtime.config.standard_keys import DEVICE_ID, INFERENCE_PRECISION_HINT
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.services import Risks
from headrace.runtime.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    UnsupportedLayer,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.streams_executor import StreamsExecutor
from headrace.runtime.isolation.server.blame import Work
from headrace.runtime.metrics.counters import NetworkCounters
from headrace.runtime.metrics.series import Family
from headrace.runtime.network.graph import RunningShape
from headrace.runtime.network.network import Layer, Network
from headrace.runtime.system.allocator import release_memory
from headrace.runtime.system.process_memory import proportional_bytes

_log = logging.getLogger(__name__)

FALLBACK_REQUESTS: Final = Family(
    "fallback_requests_total",
    "counter",
    ("device", "reason"),
    "Requests to OPENVINO that CPU ran, by reason: compiling, unclaimed, empty, slower, differed, "
    "values.",
)
_MOST_NOTES: Final = 100
_MOST_SHAPES: Final = 32
_MOST_NAMED: Final = 5
_NOTE: Final = (
    "CPU runs each shape until OpenVINO has compiled it, and has answered as CPU does and no "
    "slower: see the metrics COMPILED_SHAPES and FALLBACK_SHAPES"
)

_ENDED: Final = "its compile ended the process of the device"
_UNCLAIMED: Final = "it has layers that OPENVINO does not claim"
_MOST_ENDS: Final = 3
"""So many shapes of a network may end the process. Then no more of its shapes are compiled."""

Compile = Callable[..., Compilation]
Runner: TypeAlias = Compilation | Parts


class OpenVinoNetwork(ExecutableNetwork):
    """Thread-safe. Neither device is `inline_safe`, because the thread's processor time says little
    about a run on OpenVINO.

    Args:
        compiles: compiles shapes beside the requests.
        compile_with: compiles the network with known sizes.
        compilation: of the network's own shapes, if it says all of them.
        unclaimed: the layers that OPENVINO does not claim. If there are any, CPU runs the network,
            or OPENVINO and CPU run parts of it.
        risks: remembers the compiles that have ended the process; None if it would be the server's.
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
        risks: Risks | None = None,
    ) -> None:
        super().__init__(network, config, executor, streams=streams)
        self._cpu: ExecutableNetwork
        self._parts: Parts | None = None
        self._compiles = compiles
        self._compile_with = compile_with
        self.unclaimed = unclaimed
        self._risks = risks
        self._waits = config[FALLBACK] == NO
        self._precision: str = config[INFERENCE_PRECISION_HINT]
        self._sizing = sizing_inputs(network)
        budget = None if self._waits else CompileBudget()
        self._shapes: ShapeTable[Key, Runner] = ShapeTable(config[COMPILED_SHAPES], budget)
        self._ready = threading.Lock()  # held while a request waits for a compile
        self._is_fixed = compilation is not None
        if compilation is not None:
            self._shapes.compiled(self._own_key(), compilation, 0.0)
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
        make = partial(self._compile_with, self.network, token=token)
        error = self._compile(self._own_key(), make)
        if token.error is not None:
            raise token.error
        if error is not None and self._waits:
            raise error
        self._is_fixed = error is None

    def _own_key(self) -> Key:
        shapes = fixed_shapes(self.network)
        assert shapes is not None
        return tuple((shapes[port.name], b"") for port in self.network.inputs)

    def stand_on(self, cpu: ExecutableNetwork) -> None:
        """Gives it the same network on CPU, before it is opened. It belongs to this one.

        Raises:
            Internal: CPU gives the network other inputs or outputs.
        """
        self._cpu = cpu
        if _ports(cpu) != _ports(self):
            raise Internal("CPU gives the network other inputs or outputs")

    def split(self, parts: ExecutableNetwork) -> None:
        """Gives it the same network split over OPENVINO and CPU, to run the shapes that this is
        faster for. It belongs to this one."""
        self._parts = Parts(parts)

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
            f"CPU runs each shape of the whole network until {self._parts.text} have answered as "
            "it does and no slower: see the metrics COMPILED_SHAPES and FALLBACK_SHAPES",
            layers,
        )

    def count_as(self, name: str, counters: NetworkCounters) -> None:
        super().count_as(name, counters)
        self._counters = counters

    # -- requests --

    def _infer(self, job: Job) -> None:
        if self.unclaimed and self._parts is None:
            self._run_on_cpu(job, UNCLAIMED, _UNCLAIMED)
            return
        key = key_of(self.network, job.inputs, self._sizing)
        if key is None:
            self._run_on_cpu(
                job, EMPTY, "an input has no elements, or sizes follow from a long one"
            )
            return
        choice = self._shapes.ask(key)
        if choice.compilation is None and (self._waits or self._compiles.is_here()):
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

    def _try(self, job: Job, key: Key, compilation: Runner) -> None:
        """Runs the job on CPU, which answers it, and then on OpenVINO."""
        began = time.monotonic()
        self._cpu.compute(job)
        theirs = time.monotonic() - began
        if job.token.error is not None:
            return
        why, is_first = "", self._parts is None and self._shapes.runs_first(key)
        before = proportional_bytes() if is_first else 0  # the first run takes memory, too
        began = time.monotonic()
        try:
            found = compilation.run(job, self.place.device, trial=True)
        except InvalidArgument as error:  # the values are none for OpenVINO
            if self._shapes.misfit(key, compilation):
                self._tell(key, f"{VALUES}: {error}")
            return
        except Exception as error:  # noqa: BLE001 - the job has its answer
            if job.token.cancelled:
                return
            why = f"it failed: {error}"
        ours = time.monotonic() - began
        if is_first:
            self._shapes.takes(key, max(0, proportional_bytes() - before))
        why = why or differing(found, job.outputs, self._precision) or ""
        decided = self._shapes.tried(key, compilation, (ours, theirs), equal=not why)
        if decided == SLOWER:
            why = self._times(key)
        if decided:
            self._tell(key, f"{decided}: {why}")

    def _times(self, key: Key) -> str:
        where = self._parts.text if self._parts is not None else "OpenVINO"
        ours, theirs = (each * 1e3 for each in self._shapes.best(key))
        return f"at best {ours:.3g} ms on {where}, {theirs:.3g} ms on CPU"

    # -- compiles --

    def _compiled_now(self, key: Key, job: Job) -> ShapeChoice[Runner]:
        with self._ready:
            if self._shapes.begin(key):
                self._compile(key, self._making(key, job))
        return self._shapes.ask(key)

    def _compile_later(self, key: Key, job: Job) -> None:
        make = self._making(key, job)
        self._compiles.start(self, lambda: self._compile(key, make))

    def _making(self, key: Key, job: Job) -> Callable[[], Runner]:
        """Makes what runs requests like this one. It does not refer to the job's memory."""
        if self._parts is None:
            return partial(self._compile_with, of_key(self.network, key, job.inputs))
        inputs = {name: np.array(value) for name, value in job.inputs.items()}
        return partial(self._parts.settled, inputs, job.output_names, TRIALS)

    @contextmanager
    def _at_risk(self, key: Key) -> Iterator[None]:
        """Within it, the end of the process is put down to the shape.

        Raises:
            FailedPrecondition: processes have ended over it: over this shape of a network of this
                structure, or over several others of them.
        """
        if self._risks is None:
            yield
            return
        risk = f"{self._structure} {hashlib.sha256(repr(key).encode()).hexdigest()}"
        ended = [each for each in self._risks.ended if each.startswith(self._structure)]
        if risk in ended or len(ended) >= _MOST_ENDS:
            raise FailedPrecondition(_ENDED, field="model")
        with self._risks.taking(risk):
            yield

    @cached_property
    def _structure(self) -> str:
        """A digest of the network, without names."""
        return Work(self.network, self.config[DEVICE_ID], "compiled").model()

    def _compile(self, key: Key, make: Callable[[], Runner]) -> Exception | None:
        """Compiles a shape. Returns why it cannot be compiled: then CPU runs it."""
        release_memory()  # otherwise it would seem as if the compile gave it back
        began, before = time.monotonic(), proportional_bytes()
        try:
            with self._at_risk(key):
                compilation = make()
        except Exception as error:  # noqa: BLE001 - whatever OpenVINO says, CPU runs the shape
            self._shapes.refused(key, time.monotonic() - began)
            self._tell(key, f"{UNCLAIMED}: {error}")
            return error
        given_back = self._shapes.compiled(key, compilation, time.monotonic() - began)
        release_memory()  # which the compile used, and that of the compilation that made room
        if self._parts is None:  # which are networks of their own, and have measured theirs
            self._shapes.takes(key, max(0, proportional_bytes() - before + given_back))
        return None

    def _tell(self, key: Key, why: str) -> None:
        _log.info("%s: %s stays on CPU: %s", self.name or "a network", text_of(key), why)
        if len(self._why) < _MOST_NOTES:
            self._why[key] = why

    # -- what it says of itself --

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

    def shapes(self) -> tuple[RunningShape, ...]:
        if self.unclaimed and self._parts is None:
            return (RunningShape("all", "CPU", _UNCLAIMED, 0),)
        return tuple(map(self._shown, self._shapes.latest(_MOST_SHAPES)))

    def _shown(self, row: ShapeRow[Key]) -> RunningShape:
        key, why = row.key, row.why
        if row.compiled:
            why = self._times(key) if row.trials else "compiled"
            why = why if row.trials in (0, TRIALS) else f"trial {row.trials} of {TRIALS}: {why}"
            device = self._parts.text if self._parts is not None else self.place.device
        else:
            why = self._why.get(key, why or f"{COMPILING}: answered {row.answers} time(s)")
            device = "CPU"
        return RunningShape(text_of(key), device, why, row.taken_bytes)

    def _layers(self) -> tuple[Layer, ...]:
        """The graph of the shape that OpenVINO has run last, or that CPU runs."""
        found = self._shapes.compilations()
        return tuple(found[-1][1].graph.values()) if found else self._cpu.layers()

    def _export(self) -> bytes:
        """The compilation of a network that says all its sizes. There is none if CPU is faster."""
        found = self._shapes.compilations() if self._is_fixed else []
        return found[0][1].export() if found else b""

    @property
    def compiled_bytes(self) -> int:
        """By how much the compiles of the shapes that are compiled have let the process grow."""
        return self._shapes.taken_bytes()

    def _close(self) -> None:
        if self._parts is not None:
            self._parts.stop()
        self._compiles.forget(self)
        self._shapes.clear()
        if self._parts is not None:
            self._parts.close()
        if hasattr(self, "_cpu"):
            self._cpu.close()
        del self._compile_with  # it keeps the network alive


def _ports(network: ExecutableNetwork) -> list[tuple[object, ...]]:
    return [(each.name, each.dtype, each.kind) for each in (*network.inputs, *network.outputs)]
