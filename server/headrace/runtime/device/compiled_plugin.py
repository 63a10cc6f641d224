"""The base of a device that compiles networks itself.

The public methods validate and count. The device implements the hooks with an underscore.
"""

from __future__ import annotations

import json
import logging
import platform
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import ClassVar, Protocol, TypeAlias

import onnx_ir as ir

from headrace.runtime.config.schema import Configuration
from headrace.runtime.config.standard_keys import (
    DISABLE_TRANSFORMATIONS,
    INFERENCE_PRECISION_HINT,
)
from headrace.runtime.device.cached_load import ANEW, Compile, MakeNetwork, cached
from headrace.runtime.device.device import Device
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load, LoadResult
from headrace.runtime.device.plugin import AS_IT_IS
from headrace.runtime.errors import (
    FailedPrecondition,
    HeadraceError,
    Internal,
    InvalidArgument,
    InvalidModel,
    Unavailable,
    Unimplemented,
    UnsupportedLayers,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.extension import merge_functions, write_functions
from headrace.runtime.network.network import Network
from headrace.runtime.system.asker import current_asker
from headrace.runtime.system.load_stages import load_stage
from headrace.runtime.transform.options import NetworkOptions, options_to_json
from headrace.runtime.transform.query import QueryResult, query_network
from headrace.runtime.transform.transform import Transformation, transform_network

_log = logging.getLogger(__name__)

Support: TypeAlias = Callable[[ir.Node], "str | None"]
"""None if the device runs the node, otherwise the reason why it does not."""


class TrialProcesses(Protocol):
    """Processes that serve nobody, in which strangers' models are compiled first. Its methods raise
    as `WorkerTrials.run`."""

    def query(
        self, network: Network, config: Mapping[str, str], options: NetworkOptions
    ) -> QueryResult:
        """Which layers the device supports, as a process says that serves nobody."""

    def load(self, load: Load) -> None:
        """Compiles the network, and forgets it."""

    def extend(self, functions: bytes) -> None:
        """Gives later trials the operators that the device has got."""

    def renew(self) -> None:
        """Has later trials know the device's new configuration."""

    def kill(self) -> None:
        """Ends all processes at once, and for good. Does not block."""


class CompiledPlugin(Device):
    """The base class of a device. A sub-class says the device's name, which layers it supports, and
    how it compiles a network. Thread-safe.

    Args:
        name, services, config, places: as `Device`.
    """

    full_name: str = ""
    architecture: str = platform.machine()
    capabilities: tuple[str, ...] = ("FP32",)
    compile_checks_support: ClassVar[bool] = False
    """Whether `_compile` fails on a layer that the device does not support. If it does not, each
    layer is checked before."""
    trials: TrialProcesses | None = None
    """Where strangers' models are compiled first; None if there is no such place."""

    # -- networks --

    def transform_network(
        self, network: Network, config: Configuration, options: NetworkOptions
    ) -> Network:
        """The network as the device gets it. It is the same for a load and for a query, and depends
        on nothing but the arguments and the extensions: it may be used again, for several loads at
        the same time, so nobody may change it.

        Raises:
            InvalidArgument: the network or the device has no use for an option.
        """
        self._refuse_affinities(options)
        optional = not config.get(DISABLE_TRANSFORMATIONS)
        half = config.get(INFERENCE_PRECISION_HINT) == "f16"
        functions = self.extensions.functions()
        return transform_network(
            merge_functions(network, functions) if functions else network,
            preprocess=(options.inputs, options.outputs),
            common=optional,
            fp16_to_fp32=optional and not half and "FP16" not in self.capabilities,
            device_passes=self._transformations(config) if optional else (),
        )

    def query_network(
        self, network: Network, config: Mapping[str, str], options: NetworkOptions = AS_IT_IS
    ) -> QueryResult:
        if self.trials is not None and not current_asker().trusted:
            return self.trials.query(network, config, options)
        self.schema.refuse_server_keys(config, self.name)
        own = self.config.explicit_strings()
        configuration = self.schema.resolve(own, config, ignore_unknown=True)
        transformed = self._transformed(network, configuration, options)
        return self._query(network, transformed, configuration)

    def load_network(self, load: Load) -> ExecutableNetwork:
        config = self._configuration(load.config)
        make: Compile
        if load.native and self.imports_native:
            make = partial(self._restore, load.native)
        else:
            if self.trials is not None and not current_asker().trusted:
                self.trials.load(load)
            make = cached(self, load, config, self._restore, self._anew)
        return self._opened(load, config, partial(self._compile_checked, load, config, make))

    def add_extension(self, functions: Sequence[ir.Function]) -> None:
        self._add_extension(functions)
        self.extensions.add(functions)
        if self.trials is not None:
            self.trials.extend(write_functions(functions))

    def set_config(self, changes: Mapping[str, str]) -> None:
        super().set_config(changes)
        if self.trials is not None:
            self.trials.renew()

    def close(self) -> None:
        if self.trials is not None:
            self.trials.kill()
        super().close()

    def kill(self) -> None:
        if self.trials is not None:
            self.trials.kill()

    # -- inside --

    def _anew(self, network: MakeNetwork, config: Configuration, token: CancelToken) -> LoadResult:
        return LoadResult(self._compile(network(), config, token))

    def _restore(
        self, native: bytes, network: MakeNetwork, config: Configuration, token: CancelToken
    ) -> LoadResult:
        """Makes the network from the backend's own bytes. It compiles the network if the backend
        does not accept the bytes, for example because its driver has changed."""
        try:
            return LoadResult(self._reopen(native, network, config, token), restored=True)
        except HeadraceError as error:
            if token.error is not None or isinstance(error, Unavailable):
                raise  # nobody waits, or the device is down: the bytes are not at fault
            compiled = self._compile(network(), config, token)
            return LoadResult(compiled, (f"{ANEW}{error.message}",))

    def _reopen(
        self, native: bytes, network: MakeNetwork, config: Configuration, token: CancelToken
    ) -> ExecutableNetwork:
        """As `_import`. A device whose bytes say all of a network overrides it, so that the network
        need not be transformed."""
        return self._import(network(), native, config, token)

    def _compile_checked(self, load: Load, config: Configuration, make: Compile) -> LoadResult:
        network = load.network
        self._refuse_affinities(load.options)  # also of a network that comes from the cache

        @cache
        def transformed() -> Network:
            with load_stage("transform"):
                return self._transformed(network, config, load.options)

        if not self.compile_checks_support:
            self._refuse_unsupported(network, transformed(), config)
        try:
            made = make(transformed, config, load.token)
        except HeadraceError as error:
            if isinstance(error, InvalidArgument | FailedPrecondition | Internal):
                self._refuse_unsupported(network, transformed(), config)
            if isinstance(error, Internal):
                raise InvalidModel(error.message, field="model") from error
            raise
        notes = self._notes(made, transformed)
        for note in notes:
            _log.info("a network on %s: %s", self.name, note)
        return replace(made, notes=(*notes, *made.notes))

    def _notes(self, made: LoadResult, network: MakeNetwork) -> tuple[str, ...]:  # noqa: ARG002
        """What the transformation changed that may show in results."""
        return network().notes

    def _transformed(
        self, network: Network, config: Configuration, options: NetworkOptions
    ) -> Network:
        """The network as the device gets it. A network that is kept is transformed once."""
        given = json.dumps(options_to_json(options), sort_keys=True)
        return network.derived(
            ("transformed", self, config, given, tuple(self.extensions.functions())),
            lambda: self.transform_network(network, config, options),
        )

    def _refuse_affinities(self, options: NetworkOptions) -> None:
        if options.affinities:
            raise InvalidArgument(
                f"{self.name} runs whole networks; affinities are for HETERO", field="affinities"
            )

    def _refuse_unsupported(
        self, network: Network, transformed: Network, config: Configuration
    ) -> None:
        with load_stage("check"):
            unsupported = self._query(network, transformed, config).unsupported
        if unsupported:
            raise UnsupportedLayers(self.name, unsupported)

    def _query(self, network: Network, transformed: Network, config: Configuration) -> QueryResult:
        return transformed.derived(
            ("query", self, config),
            lambda: query_network(
                network, transformed, self._support(transformed, config), self.name
            ),
        )

    # -- hooks of the device --

    @abstractmethod
    def _support(self, network: Network, config: Configuration) -> Support:
        """A function that says whether the device runs a node of a transformed network."""

    @abstractmethod
    def _compile(
        self, network: Network, config: Configuration, token: CancelToken
    ) -> ExecutableNetwork:
        """Compiles a transformed network."""

    def _import(  # for devices with `imports_native`
        self,
        network: Network,  # noqa: ARG002
        native: bytes,  # noqa: ARG002
        config: Configuration,  # noqa: ARG002
        token: CancelToken,  # noqa: ARG002
    ) -> ExecutableNetwork:
        """Makes a network from the bytes that `ExecutableNetwork._export` returned. If the bytes
        are wrong, it raises a HeadraceError that says why, and the caller compiles the network."""
        raise Unimplemented(f"device {self.name} does not import a backend's own bytes")

    def _transformations(
        self,
        config: Configuration,  # noqa: ARG002 - for devices whose passes depend on it
    ) -> Sequence[Transformation]:
        """The device's own graph transformations."""
        return ()

    def _add_extension(self, functions: Sequence[ir.Function]) -> None:  # noqa: ARG002
        raise Unimplemented(f"device {self.name} takes no extensions")
