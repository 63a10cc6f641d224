"""The device plugin: what every device is to the core.

A plugin's public methods validate and account; the hooks with an underscore are the device's. A
plugin is made by a function that an entry point of group ``headrace.plugins`` names::

    @plugin_api(1)
    def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin: ...

It raises if the device cannot work here; the registry keeps the reason.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeAlias

import onnx_ir as ir

from headrace.runtime.config.schema import Configuration
from headrace.runtime.config.standard_keys import (
    DISABLE_TRANSFORMATIONS,
    INFERENCE_PRECISION_HINT,
)
from headrace.runtime.device.api import PLUGIN_API_VERSION as PLUGIN_API_VERSION
from headrace.runtime.device.api import Isolated as Isolated
from headrace.runtime.device.api import plugin_api as plugin_api
from headrace.runtime.device.cache_key import cache_key
from headrace.runtime.device.cached_load import CachedLoad, Compile, Restore
from headrace.runtime.device.device import Device
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.services import Services
from headrace.runtime.errors import (
    FailedPrecondition,
    HeadraceError,
    Internal,
    InvalidArgument,
    InvalidModel,
    Unimplemented,
    UnsupportedLayers,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.extension import merge_functions
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.transform.query import QueryResult, query_network
from headrace.runtime.transform.transform import Transformation, transform_network

_log = logging.getLogger(__name__)

Support: TypeAlias = Callable[[ir.Node], "str | None"]
"""None if the device runs the node, else the reason why not."""

_AS_IT_IS = NetworkOptions()


class Plugin(Device, ABC):
    """One device type. Thread-safe: `_lock` guards `_extensions` too.

    Args:
        name, services, config: as `Device`.
    """

    imports_native: ClassVar[bool] = False
    """`_import` makes use of a backend's own bytes; such networks are also kept in the server's
    cache, if it has one."""
    native_version: ClassVar[int] = 1
    """Raised when `_import` can no longer do with what an earlier version's network exported, or
    when the earlier version would compile another network."""
    compile_checks_support: ClassVar[bool] = False
    """`_compile` fails on a layer that the device does not support; without it, each is asked for
    before."""

    def __init__(self, name: str, services: Services, config: Mapping[str, str]) -> None:
        self._extensions: list[ir.Function] = []
        super().__init__(name, services, config)

    # -- networks --

    def transform_network(
        self, network: Network, config: Configuration, options: NetworkOptions
    ) -> Network:
        """The network as the device gets it: the same for a load and for a query.

        Raises:
            InvalidArgument: on an option that the network or the device has no use for.
        """
        if options.affinities:
            raise InvalidArgument(
                f"{self.name} runs whole networks; affinities are for HETERO", field="affinities"
            )
        optional = not config.get(DISABLE_TRANSFORMATIONS)
        half = config.get(INFERENCE_PRECISION_HINT) == "f16"
        functions = self._functions()
        return transform_network(
            merge_functions(network, functions) if functions else network,
            preprocess=(options.inputs, options.outputs),
            common=optional,
            fp16_to_fp32=optional and not half and "FP16" not in self.capabilities,
            device_passes=self._transformations(config) if optional else (),
        )

    def query_network(
        self,
        network: Network,
        config: Mapping[str, str],
        options: NetworkOptions = _AS_IT_IS,
    ) -> QueryResult:
        """Which layers the device would run; unknown configuration keys are passed over."""
        self.schema.refuse_server_keys(config, self.name)
        own = self.config.explicit_strings()
        configuration = self.schema.resolve(own, config, ignore_unknown=True)
        transformed = self.transform_network(network, configuration, options)
        return self._query(network, transformed, configuration)

    def load_network(
        self,
        network: Network,
        config: Mapping[str, str],
        options: NetworkOptions = _AS_IT_IS,
        token: CancelToken | None = None,
    ) -> ExecutableNetwork:
        """Compiles a network. If `token` is cancelled meanwhile, nothing is left of it.

        Raises:
            NotFound: on an unknown key.
            InvalidArgument: on a value, an option, or a key of the whole device.
            UnsupportedLayers: listing every layer that the device cannot run.
            InvalidModel: the backend does not take the network for another reason.
            Cancelled: `token` was cancelled meanwhile.
            Internal: the device raised something else, which is the cause.
        """
        configuration = self._configuration(config)
        make = self._cached(network, configuration, options, self._restore, self._compile)
        return self._make(network, configuration, options, make, token)

    def import_network(
        self,
        network: Network,
        native: bytes,
        config: Mapping[str, str],
        options: NetworkOptions = _AS_IT_IS,
        token: CancelToken | None = None,
    ) -> ExecutableNetwork:
        """Makes a network from the backend's own bytes, which the caller has verified, or, if they
        are empty or the device has no use for them, loads it. Raises as `load_network`."""
        if not (native and self.imports_native):
            return self.load_network(network, config, options, token)

        def make(
            transformed: Network, configuration: Configuration, token: CancelToken
        ) -> ExecutableNetwork:
            return self._restore(transformed, native, configuration, token)

        return self._make(network, self._configuration(config), options, make, token)

    def add_extension(self, functions: Sequence[ir.Function]) -> None:
        """Gives the device operators as ONNX local functions.

        Raises:
            Unimplemented: the device takes no extensions.
        """
        self._add_extension(functions)
        keys = {function.identifier() for function in functions}
        with self._lock:
            kept = [known for known in self._extensions if known.identifier() not in keys]
            self._extensions = [*kept, *functions]

    def close(self) -> None:
        """Lets go of the backend; no network is left."""
        self._places.withdraw()
        self._close()

    def kill(self) -> None:
        """Ends what may not end by itself, as far as that can be done; called on the timer's thread
        when the server's stop has taken too long. `close` follows."""

    # -- inside --

    def _configuration(self, config: Mapping[str, str]) -> Configuration:
        """The effective configuration of a load."""
        self.schema.refuse_device_keys(config, self.name)
        return self.schema.resolve(self.config.explicit_strings(), config)

    def _cached(
        self,
        network: Network,
        config: Configuration,
        options: NetworkOptions,
        restore: Restore,
        compile_anew: Compile,
    ) -> Compile:
        """What compiles a network as `compile_anew` does, unless the server's cache has it. To be
        made before the network is transformed."""
        functions = self._functions()
        return CachedLoad(
            self.services.cache,
            self.name,
            exports=self.imports_native,
            key=lambda: cache_key(self, network, config, options, functions),
            key_holds=lambda: self._functions() == functions,
            restore=restore,
            compile_anew=compile_anew,
        )

    def _functions(self) -> list[ir.Function]:
        with self._lock:
            return list(self._extensions)

    def _restore(
        self, network: Network, native: bytes, config: Configuration, token: CancelToken
    ) -> ExecutableNetwork:
        """A network of the backend's own bytes; compiled if the backend does not take them, as one
        does whose driver is another one now."""
        try:
            restored = self._import(network, native, config, token)
        except HeadraceError as error:
            if token.error is not None:
                raise
            compiled = self._compile(network, config, token)
            compiled.notes += (f"compiled anew: {error.message}",)
            return compiled
        restored.restored = True
        return restored

    def _make(
        self,
        network: Network,
        config: Configuration,
        options: NetworkOptions,
        make: Compile,
        token: CancelToken | None,
    ) -> ExecutableNetwork:
        token = token or CancelToken()
        try:
            compiled = self._compile_checked(network, config, options, make, token)
        except Exception as error:
            if token.error is not None:
                raise token.error from error
            if isinstance(error, HeadraceError):
                raise
            kind = type(error).__name__
            raise Internal(f"device {self.name} failed at a network with {kind}") from error
        return self._opened(compiled, config, token)

    def _opened(
        self, compiled: ExecutableNetwork, config: Configuration, token: CancelToken
    ) -> ExecutableNetwork:
        """The network in its place; closed, and not there, if nobody wants it any more."""
        try:
            if token.error is not None:
                raise token.error
            device_id = self.device_id(config)
            compiled.open(self._places.place(device_id, compiled.executor))
            self._places.hold(device_id, compiled)
        except BaseException:
            compiled.close()
            raise
        return compiled

    def _compile_checked(
        self,
        network: Network,
        config: Configuration,
        options: NetworkOptions,
        make: Compile,
        token: CancelToken,
    ) -> ExecutableNetwork:
        transformed = self.transform_network(network, config, options)
        if not self.compile_checks_support:
            self._refuse_unsupported(network, transformed, config)
        try:
            made = make(transformed, config, token)
        except HeadraceError as error:
            if isinstance(error, InvalidArgument | FailedPrecondition | Internal):
                self._refuse_unsupported(network, transformed, config)
            if isinstance(error, Internal):
                raise InvalidModel(error.message, field="model") from error
            raise
        for note in transformed.notes:
            _log.info("a network on %s: %s", self.name, note)
        made.notes = (*transformed.notes, *made.notes)
        return made

    def _refuse_unsupported(
        self, network: Network, transformed: Network, config: Configuration
    ) -> None:
        if unsupported := self._query(network, transformed, config).unsupported:
            raise UnsupportedLayers(self.name, unsupported)

    def _query(self, network: Network, transformed: Network, config: Configuration) -> QueryResult:
        return query_network(network, transformed, self._support(transformed, config), self.name)

    # -- hooks of the device --

    @abstractmethod
    def _support(self, network: Network, config: Configuration) -> Support:
        """Says of each node of a transformed network whether the device runs it."""

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
        """Makes a network from what `ExecutableNetwork._export` gave, or raises a HeadraceError
        that says what is wrong with it: then it is compiled."""
        raise Unimplemented(f"device {self.name} makes no use of a backend's own bytes")

    def _transformations(
        self,
        config: Configuration,  # noqa: ARG002 - for devices whose passes depend on it
    ) -> Sequence[Transformation]:
        """The device's own graph transformations."""
        return ()

    def _add_extension(self, functions: Sequence[ir.Function]) -> None:  # noqa: ARG002
        raise Unimplemented(f"device {self.name} takes no extensions")

    def _close(self) -> None:
        """Frees what the backend holds."""
