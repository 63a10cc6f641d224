"""The device: what it is called, what it can do, and how a network is made for it."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Final

import onnx_ir as ir

from headrace.plugins.cpu.backend import custom_ops, packed, saturation
from headrace.plugins.cpu.backend.repairs import needs_repair, repair
from headrace.plugins.cpu.backend.session import OnnxRuntimeSession, Provider, SessionSettings
from headrace.plugins.cpu.claims import contributed, refusals, texts
from headrace.plugins.cpu.claims.apart import apart, refused
from headrace.plugins.cpu.config import SCHEMA
from headrace.plugins.cpu.executable_network import SessionNetwork
from headrace.plugins.cpu.guards import guard_layers
from headrace.plugins.cpu.guards.guards import guard, needs_guard
from headrace.plugins.cpu.guards.network import GuardedNetwork, keeps_int8, work_of
from headrace.plugins.cpu.session_plugin import OpenWith, SessionPlugin
from headrace.plugins.cpu.support import OnnxRuntimeTrials
from headrace.plugins.cpu.transformations import TRANSFORMATIONS, notes_on_float64
from headrace.runtime.config import hints
from headrace.runtime.config.schema import Configuration, Range
from headrace.runtime.config.standard_keys import DISABLE_TRANSFORMATIONS, ISOLATION
from headrace.runtime.device.cached_load import MakeNetwork
from headrace.runtime.device.compiled_plugin import Support
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load, LoadResult
from headrace.runtime.device.metrics import Metric
from headrace.runtime.device.plugin import AS_IT_IS
from headrace.runtime.device.services import Services
from headrace.runtime.errors import FailedPrecondition, UnsupportedLayers
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.intake.naming import name_layers, walk
from headrace.runtime.intake.provenance import Transformation, tracked
from headrace.runtime.isolation.server.own_process import OwnProcess
from headrace.runtime.network.data_oblivious import is_data_oblivious
from headrace.runtime.network.network import Network
from headrace.runtime.network.shapes.ledger import Ledger
from headrace.runtime.network.type_inference import infer_types
from headrace.runtime.system.allocator import release_memory
from headrace.runtime.system.processors import usable_processors
from headrace.runtime.transform.functions import inline_functions
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.transform.query import QueryResult

_LARGE_BYTES: Final = 8 * 2**20
"""What smaller models leave is used by the next load. Giving it back takes some milliseconds."""


class CpuPlugin(SessionPlugin):
    """ONNX Runtime with its execution provider for processors."""

    schema = SCHEMA
    # The provider has no float16 arithmetic: it casts around every layer. One cast of the whole
    # network is better.
    capabilities = ("FP32", "FP64", "INT8")
    compile_checks_support = True
    imports_native = True
    path: ClassVar[str] = "headrace.plugins.cpu:create_plugin"

    def __init__(self, name: str, services: Services, config: Mapping[str, str]) -> None:
        self.full_name = processor_name()
        super().__init__(name, services, config)
        self._is_isolated = services.isolated
        stays = self._is_isolated or ISOLATION.name in self.config.explicit_strings()
        self._beside = None if stays else OwnProcess(self, self.path, self._places)
        self._own_trials = OnnxRuntimeTrials(self._provider(self.config))

    def _device_ids(self) -> list[str]:
        return ["0"]

    def _default_streams(self) -> int:
        return hints.auto_streams(self.config)

    def _metrics(self) -> Mapping[str, Metric]:
        return {"RANGE_FOR_STREAMS": lambda _: Range(1, usable_processors())}

    # -- networks that need a process of their own --

    def query_network(
        self, network: Network, config: Mapping[str, str], options: NetworkOptions = AS_IT_IS
    ) -> QueryResult:
        given = self._complete(network)
        if self._beside is None or (why := apart(given, self.services.cache).why) is None:
            return super().query_network(network, config, options)
        answer = self._beside.query_network(given, config, options)
        kept_out = [
            refusal
            for refusal in refused(given, self.services.cache)
            if refusal.layer in answer.supported_layers
        ]
        for refusal in kept_out:
            del answer.supported_layers[refusal.layer]
        return replace(
            answer,
            unsupported=[*answer.unsupported, *kept_out],
            notes=answer.notes if kept_out else (*answer.notes, self._note(why)),
        )

    def load_network(self, load: Load) -> ExecutableNetwork:
        given = self._complete(load.network)
        if self._beside is None or (why := apart(given, self.services.cache).why) is None:
            return super().load_network(load)
        if kept_out := refused(given, self.services.cache):
            raise UnsupportedLayers(self.name, kept_out)
        notes = (*load.notes, self._note(why))
        return self._beside.load_network(replace(load, network=given, notes=notes))

    def _note(self, why: str) -> str:
        return f"it runs in a process of its own, beside the other networks of {self.name}: {why}"

    def set_config(self, changes: Mapping[str, str]) -> None:
        super().set_config(changes)
        if self._started and self._beside is not None:
            self._beside.set_config(changes)

    def kill(self) -> None:
        super().kill()
        if self._beside is not None:
            self._beside.kill()

    def _close(self) -> None:
        if self._beside is not None:
            self._beside.close()
        super()._close()

    # -- networks in the server's process --

    def transform_network(
        self, network: Network, config: Configuration, options: NetworkOptions
    ) -> Network:
        """Transforms the network as every device does, and then repairs and guards it. The last two
        happen whatever the configuration says."""
        transformed = super().transform_network(network, config, options)
        model = transformed.model
        if _changes_functions(model):
            tracked(model, inline_functions)
            infer_types(model)
            name_layers(model.graph)
        exact = () if config.get(DISABLE_TRANSFORMATIONS) else saturation.note(model)
        notes = (*transformed.notes, *notes_on_float64(model), *exact)
        if any(map(needs_repair, walk(model.graph))):
            tracked(model, repair)
        guarded = guard(model)
        ledger = Ledger(tuple(guarded.requirements)) if guarded.requirements else None
        oblivious = is_data_oblivious(model)
        certain = guarded.sizes.certain_outputs() if oblivious else ()
        return GuardedNetwork(model, notes, oblivious, certain, ledger)

    def _transformations(self, config: Configuration) -> Sequence[Transformation]:
        return TRANSFORMATIONS

    def _provider(self, config: Configuration) -> Provider:
        return Provider(libraries=custom_ops.libraries(config))

    def _provider_of(self, network: Network, config: Configuration) -> Provider:
        kept = not config.get(DISABLE_TRANSFORMATIONS) and saturation.saturates()
        return replace(self._provider(config), keeps_int8=kept and keeps_int8(network))

    def _refusals(self, model: ir.Model) -> Support:
        refusal = super()._refusals(model)
        if self._is_isolated:
            return refusal
        kept = texts.TextCounts(model)

        def reason(node: ir.Node) -> str | None:
            return (
                refusal(node)
                or contributed.reason(node)
                or (kept.refusal if kept.refusal and kept.by(node) else None)
            )

        return reason

    def _trials(self, config: Configuration) -> OnnxRuntimeTrials:
        return self._own_trials

    def _compile(
        self, network: Network, config: Configuration, token: CancelToken
    ) -> SessionNetwork:
        """Compiles with the streams and threads that the network has work for. Refuses a network
        with a layer that fails in every run."""
        why = network.derived("certain failure", lambda: _certain_failure(network.model))
        if why is not None:
            raise FailedPrecondition(why, field="model")
        return super()._compile(network, self._chosen(network, config), token)

    def _reopen(
        self, native: bytes, network: MakeNetwork, config: Configuration, token: CancelToken
    ) -> SessionNetwork:
        """Opens the file of weights that the network had, without its graph."""
        functions = self.extensions.functions()

        def whole() -> Network:
            if self.extensions.functions() != functions:
                raise FailedPrecondition(
                    f"{self.name} was given operators since the network was loaded, so its graph "
                    "cannot be told; load it again",
                    field="network",
                )
            return network()

        try:
            entry = json.loads(native)
            if not self._is_isolated and entry["isolated"] is not False:
                raise ValueError("it was made in a process that refuses fewer layers")
            known = GuardedNetwork.from_json(entry["network"], whole)
            digest, is_safe = str(entry["weights"]), entry["optimized"] is True
        except (KeyError, TypeError, ValueError) as error:
            raise FailedPrecondition(f"it cannot be used: {error}", field="blob") from error

        def open_session(provider: Provider, settings: SessionSettings) -> OnnxRuntimeSession:
            opened = packed.open_kept(
                digest,
                is_safe,
                provider,
                settings,
                token,
                self._shared_by(config),
                bool(known.random_layers),
            )
            if opened is None:
                raise FailedPrecondition("its weights are not in the cache any more", field="blob")
            return opened

        made = self._made(
            known,
            lambda: self._compatibility.lowered(known.model),
            self._chosen(known, config),
            open_session,
        )
        if known.weight_bytes >= _LARGE_BYTES:
            release_memory()  # in which the model's file was read
        return made

    def _made(
        self,
        network: Network,
        readable: Callable[[], ir.Model],
        config: Configuration,
        open_session: OpenWith,
    ) -> SessionNetwork:
        made = super()._made(network, readable, config, open_session)
        made.is_isolated = self._is_isolated
        if isinstance(network, GuardedNetwork):
            made.inputs_may_change = network.is_oblivious
            made.ledger = network.ledger
        return made

    def _notes(self, made: LoadResult, network: MakeNetwork) -> tuple[str, ...]:
        return made.network.network.notes if made.restored else super()._notes(made, network)

    def _chosen(self, network: Network, config: Configuration) -> Configuration:
        """The configuration with the streams and threads that the network has work for."""
        work = work_of(network)
        return hints.chosen(config, min(hints.streams(config, work), self.streams()), work)

    def _at_once(self, config: Configuration) -> int:
        return min(hints.streams(config), self.streams())

    def _threads(self, config: Configuration, at_once: int) -> int:
        return hints.threads_of_a_run(config, at_once)

    def _shown(self, config: Configuration, at_once: int) -> Configuration:
        return hints.chosen(config, at_once)


def _certain_failure(model: ir.Model) -> str | None:
    """Why a layer of the model fails in every run; None if none does."""
    failures = (guard_layers.certain(node) for node in walk(model.graph))
    return next((why for why in failures if why is not None), None)


def _changes_functions(model: ir.Model) -> bool:
    """Whether functions have layers to repair or guard. Such functions must be inlined, because
    nothing is known about the values in a function. So must those that are named as an operator of
    the backend is, because it would run the operator."""
    return any(contributed.is_domain(each.domain) for each in model.functions.values()) or any(
        needs_guard(node)
        or needs_repair(node)
        or refusals.has_rule(node)
        or contributed.is_contributed(node)
        for function in model.functions.values()
        for node in function.all_nodes()
    )


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, or its architecture if the system does not tell the name."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
