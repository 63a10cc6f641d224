"""What a load costs without the cache, when it fills the cache, and when it comes from it; medians.

A load is from the model's bytes to a network that is ready: reading, its digest, transforming,
compiling or restoring, and keeping. Seconds, and seconds of the processor in brackets, of which
other work on the machine takes less notice. Devices to try may be named; without any, all that are
installed here and export what they compile.
"""

from __future__ import annotations

import gc
import logging
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnx

from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.plugin_source import installed_plugins
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import LoadRequest
from tools.benchmark.deep_transformer import deep_transformer
from tools.benchmark.resnet50 import resnet50

ROUNDS = 3
NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "ResNet-50": resnet50,
    "transformer": deep_transformer,
}


def seconds(core: Core, data: bytes, device: str, folder: str) -> tuple[float, float, bool]:
    """The time of one load, the processor's, and whether it came from the cache."""
    request = LoadRequest("n", DeviceName.parse(device), {"CACHE_DIR": folder})
    start, used = time.perf_counter(), time.process_time()
    entry = core.load_network(request, lambda: Network.from_bytes(data, spooled=True)).result()
    took = time.perf_counter() - start, time.process_time() - used
    assert entry.executable is not None
    cached = entry.executable.loaded_from_cache
    core.unload_network("n").result()
    return *took, cached


def compare(core: Core, name: str, data: bytes, device: str) -> None:
    taken: dict[str, list[tuple[float, float]]] = {"off": [], "first": [], "second": []}
    seconds(core, data, device, "")  # what the backend sets up once
    for _ in range(ROUNDS):
        folder = secrets.token_hex(4)
        for what, where in (("off", ""), ("first", folder), ("second", folder)):
            *took, cached = seconds(core, data, device, where)
            assert cached == (what == "second")
            taken[what].append((took[0], took[1]))
    wall, processor = (
        {what: statistics.median(each[kind] for each in rounds) for what, rounds in taken.items()}
        for kind in (0, 1)
    )
    figures = ", ".join(f"{what} {wall[what]:.2f} ({processor[what]:.2f})" for what in taken)
    ratio = wall["second"] / wall["first"], processor["second"] / processor["first"]
    print(
        f"{device}, {name} of {len(data) / 1e6:.0f} MB: {figures}; second/first {ratio[0]:.2f} "
        f"({ratio[1]:.2f}), second/off {wall['second'] / wall['off']:.2f} "
        f"({processor['second'] / processor['off']:.2f})",
        flush=True,
    )


def main() -> None:
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        cache = NetworkCache(Path(folder), secrets.token_bytes(32), 10 * 2**30)
        core = Core(installed_plugins().values(), blob_key=b"k" * 32, cache=cache)
        plugins = core.plugins.plugins()
        wanted = sys.argv[1:] or [
            device
            for device, plugin in plugins.items()
            if plugin.imports_native and not DeviceName.parse(device).is_virtual
        ]
        gc.collect()
        gc.freeze()  # as the server does
        for name, make in NETWORKS.items():
            data = make().SerializeToString()
            for device in wanted:
                compare(core, name, data, device)
        core.stop()


if __name__ == "__main__":
    main()
