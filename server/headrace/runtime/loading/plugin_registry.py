"""Device plugins by name. They are found through entry points and started once. The registry keeps
the reason why a plugin failed to start."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard

from headrace.runtime.config.device_name import VIRTUAL_TYPES, unknown_device
from headrace.runtime.config.key import config_field
from headrace.runtime.config.standard_keys import ISOLATION, NONE, PROCESS
from headrace.runtime.device.compiled_plugin import CompiledPlugin
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.plugin_source import PluginSource, check_version, create_plugin
from headrace.runtime.device.services import Services
from headrace.runtime.device.state import DeviceState
from headrace.runtime.errors import (
    HeadraceError,
    InvalidArgument,
    NotFound,
    NotInstalled,
    Unavailable,
    public_text,
)
from headrace.runtime.isolation.server.plugin import IsolatedPlugin
from headrace.runtime.isolation.server.trials import PluginTrials

_log = logging.getLogger(__name__)

_DEVICE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")


class PluginRegistry:
    """The devices of one server. Immutable after `start`, so it needs no lock.

    Plugins see it as `Devices`.
    """

    def __init__(self) -> None:
        self._plugins: dict[str, Plugin] = {}
        self._reasons: dict[str, str] = {}
        self._causes: dict[str, str] = {}
        self._not_installed: set[str] = set()

    def start(
        self, sources: Iterable[PluginSource], services: Services, *, isolate: bool = False
    ) -> None:
        """Creates every plugin. If a plugin raises, it is left out and the reason is kept.

        Args:
            isolate: every device that computes gets a process of its own.

        Raises:
            NotFound, InvalidArgument: a plugin is configured with an unknown key or a bad value.
                That is a mistake on any machine.
        """
        for source in sources:
            try:
                self._plugins[source.device] = self._create(source, services, isolate)
            except Exception as error:  # a plugin may fail in any way; the server runs on
                if _is_misconfigured(error):
                    error.field = f"plugins.{source.device}.{error.field}"
                    raise
                known = isinstance(error, HeadraceError)
                cause = str(error) if known else f"{type(error).__name__}: {error}"
                self._causes[source.device] = cause
                reason = self._reasons[source.device] = public_text(error)
                if isinstance(error, NotInstalled) and not source.named:
                    self._not_installed.add(source.device)
                services.states.set(source.device, DeviceState.DOWN, reason)
                _log.log(_level(source, error), "device %s did not start: %s", source.device, cause)
            else:
                services.states.set(source.device, DeviceState.UP)

    def plugin(self, device: str) -> Plugin:
        """The plugin of a device type.

        Raises:
            NotFound: there is no such device. The error says "did you mean".
            Unavailable: the device did not start. The error says why.
        """
        plugin = self._plugins.get(device)
        if plugin is not None:
            return plugin
        if device in self._reasons:
            raise Unavailable(f"device {device} did not start: {self._reasons[device]}")
        raise unknown_device(device, self.names())

    def plugins(self) -> dict[str, Plugin]:
        """The plugins that started, by device name."""
        return dict(self._plugins)

    def reasons(self, *, full: bool = False) -> dict[str, str]:
        """The devices that did not start, each with the reason.

        Args:
            full: with the text of any exception, for those who run the server.
        """
        return dict(self._causes if full else self._reasons)

    def not_installed(self) -> frozenset[str]:
        """The devices that are not installed, and that the operator did not name either. That is
        not a failure."""
        return frozenset(self._not_installed)

    def names(self) -> list[str]:
        return sorted({*self._plugins, *self._reasons})

    def in_metrics(self) -> list[tuple[str, str]]:
        """Each device by its name in metrics, with its type. A device that did not start is listed
        by its type, and one that is not installed is left out."""
        return [
            (name, device)
            for device in self.names()
            if device not in self._not_installed
            for name in (self._plugins[device].names() if device in self._plugins else [device])
        ]

    def available(self) -> Mapping[str, list[str]]:
        """Every device type with its AVAILABLE_DEVICES. A type that did not start has none."""
        return _Available(self._plugins, self.names())

    def close(self) -> None:
        """Closes every plugin. If one fails to close, the error is logged, and the others are still
        closed."""
        for device, plugin in self._plugins.items():
            try:
                plugin.close()
            except Exception:  # noqa: BLE001 - a plugin may fail in any way
                _log.exception("device %s did not close", device)

    def kill(self) -> None:
        """Ends, as far as possible, what keeps plugins from closing. It does not block."""
        for plugin in self._plugins.values():
            plugin.kill()

    @staticmethod
    def _create(source: PluginSource, services: Services, isolate: bool) -> Plugin:
        if not _DEVICE.fullmatch(source.device):
            raise ValueError(f"{source.device!r} is not a device name: capitals, digits and '_'")
        if not _isolated(source, isolate):
            plugin = create_plugin(source, services)
            if isinstance(plugin, CompiledPlugin) and source.path:
                plugin.trials = PluginTrials(
                    source, services, lambda: plugin.config.explicit_strings()
                )
            return plugin
        if not source.path:
            raise ValueError("a device in a process of its own needs a function with a path")
        late = getattr(source.load(), "headrace_late", False)
        stub = create_plugin(replace(source, config={}), services) if late else None
        return IsolatedPlugin(source.device, services, source.config, source.path, stub=stub)


class _Available(Mapping[str, list[str]]):
    """Asks a device for its ids only when they are looked up, because asking may start the device's
    backend."""

    def __init__(self, plugins: Mapping[str, Plugin], names: Sequence[str]) -> None:
        self._plugins = plugins
        self._names = names

    def __getitem__(self, name: str) -> list[str]:
        if name not in self._names:
            raise KeyError(name)
        plugin = self._plugins.get(name)
        try:
            return plugin.device_ids() if plugin is not None else []
        except Unavailable:
            return []  # its backend does not start; a caller that names the device gets the reason

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _isolated(source: PluginSource, isolate: bool) -> bool:
    """Whether all of the device gets a process of its own. If so, only that process imports the
    backend.

    Raises:
        InvalidArgument: the configuration asks for something impossible or contradictory.
    """
    given = source.config.get(ISOLATION.name)
    wanted = ISOLATION.parse(given) if given is not None else ""
    if source.device in VIRTUAL_TYPES:
        if wanted == PROCESS:
            raise _wrong_isolation(
                f"{source.device} computes nothing itself, so it needs no process of its own; set "
                f"{ISOLATION.name} for the devices that it uses"
            )
        return False
    if wanted == NONE and isolate:
        raise _wrong_isolation(
            f"{source.device} has {ISOLATION.name}={NONE}, but isolate_devices puts every device "
            "into a process of its own; remove one of the two"
        )
    create = source.load()
    usual = getattr(create, "headrace_isolated", False)
    if wanted == PROCESS and usual != "in part":
        return True
    check_version(create)
    if wanted == NONE and usual is True:
        raise _wrong_isolation(f"{source.device} works only with {ISOLATION.name}={PROCESS}")
    if usual == "in part":
        return False
    return wanted != NONE and (isolate or bool(usual))


def _wrong_isolation(message: str) -> InvalidArgument:
    return InvalidArgument(message, field=config_field(ISOLATION.name))


def _is_misconfigured(error: Exception) -> TypeGuard[HeadraceError]:
    """Whether the error names a configuration key. An error about something that the machine lacks
    has no such field."""
    return isinstance(error, InvalidArgument | NotFound) and str(error.field).startswith("config[")


def _level(source: PluginSource, error: Exception) -> int:
    """The log level of the error. It is below a warning if the plugin itself says that the machine
    lacks something, unless the operator named the device."""
    if source.named:
        return logging.WARNING
    if isinstance(error, NotInstalled):
        return logging.DEBUG
    return logging.INFO if isinstance(error, Unavailable) else logging.WARNING
