"""The key of a compiled network. Two loads with the same key can share the compiled network."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import onnx_ir as ir

from headrace.runtime.cache.entry import CacheKey
from headrace.runtime.config.schema import Configuration
from headrace.runtime.config.standard_keys import (
    CACHE_DIR,
    DEVICE_ID,
    EXCLUSIVE_ASYNC_REQUESTS,
    EXECUTION_TIMEOUT,
    ISOLATION,
    QUEUE_CAPACITY,
)
from headrace.runtime.device.device import Device
from headrace.runtime.network.network import Network
from headrace.runtime.system.processors import usable_processors
from headrace.runtime.transform.options import NetworkOptions, options_to_json

_DEVICE_FACTS = ("FULL_DEVICE_NAME", "DEVICE_ARCHITECTURE", "OPTIMIZATION_CAPABILITIES")
_NO_MATTER = frozenset(
    key.name
    for key in (
        *(CACHE_DIR, EXCLUSIVE_ASYNC_REQUESTS, EXECUTION_TIMEOUT, ISOLATION, QUEUE_CAPACITY),
        DEVICE_ID,  # the key has the resolved id as "device id"
    )
)
"""Configuration keys that no compiled network depends on. All other keys count, also a device's
own keys. A key too many in the cache key costs space; a missing key would give a load the wrong
network."""


def cache_key(
    plugin: Device,
    network: Network,
    config: Configuration,
    options: NetworkOptions,
    functions: Sequence[ir.Function] = (),
) -> CacheKey:
    """The key of a load.

    The key does not contain the transformations, because they follow from the network, the options,
    the extensions, the configuration and the versions.

    Args:
        network: the network as the caller gave it.
        config: the effective configuration.
        functions: the device's extensions.

    Raises:
        The errors that the device's own metrics raise.
    """
    device_id = plugin.device_id(config)
    named = {DEVICE_ID.name: device_id} if device_id else {}
    given = options_to_json(options)
    facts = {
        "headrace": headrace_version(),
        "network": network.digest,
        "options": {"inputs": given["inputs"], "outputs": given["outputs"]},
        "extensions": [function_digest(function) for function in functions],
        "device": plugin.name,
        "device id": device_id,
        "backend version": plugin.backend_version,
        "native version": plugin.native_version,
        "device facts": {name: plugin.get_metric(name, named) for name in _DEVICE_FACTS},
        "processors": usable_processors(),
        "processor features": processor_features(),
        "streams": plugin.share(config),
        "config": _relevant(config),
    }
    return CacheKey.of(facts)


@cache
def headrace_version() -> str:
    """headrace's version. Looking it up takes some milliseconds, as long as small loads."""
    return importlib.metadata.version("headrace")


@cache
def processor_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """A digest of the processor's instruction sets; empty if the system does not list them.
    Processors with the same name may have different instruction sets, above all under a
    hypervisor."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return ""
    matching = (line for line in lines if line.startswith(("flags", "Features")))
    words = next(matching, "").partition(":")[2].split()
    return hashlib.sha256(" ".join(sorted(words)).encode()).hexdigest() if words else ""


def _relevant(config: Configuration) -> Mapping[str, str]:
    return {name: text for name, text in config.to_strings().items() if name not in _NO_MATTER}


def function_digest(function: ir.Function) -> str:
    return hashlib.sha256(ir.to_proto(function).SerializeToString(deterministic=True)).hexdigest()
