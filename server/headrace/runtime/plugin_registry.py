"""Device plugins by name: found through entry points, started once; a failure keeps its reason."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeGuard

from headrace.runtime.config_key import config_field
from headrace.runtime.device_name import VIRTUAL_TYPES, unknown_device
from headrace.runtime.device_state import DeviceState
from headrace.runtime.errors import (
    HeadraceError,
    InvalidArgument,
    NotFound,
    NotInstalled,
    Unavailable,
)
from headrace.runtime.isolation.plugin import IsolatedPlugin
from headrace.runtime.plugin import PLUGIN_API_VERSION, Plugin
from headrace.runtime.services import Services
from headrace.runtime.standard_keys import ISOLATION, NONE, PROCESS

_log = logging.getLogger(__name__)

GROUP = "headrace.plugins"
_DEVICE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")

Factory: TypeAlias = "Callable[[str, Services, Mapping[str, str]], Plugin]"


@dataclass(frozen=True, slots=True)
class PluginSource:
    """Where a device's creation function comes from, and the settings to start it with.

    Attributes:
        path: of the function, as ``package.module:create_plugin``; what a process of the device's
            own imports. Empty where there is none.
    """

    device: str
    load: Callable[[], Any]
    config: Mapping[str, str] = field(default_factory=dict)
    path: str = ""

    def configured(self, device: str, config: Mapping[str, str]) -> PluginSource:
        """The same plugin under another name, or with other settings."""
        return PluginSource(device, self.load, {**self.config, **config}, self.path)


def installed_plugins() -> dict[str, PluginSource]:
    """The plugins that installed distributions declare, by device name."""
    points = importlib.metadata.entry_points(group=GROUP)
    return {point.name: PluginSource(point.name, point.load, path=point.value) for point in points}


def factory_source(device: str, path: str) -> PluginSource:
    """A plugin from the server's own configuration, as ``package.module:create_plugin``."""

    def load() -> Any:
        module, _, name = path.partition(":")
        return getattr(importlib.import_module(module), name or "create_plugin")

    return PluginSource(device, load, path=path)


def create_plugin(source: PluginSource, services: Services) -> Plugin:
    """A plugin in this process.

    Raises:
        RuntimeError: it is written for another version of the plugin API.
        TypeError: what the function made is no plugin.
        Whatever the function raises.
    """
    create = source.load()
    _check_version(create)
    plugin = create(source.device, services, source.config)
    if not isinstance(plugin, Plugin):
        raise TypeError(f"create_plugin returned {type(plugin).__name__}, not a Plugin")
    return plugin


class PluginRegistry:
    """The devices of one server. Immutable after `start`, so it needs no lock.

    It is also what plugins see as `Devices`.
    """

    def __init__(self) -> None:
        self._plugins: dict[str, Plugin] = {}
        self._reasons: dict[str, str] = {}
        self._not_installed: set[str] = set()

    def start(
        self, sources: Iterable[PluginSource], services: Services, *, isolate: bool = False
    ) -> None:
        """Creates every plugin; one that raises is left out and its reason kept.

        Args:
            isolate: every device that computes gets a process of its own.

        Raises:
            NotFound, InvalidArgument: a plugin is configured with a key that it does not know, or a
                value that it does not take, which is a mistake on any machine.
        """
        for source in sources:
            try:
                self._plugins[source.device] = self._create(source, services, isolate)
            except Exception as error:  # a plugin may fail in any way, the server runs on
                if _is_misconfigured(error):
                    error.field = f"plugins.{source.device}.{error.field}"
                    raise
                known = isinstance(error, HeadraceError)
                reason = str(error) if known else f"{type(error).__name__}: {error}"
                self._reasons[source.device] = reason
                if isinstance(error, NotInstalled):
                    self._not_installed.add(source.device)
                services.states.set(source.device, DeviceState.DOWN, reason)
                _log.log(_level(error), "device %s did not start: %s", source.device, reason)
            else:
                services.states.set(source.device, DeviceState.UP)

    def plugin(self, device: str) -> Plugin:
        """The plugin of a device type.

        Raises:
            NotFound: there is no such device; says "did you mean".
            Unavailable: it did not start; says why.
        """
        plugin = self._plugins.get(device)
        if plugin is not None:
            return plugin
        if device in self._reasons:
            raise Unavailable(f"device {device} did not start: {self._reasons[device]}")
        raise unknown_device(device, self.names())

    def plugins(self) -> dict[str, Plugin]:
        """Those that started, by device name."""
        return dict(self._plugins)

    def reasons(self) -> dict[str, str]:
        """Why the others did not start."""
        return dict(self._reasons)

    def not_installed(self) -> frozenset[str]:
        """Which of those nobody installed anything for: that is no failure."""
        return frozenset(self._not_installed)

    def names(self) -> list[str]:
        return sorted({*self._plugins, *self._reasons})

    def available(self) -> Mapping[str, list[str]]:
        """Every device type with its AVAILABLE_DEVICES; one that did not start has none."""
        return _Available(self._plugins, self.names())

    def close(self) -> None:
        """Closes every plugin; one that fails to is logged and keeps none from being closed."""
        for device, plugin in self._plugins.items():
            try:
                plugin.close()
            except Exception:  # noqa: BLE001 - a plugin may fail in any way
                _log.exception("device %s did not close", device)

    def kill(self) -> None:
        """Ends what keeps plugins from closing, as far as that can be done; does not block."""
        for plugin in self._plugins.values():
            plugin.kill()

    @staticmethod
    def _create(source: PluginSource, services: Services, isolate: bool) -> Plugin:
        if not _DEVICE.fullmatch(source.device):
            raise ValueError(f"{source.device!r} is not a device name: capitals, digits and '_'")
        if not _isolated(source, isolate):
            return create_plugin(source, services)
        if not source.path:
            raise ValueError("a device in a process of its own needs a function that has a path")
        late = getattr(source.load(), "headrace_late", False)
        face = create_plugin(replace(source, config={}), services) if late else None
        return IsolatedPlugin(source.device, services, source.config, source.path, face=face)


class _Available(Mapping[str, list[str]]):
    """Asks a device for its ids only when they are looked up, for it may start its backend then."""

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
            return []  # its backend does not start; whoever names the device is told why

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _isolated(source: PluginSource, isolate: bool) -> bool:
    """Whether the device gets a process of its own, which alone then imports its backend.

    Raises:
        InvalidArgument: the configuration asks for what cannot be, or for two things at once.
    """
    asked = source.config.get(ISOLATION.name)
    wanted = ISOLATION.parse(asked) if asked is not None else ""
    if source.device in VIRTUAL_TYPES:
        if wanted == PROCESS:
            raise _wrong_isolation(
                f"{source.device} has other devices compute and cannot live in a process of its "
                f"own; set {ISOLATION.name} for those"
            )
        return False
    if wanted == PROCESS:
        return True
    if wanted == NONE and isolate:
        raise _wrong_isolation(
            f"{source.device} has {ISOLATION.name}={NONE}, but isolate_devices puts every device "
            "into a process of its own; take one of the two away"
        )
    create = source.load()
    _check_version(create)
    usual = getattr(create, "headrace_isolated", False)
    if wanted == NONE and usual is True:
        raise _wrong_isolation(f"{source.device} works only with {ISOLATION.name}={PROCESS}")
    return wanted != NONE and (isolate or bool(usual))


def _wrong_isolation(message: str) -> InvalidArgument:
    return InvalidArgument(message, field=config_field(ISOLATION.name))


def _is_misconfigured(error: Exception) -> TypeGuard[HeadraceError]:
    """By the field, since what a machine lacks is no argument's fault."""
    return isinstance(error, InvalidArgument | NotFound) and str(error.field).startswith("config[")


def _level(error: Exception) -> int:
    """What says itself that the machine lacks something is no event to be warned of."""
    if isinstance(error, NotInstalled):
        return logging.DEBUG
    return logging.INFO if isinstance(error, Unavailable) else logging.WARNING


def _check_version(create: Any) -> None:
    version = getattr(create, "headrace_plugin_api", None)
    if version != PLUGIN_API_VERSION:
        raise RuntimeError(
            f"the plugin is written for plugin API {version}, this server has "
            f"{PLUGIN_API_VERSION}; install versions that go together"
        )
