"""A device type as far as it has a configuration, metrics and streams, whatever it computes."""

from __future__ import annotations

import platform
import threading
from collections.abc import Mapping
from typing import ClassVar

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
from headrace.runtime.device.metrics import Metric, standard_metrics
from headrace.runtime.device.places import Places
from headrace.runtime.device.services import Services
from headrace.runtime.errors import FailedPrecondition, NotFound
from headrace.runtime.execution.streams_executor import StreamsExecutor
from headrace.runtime.system.processors import usable_processors


class Device:
    """Base of `Plugin`. Thread-safe: `_lock` guards the settings and what follows from them.

    Args:
        name: the device name that it is registered under.
        services: the runtime's.
        config: settings that the server starts it with.
    """

    schema: ClassVar[ConfigSchema] = ConfigSchema(*STANDARD_KEYS)
    full_name: str = ""
    architecture: str = platform.machine()
    backend_version: str = ""
    capabilities: tuple[str, ...] = ("FP32",)

    def __init__(self, name: str, services: Services, config: Mapping[str, str]) -> None:
        self.name = name
        self.services = services
        self._lock = threading.Lock()
        self._settings: dict[str, str] = {}
        self._config = self.schema.resolve()
        self._streams = 1
        self._started = False
        self._places = Places(name, services, self.streams, self.memory_bytes)
        self.set_config(config)
        self._started = True

    # -- configuration and metrics --

    @property
    def config(self) -> Configuration:
        """The device's configuration: what was set over the defaults."""
        return self._config

    def set_config(self, changes: Mapping[str, str]) -> None:
        """Sets keys for networks loaded from now on, and NUM_STREAMS and QUEUE_CAPACITY at once.

        Raises:
            NotFound: on an unknown key.
            InvalidArgument: on a bad value, or a key that the server's configuration alone sets.
            FailedPrecondition: CPU_BIND_THREAD of streams that run already.
            Nothing is changed then.
        """
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
        """The keys that were set and may be set again, as text."""
        fixed = {key.name for key in self.schema if key.scope == "server"}
        with self._lock:
            return {name: text for name, text in self._settings.items() if name not in fixed}

    def get_config(self, name: str, options: Mapping[str, str] | None = None) -> ParameterValue:
        """The value of a key, as set or by default; `options` may name a DEVICE_ID."""
        self._check_options(options or {})
        return self.config.get_parameter(name)

    def get_metric(self, name: str, options: Mapping[str, str] | None = None) -> ParameterValue:
        """The value of a metric.

        Raises:
            NotFound: if the device has no such metric, or no device of the id in `options`.
        """
        metrics = self.metrics()
        if name not in metrics:
            raise NotFound.unknown("device metric", name, metrics, field="name")
        self._check_options(options or {})
        return metrics[name](options or {})

    def metrics(self) -> dict[str, Metric]:
        """Every metric by name, the device's own included."""
        table = standard_metrics(self)
        table.update(self._metrics())
        table["SUPPORTED_METRICS"] = lambda _: list(table)
        return table

    def device_ids(self) -> list[str]:
        """AVAILABLE_DEVICES: ids of the devices of this type, the default one first."""
        return self._device_ids()

    def device_id(self, config: Configuration) -> str:
        """The id that a configuration asks for, or the default one.

        Raises:
            NotFound: on an id that is not available.
        """
        ids = self.device_ids()
        wanted = config.get(DEVICE_ID)
        if not wanted:
            return ids[0] if ids else ""
        if wanted not in ids:
            raise NotFound.unknown("DEVICE_ID", wanted, ids, field="config['DEVICE_ID']")
        return wanted

    def announce(self) -> None:
        """Shows every device of the type in the metrics from now on."""
        self._places.announce(self.device_ids())

    def names(self) -> list[str]:
        """What the type's devices are called in metrics: CPU.0; a virtual one by its type alone, as
        is one whose devices are not known yet."""
        return self._places.names() or [self.name]

    def memory_bytes(self, device_id: str) -> int:
        """What loaded networks hold on one of the devices."""
        return self._memory_bytes(device_id)

    # -- streams --

    def executor(self, config: Configuration) -> StreamsExecutor:
        """The streams for a network with this configuration: those of its device id, or the one
        stream that all networks with EXCLUSIVE_ASYNC_REQUESTS share."""
        return self._places.executor(
            self.device_id(config),
            exclusive=config.get(EXCLUSIVE_ASYNC_REQUESTS),
            bind=self.config.get(CPU_BIND_THREAD),
        )

    def running_executor(self, options: Mapping[str, str]) -> StreamsExecutor | None:
        """The streams of the device that `options` names, if any network has needed them yet."""
        return self._places.find_executor(self.device_id(self.schema.resolve(options)))

    def default_streams(self) -> int:
        """What NUM_STREAMS is where it is AUTO."""
        return self._default_streams()

    def streams(self) -> int:
        """NUM_STREAMS of the device, AUTO resolved."""
        return self._streams

    def share(self, config: Configuration) -> int:
        """How many of the device's streams a network with this configuration may use."""
        return min(config.get(NUM_STREAMS) or self.streams(), self.streams())

    # -- inside --

    def _check_options(self, options: Mapping[str, str]) -> None:
        for name, value in options.items():
            if name != DEVICE_ID.name:
                raise NotFound.unknown("option", name, [DEVICE_ID.name], field="options")
            self.device_id(self.schema.resolve({DEVICE_ID.name: value}))

    # -- hooks of the device --

    def _device_ids(self) -> list[str]:
        return [""]

    def _memory_bytes(self, device_id: str) -> int:
        """Bytes that loaded networks hold on a device; quick, for each scrape asks.

        By default their weights, as transformed for the device and without what the backend makes
        of them, or works in. Override where a driver tells what is taken.
        """
        return self._places.weight_bytes(device_id)

    def _default_streams(self) -> int:
        return usable_processors()

    def _metrics(self) -> Mapping[str, Metric]:
        """The device's own metrics."""
        return {}

    def _set_config(self, config: Configuration) -> None:
        """Takes note of a new configuration of the device; may refuse it."""
