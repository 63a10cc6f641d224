"""The common part of all devices that compute with ONNX Runtime, with any execution provider."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final, TypeAlias
from weakref import WeakKeyDictionary, ref

import onnx_ir as ir
import onnxruntime

from headrace.plugins.cpu.backend import custom_ops, failures, packed, session
from headrace.plugins.cpu.backend.compatibility import Compatibility, identity
from headrace.plugins.cpu.backend.session import OnnxRuntimeSession, Provider, SessionSettings
from headrace.plugins.cpu.backend.shared import SharedSessions
from headrace.plugins.cpu.backend.tensors import TensorConversion
from headrace.plugins.cpu.claims import refusals
from headrace.plugins.cpu.executable_network import SessionNetwork
from headrace.plugins.cpu.guards.network import GuardedNetwork, replaceable
from headrace.plugins.cpu.running.arena import Arena
from headrace.plugins.cpu.running.profiling import Profiler
from headrace.plugins.cpu.running.runs import HostRuns, Runs
from headrace.plugins.cpu.support import LayerSupport, OnnxRuntimeTrials
from headrace.runtime.config.key import config_field
from headrace.runtime.config.schema import Configuration
from headrace.runtime.config.standard_keys import CACHE_DIR
from headrace.runtime.device.cached_load import MakeNetwork
from headrace.runtime.device.compiled_plugin import CompiledPlugin, Support
from headrace.runtime.device.load import LoadResult
from headrace.runtime.device.services import Services
from headrace.runtime.errors import (
    FailedPrecondition,
    HeadraceError,
    Internal,
    UnsupportedLayer,
    UnsupportedLayers,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.extension import merge_functions
from headrace.runtime.network.network import Network
from headrace.runtime.system.allocator import release_memory
from headrace.runtime.system.load_stages import load_stage

_NOT_OPTIMIZED: Final = (
    "not optimised, because ONNX Runtime refuses its own optimised form of this network, or gets "
    "it wrong; requests may take longer"
)

Open: TypeAlias = Callable[[Provider], OnnxRuntimeSession]
"""Opens a session of the network that is being compiled."""
OpenWith: TypeAlias = Callable[[Provider, SessionSettings], OnnxRuntimeSession]
"""The same, with settings."""


class SessionPlugin(CompiledPlugin):
    """The base class of such devices. A sub-class gives the provider and its options, the number of
    requests that run at once, their threads, and the memory for values."""

    backend_version = f"ONNX Runtime {onnxruntime.__version__}"
    network_class: ClassVar[type[SessionNetwork]] = SessionNetwork

    def __init__(self, name: str, services: Services, config: Mapping[str, str]) -> None:
        # The runtime reads the same versions with every provider.
        self._compatibility = Compatibility(name, _loads)
        super().__init__(name, services, config)
        self._shared = SharedSessions(services.weights) if services.weights else None
        self._arenas: WeakKeyDictionary[OnnxRuntimeSession, Arena] = WeakKeyDictionary()
        if added := custom_ops.libraries(self.config):
            _check_libraries(added)

    # -- hooks of the device --

    @abstractmethod
    def _provider(self, config: Configuration) -> Provider:
        """The provider that runs networks with this configuration."""

    def _provider_of(self, network: Network, config: Configuration) -> Provider:
        """The provider that runs this network: one for all, unless a sub-class overrides this."""
        return self._provider(config)

    @abstractmethod
    def _trials(self, config: Configuration) -> OnnxRuntimeTrials:
        """The trials that find out whether single layers run on that provider."""

    def _refusals(self, model: ir.Model) -> Support:
        """Says why the device does not run a layer of the model that the backend loads; None if it
        does."""
        return refusals.reason

    @abstractmethod
    def _at_once(self, config: Configuration) -> int:
        """How many requests of a network with this configuration run at the same time."""

    @abstractmethod
    def _threads(self, config: Configuration, at_once: int) -> int:
        """How many threads one run of such a network may use."""

    @abstractmethod
    def _shown(self, config: Configuration, at_once: int) -> Configuration:
        """The configuration with the values that AUTO stands for."""

    def _runs(
        self, network: Network, config: Configuration, conversion: TensorConversion, opened: Open
    ) -> Runs:
        """How requests run: all of them in one session, unless a sub-class overrides this."""
        certain = network.certain if isinstance(network, GuardedNetwork) else ()
        return HostRuns(opened(self._provider_of(network, config)), conversion, certain)

    # -- networks --

    def _complete(self, network: Network) -> Network:
        """The network with the operators that clients have given the device."""
        functions = self.extensions.functions()
        return merge_functions(network, functions) if functions else network

    def _add_extension(self, functions: Sequence[ir.Function]) -> None:
        """Accepts any functions, because ONNX Runtime inlines local functions."""

    def _support(self, network: Network, config: Configuration) -> Support:
        provider = self._provider(config)
        return LayerSupport(
            network.model,
            self._compatibility,
            self._trials(config),
            self._refusals(network.model),
            lambda model: session.open_model(
                self._compatibility.lowered(model), provider, SessionSettings()
            ),
        )

    def _compile(
        self, network: Network, config: Configuration, token: CancelToken
    ) -> SessionNetwork:
        with load_stage("check"):
            wrong = network.derived(("refused", self), lambda: self._refused(network))
        if wrong:
            raise UnsupportedLayers(self.name, wrong)
        readable = network.derived(
            ("readable", self), lambda: self._compatibility.lowered(network.model)
        )
        source = network.derived(("source", self), lambda: session.source_of(readable))
        shared = self._shared_by(config)
        is_random = bool(network.random_layers)

        def open_session(provider: Provider, settings: SessionSettings) -> OnnxRuntimeSession:
            return packed.open_source(source, provider, settings, token, shared, is_random)

        made = self._made(network, lambda: readable, config, open_session)
        release_memory()  # frees 200 MB of a load of 310 MB, in 5 ms
        return made

    def _shared_by(self, config: Configuration) -> SharedSessions | None:
        return self._shared if config.get(CACHE_DIR) else None

    def _made(
        self,
        network: Network,
        readable: Callable[[], ir.Model],
        config: Configuration,
        open_session: OpenWith,
    ) -> SessionNetwork:
        """Makes a network of the sessions that `open_session` opens.

        Args:
            readable: makes the model as the backend reads it, for a request that is profiled.
        """
        conversion = TensorConversion((*network.inputs, *replaceable(network)), network.outputs)
        share = self._at_once(config)
        threads = self._threads(config, share)
        sessions: list[ref[OnnxRuntimeSession]] = []

        def opened(provider: Provider) -> OnnxRuntimeSession:
            made = open_session(provider, SessionSettings(threads=threads))
            sessions.append(ref(made))
            return made

        runs = self._runs(network, config, conversion, opened)
        profiler = Profiler(network, readable, self._provider_of(network, config), threads)
        executor, shown = self.executor(config), self._shown(config, share)
        there = [each for each in (one() for one in sessions) if each is not None]
        arena = self._arenas.setdefault(there[0], Arena(self.services.timer, sessions))
        compiled = self.network_class(
            network, shown, executor, share, runs, conversion, profiler, arena
        )
        compiled.optimized = all(each.optimized for each in there)
        compiled.kept = there[0].digest if len(there) == 1 else ""
        compiled.maps_weights = all(each.digest for each in there)
        return compiled

    def _refused(self, network: Network) -> list[UnsupportedLayer]:
        refusal = self._refusals(network.model)
        return [
            UnsupportedLayer(node.name or "", node.op_type, reason)
            for node in network.nodes()
            if (reason := refusal(node)) is not None
        ]

    def _anew(self, network: MakeNetwork, config: Configuration, token: CancelToken) -> LoadResult:
        return _noted(super()._anew(network, config, token))

    def _restore(
        self, native: bytes, network: MakeNetwork, config: Configuration, token: CancelToken
    ) -> LoadResult:
        return _noted(super()._restore(native, network, config, token))


def _noted(made: LoadResult) -> LoadResult:
    if isinstance(made.network, SessionNetwork) and not made.network.optimized:
        return replace(made, notes=(*made.notes, _NOT_OPTIMIZED))
    return made


def _check_libraries(libraries: tuple[str, ...]) -> None:
    """Checks that sessions can use the libraries.

    Raises:
        FailedPrecondition: one is missing or broken, or two have operators of one domain.
    """
    try:
        session.open_bytes(identity(8, {"": 7}), Provider(libraries=libraries), SessionSettings())
    except Internal as error:
        name = custom_ops.CUSTOM_OPS_LIBRARIES.name
        why = error.message.removeprefix(failures.REFUSED)
        raise FailedPrecondition(
            f"{name} cannot be used together: {why}", field=config_field(name)
        ) from error


def _loads(model: bytes) -> bool:
    try:
        session.open_bytes(model, Provider(), SessionSettings())
    except HeadraceError:
        return False
    return True
