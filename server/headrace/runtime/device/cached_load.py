"""A load through the cache: it takes the network from the cache, or compiles and stores it.

If anything is wrong with the cache, the server logs a warning, adds a note for the caller and
compiles the network.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.cache.entry import CacheKey, EntryRefused
from headrace.runtime.config.schema import Configuration
from headrace.runtime.config.standard_keys import CACHE_DIR
from headrace.runtime.device.cache_key import cache_key
from headrace.runtime.device.device import Device
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load, LoadResult
from headrace.runtime.errors import InvalidArgument, NotFound, Unavailable
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.metrics.cache_counters import CacheEvent
from headrace.runtime.network.network import Network

_log = logging.getLogger(__name__)

MakeNetwork: TypeAlias = Callable[[], Network]
"""Makes the network as the device gets it, each time the same one."""
ANEW: Final = "compiled anew: "
"""How the note begins that says why the backend's bytes were not used."""
Compile: TypeAlias = Callable[[MakeNetwork, Configuration, CancelToken], LoadResult]
Restore: TypeAlias = Callable[[bytes, MakeNetwork, Configuration, CancelToken], LoadResult]


def cached(
    device: Device,
    load: Load,
    config: Configuration,
    restore: Restore,
    compile_anew: Compile,
) -> Compile:
    """Takes a compiled network from the server's cache, or compiles it with `compile_anew`. Call
    this before the network is transformed."""
    functions = device.extensions.functions()
    return CachedLoad(
        device.services.cache,
        device.name,
        exports=device.imports_native,
        key=lambda: cache_key(device, load.network, config, load.options, functions),
        key_holds=lambda: device.extensions.functions() == functions,
        restore=restore,
        compile_anew=compile_anew,
    )


@dataclass(frozen=True, slots=True)
class CachedLoad:
    """Loads one network onto one device: restores it from the cache or compiles it.

    Args:
        cache: the server's cache; None if it has none.
        device: the device's name, for counters and log.
        exports: whether the device exports bytes that the cache can keep.
        key: makes the load's key from the state that the device had when the load began.
        key_holds: whether the device still has that state. An added extension changes it.
        restore: makes the network from trusted native bytes. If the backend does not accept them,
            it may raise, or compile and leave `restored` False.
        compile_anew: makes the network without native bytes.
        export: gives the bytes to keep.
    """

    cache: NetworkCache | None
    device: str
    exports: bool
    key: Callable[[], CacheKey]
    key_holds: Callable[[], bool]
    restore: Restore
    compile_anew: Compile
    export: Callable[[ExecutableNetwork], bytes] = ExecutableNetwork.export

    def __call__(
        self, network: MakeNetwork, config: Configuration, token: CancelToken
    ) -> LoadResult:
        """
        Args:
            network: called if the network is compiled, or its bytes cannot be used without it.

        Raises:
            Unavailable: the device is down.
            Whatever `compile_anew` raises, or the token's error.
        """
        folder = config.get(CACHE_DIR)
        if self.cache is not None and folder and self.exports:
            return _Load(self, self.cache, folder)(network, config, token)
        made = self.compile_anew(network, config, token)
        if folder:
            why = self._why_not(named=CACHE_DIR.name in config.explicit)
            made = replace(made, notes=(*made.notes, *why))
        return made

    def _why_not(self, *, named: bool) -> tuple[str, ...]:
        """A note, if the load named a cache."""
        if self.cache is None:
            why = "the server has no --cache-dir"
        else:
            why = f"{self.device} exports nothing that would load faster"
            self.cache.counters.count(self.device, "skipped")
        return (f"not cached: {why}",) if named else ()


@dataclass(slots=True)
class _Load:
    """One load, with the cache on."""

    how: CachedLoad
    cache: NetworkCache
    folder: str
    notes: list[str] = field(default_factory=list)

    def __call__(
        self, network: MakeNetwork, config: Configuration, token: CancelToken
    ) -> LoadResult:
        key = self._key()
        if key is None:
            return self.how.compile_anew(network, config, token)
        made = self._restored(key, network, config, token)
        if made is not None and made.restored:
            self._count("hit")
            return replace(made, from_cache=True)
        if made is None:
            made = self.how.compile_anew(network, config, token)
        else:  # an old driver's entry, or one whose weights were removed to make room
            self._count("refused")
            why = "; ".join(note for note in made.notes if note.startswith(ANEW))
            _log.info("cache entry %s/%s of %s: %s", self.folder, key.name, self.how.device, why)
        self._count("miss")
        if token.error is None:
            self._keep(key, made.network)
        return replace(made, notes=(*made.notes, *self.notes))

    def _key(self) -> CacheKey | None:
        try:
            return self.how.key()
        except (InvalidArgument, NotFound):
            return None  # the configuration is wrong, and compiling will raise the error
        except Exception as error:  # noqa: BLE001 - a device may fail to say what it is
            _log.warning("no key for the cache of %s: %s", self.how.device, error)
            return None

    def _restored(
        self, key: CacheKey, network: MakeNetwork, config: Configuration, token: CancelToken
    ) -> LoadResult | None:
        """The restored network; None if there is no entry, or the entry cannot be used."""
        try:
            native = self.cache.read(self.folder, key)
        except EntryRefused as error:
            self._refuse(key, str(error))
            return None
        if native is None:
            return None
        try:  # a backend may refuse an old entry with any exception
            return self.how.restore(native, network, config, token)
        except Unavailable:  # the device is down, which says nothing about the entry
            raise
        except Exception as error:
            if token.error is not None:
                raise token.error from error
            self._refuse(key, f"the backend refused it: {error}")
            return None

    def _refuse(self, key: CacheKey, why: str) -> None:
        self._count("refused")
        _log.warning("cache entry %s/%s of %s: %s", self.folder, key.name, self.how.device, why)
        self.notes.append(f"{ANEW}the cache's entry was not used")

    def _keep(self, key: CacheKey, made: ExecutableNetwork) -> None:
        try:
            native = self.how.export(made)
            if not native:
                self.notes.append(f"not cached: {self.how.device} exports nothing of this network")
            elif self.how.key_holds():
                self.cache.write(self.folder, key, native)
        except Exception as error:  # noqa: BLE001 - full disks, and what exporting may raise
            self._count("write_failed")
            _log.warning("a network on %s was not cached: %s", self.how.device, error)
            self.notes.append("not cached: the server could not keep it, its log says why")

    def _count(self, event: CacheEvent) -> None:
        self.cache.counters.count(self.how.device, event)
