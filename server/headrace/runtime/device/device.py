"""A device type's configuration, metrics and streams, which do not depend on what it computes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from headrace.runtime.config.key import config_field
from headrace.runtime.config.schema import ConfigSchema, Configuration, ParameterValue
from headrace.runtime.config.standard_keys import (
    CPU_BIND_THREAD,
    DEVICE_ID,
    EXCLUSIVE_ASYNC_REQUESTS,
    NUM_STREAMS,
    QUEUE_CAPACITY,
    STANDARD_KEYS,
)
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.extensions import Extensions
from headrace.runtime.device.load import Load, LoadResult
from headrace.runtime.device.metrics import Metric, standard_metrics
from headrace.runtime.device.places import Places
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.errors import FailedPrecondition, HeadraceError, Internal, NotFound
from headrace.runtime.execution.streams_executor import StreamsExecutor
from headrace.runtime.system.interruption import interruptible
from headrace.runtime.system.processors import usable_processors


class Device(Plugin):
    """The part of `Plugin` that all devices share; a sub-class adds the networks. Thread-safe:
    `_lock` guards the settings and what follows from them.

    Args:
        name: the device name that it is registered under.
        services: the runtime's services.
        config: the settings that the server starts the device with.
        places: where its networks run; None for places of its own.
    """

    schema: ConfigSchema = ConfigSchema(*STANDARD_KEYS)

    def __init__(
        self,
        name: str,
        services: Services,
        config: Mapping[str, str],
        places: Places | None = None,
    ) -> None:
        self.name = name
        self.services = services
        self.extensions = Extensions()
        self._lock = threading.Lock()
        self._settings: dict[str, str] = {}
        self._config = self.schema.resolve()
        self._streams = 1
        self._started = False
        self._places = places or Places(name, services, self.streams, self.memory_bytes)
        self.set_config(config)
        self._started = True

    # -- configuration and metrics --

    @property
    def config(self) -> Configuration:
        return self._config

    def set_config(self, changes: Mapping[str, str]) -> None:
        if self._started:
            self.schema.refuse_server_keys(changes, self.name)
        with self._lock:
            config = self.schema.resolve(self._settings, changes)
            if config.get(DEVICE_ID):
                self.device_id(config)
            bind = CPU_BIND_THREAD
            if config.get(bind) != self._config.get(bind) and self._places.have_streams():
                raise FailedPrecondition(
                    f"{bind.name} cannot change once the device's streams run; set it before the "
                    "first load, or in the server's configuration file",
                    field=config_field(bind.name),
                )
            self._set_config(config)
            self._settings.update(changes)
            self._config = config
            self._streams = config.get(NUM_STREAMS) or self._default_streams()
        self._places.resize(self._streams, config.get(QUEUE_CAPACITY))

    def settings(self) -> dict[str, str]:
        fixed = {key.name for key in self.schema if key.scope == "server"}
        with self._lock:
            return {name: text for name, text in self._settings.items() if name not in fixed}

    def get_config(self, name: str, options: Mapping[str, str] | None = None) -> ParameterValue:
        self._check_options(options or {})
        return self.config.get_parameter(name)

    def get_metric(self, name: str, options: Mapping[str, str] | None = None) -> ParameterValue:
        metrics = self.metrics()
        if name not in metrics:
            raise NotFound.unknown("device metric", name, metrics, field="name")
        self._check_options(options or {})
        return metrics[name](options or {})

    def metrics(self) -> dict[str, Metric]:
        table = standard_metrics(self)
        table.update(self._metrics())
        table["SUPPORTED_METRICS"] = lambda _: list(table)
        return table

    @property
    def places(self) -> Places:
        """Where its networks run, for a device that stands in front of it."""
        return self._places

    def device_ids(self) -> list[str]:
        return self._device_ids()

    def device_id(self, config: Configuration) -> str:
        ids = self.device_ids()
        wanted = config.get(DEVICE_ID)
        if not wanted:
            return ids[0] if ids else ""
        if wanted not in ids:
            raise NotFound.unknown("DEVICE_ID", wanted, ids, field="config['DEVICE_ID']")
        return wanted

    def announce(self) -> None:
        self._places.announce(self.device_ids())

    def names(self) -> list[str]:
        return self._places.names() or [self.name]

    def memory_bytes(self, device_id: str) -> int:
        return self._memory_bytes(device_id)

    # -- streams --

    def executor(self, config: Configuration) -> StreamsExecutor:
        """The streams for a network with this configuration: the streams of its device id, or the
        one stream that all networks with EXCLUSIVE_ASYNC_REQUESTS share."""
        return self._places.executor(
            self.device_id(config),
            exclusive=config.get(EXCLUSIVE_ASYNC_REQUESTS),
            bind=self.config.get(CPU_BIND_THREAD),
        )

    def running_executor(self, options: Mapping[str, str]) -> StreamsExecutor | None:
        """The streams of the device that `options` names; None before a network has used them."""
        return self._places.find_executor(self.device_id(self.schema.resolve(options)))

    def default_streams(self) -> int:
        return self._default_streams()

    def streams(self) -> int:
        """NUM_STREAMS of the device, with AUTO resolved."""
        return self._streams

    def share(self, config: Configuration) -> int:
        """How many of the device's streams a network with this configuration may use."""
        return min(config.get(NUM_STREAMS) or self.streams(), self.streams())

    # -- end --

    def close(self) -> None:
        self._places.withdraw()
        self._close()

    def kill(self) -> None:
        """Does nothing by default, because everything ends by itself."""

    # -- inside --

    def _configuration(self, config: Mapping[str, str]) -> Configuration:
        """The effective configuration of a load."""
        self.schema.refuse_device_keys(config, self.name)
        return self.schema.resolve(self.config.explicit_strings(), config)

    def _opened(
        self, load: Load, config: Configuration, make: Callable[[], LoadResult]
    ) -> ExecutableNetwork:
        """Compiles the network with `make` and opens it in its place. If the load was cancelled, it
        closes the network and raises the token's error.

        Raises:
            HeadraceError: as `make`, and the token's error.
            Internal: `make` raised something else, which is the cause.
        """
        token = load.token
        try:
            with interruptible(token):
                made = make()
        except Exception as error:
            if token.error is not None:
                raise token.error from error
            if isinstance(error, HeadraceError):
                raise
            kind = type(error).__name__
            raise Internal(f"device {self.name} failed on a network with {kind}") from error
        compiled = made.network
        compiled.notes = (*load.notes, *made.notes)
        compiled.restored, compiled.loaded_from_cache = made.restored, made.from_cache
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

    def _check_options(self, options: Mapping[str, str]) -> None:
        for name, value in options.items():
            if name != DEVICE_ID.name:
                raise NotFound.unknown("option", name, [DEVICE_ID.name], field="options")
            self.device_id(self.schema.resolve({DEVICE_ID.name: value}))

    # -- hooks of the device --

    def _device_ids(self) -> list[str]:
        return [""]

    def _memory_bytes(self, device_id: str) -> int:
        """Bytes that loaded networks hold on a device. It must be quick, because every scrape of
        the metrics calls it.

        By default it counts the weights as transformed for the device. It does not count the
        backend's copies or working memory. Override it if a driver reports the memory in use.
        """
        return self._places.weight_bytes(device_id)

    def _default_streams(self) -> int:
        return usable_processors()

    def _metrics(self) -> Mapping[str, Metric]:
        """The device's own metrics."""
        return {}

    def _set_config(self, config: Configuration) -> None:
        """Applies a new configuration of the device; may refuse it."""

    def _close(self) -> None:
        """Frees what the backend holds."""
