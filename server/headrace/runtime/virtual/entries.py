"""The entries of a virtual device's networks in the cache.

Such an entry has how the device uses those of its list, and what is known of each network that it
gives to them, the digest included. So a load from the cache reads no model: each of these devices
finds its own entry by that digest, and that device may be virtual, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final

from headrace.runtime.cache.entry import CacheKey
from headrace.runtime.config.device_name import VIRTUAL_TYPES, DeviceName
from headrace.runtime.config.schema import Configuration
from headrace.runtime.config.standard_keys import DEVICE_ID
from headrace.runtime.device.cache_key import cache_key, function_digest
from headrace.runtime.device.cached_load import CachedLoad
from headrace.runtime.device.device import Device
from headrace.runtime.device.load import Load, LoadResult
from headrace.runtime.device.services import Devices
from headrace.runtime.network.facts import FACTS, facts_from_json, facts_to_json
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import options_to_json
from headrace.runtime.virtual.members import Target

_FACTS: Final = tuple(name for name in FACTS if name != "digest")
"""A digest takes long, so it is told only if somebody has asked for it, as a cache does."""


def from_cache(
    device: Device,
    load: Load,
    config: Configuration,
    targets: Sequence[Target],
    *,
    restore: Callable[[bytes], LoadResult],
    compile_anew: Callable[[], LoadResult],
    export: Callable[[Any], bytes],
    depends_on: object = None,
) -> Callable[[], LoadResult]:
    """A load of a virtual device through the cache.

    Args:
        targets: the devices of its list.
        restore: makes the network from its entry. The devices have their own entries.
        export: gives the entry of the network that was made.
        depends_on: what the entry depends on besides, for JSON.
    """

    def key() -> CacheKey:
        own = cache_key(device, load.network, config, load.options)
        facts = [facts_of(target, device.services.devices) for target in targets]
        return CacheKey.of([own.text, dict(load.options.affinities), facts, depends_on])

    before = cache(key)  # made by a load that looks into the cache: it hashes all weights
    cached = CachedLoad(
        device.services.cache,
        device.name,
        exports=True,
        key=before,
        key_holds=lambda: key() == before(),
        restore=lambda native, *_: restore(native),
        compile_anew=lambda *_: compile_anew(),
        export=export,
    )
    return partial(cached, lambda: load.network, config, load.token)


def facts_of(target: Target, devices: Devices) -> list[object]:
    """What decides how a device of a list runs a network, for a key of the cache."""
    options = options_to_json(target.options)
    used = [_facts(*each, devices) for each in sorted({*_used(target.device, devices)})]
    return [target.name, dict(target.config), options, used]


def _used(name: DeviceName, devices: Devices) -> Iterator[tuple[str, str]]:
    """The type and id of each device that a network on this one may need."""
    listed = [*name.physical()]
    yield from ((each, "") for each in name.types() if each in VIRTUAL_TYPES)
    yield from ((each.type, each.id) for each in listed)
    if not listed or any(each.is_virtual for each in listed):  # it takes any device that is there
        yield from ((type_, id_) for type_, ids in devices.available().items() for id_ in ids)


def _facts(device_type: str, device_id: str, devices: Devices) -> list[object]:
    plugin = devices.plugin(device_type)
    return [
        device_type,
        device_id,
        plugin.get_metric("FULL_DEVICE_NAME", {DEVICE_ID.name: device_id} if device_id else {}),
        plugin.architecture,
        plugin.backend_version,
        plugin.native_version,
        plugin.config.explicit_strings(),
        [*map(function_digest, plugin.extensions.functions())],
    ]


def told_of(network: Network) -> dict[str, Any]:
    """What a network says of itself, for JSON: facts, and the layers of the network as loaded that
    each layer stands for. A layer of the preprocessing stands for none."""
    return {
        "digest": network.known_digest,
        "facts": facts_to_json(network, _FACTS),
        "origins": {layer.name: list(layer.origins) for layer in network.layers},
    }


def unread(read: Callable[[], Network], told: Mapping[str, Any]) -> Network:
    """The network that `told_of` told of.

    Args:
        read: makes it when somebody asks for its graph.
    """
    known = {"digest": told["digest"]} if told["digest"] else {}
    return Network.unread(read, {**facts_from_json(told["facts"], _FACTS), **known})
