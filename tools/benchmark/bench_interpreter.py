"""How long a load or a query of a network keeps the interpreter from everybody else.

A thread ticks each millisecond, and its longest gap counts, as far as the process was computing
meanwhile: what other processes take away is no fault of the load. Networks of many thousand layers
take minutes, and have to be asked for: --network "20000 layers".
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.plugin_source import installed_plugins
from headrace.runtime.errors import HeadraceError
from headrace.runtime.network.network import Network
from headrace.runtime.system.garbage import look_seldom
from headrace.runtime.transform.options import LoadRequest, NetworkOptions
from headrace.testing.case import parse
from tests.support.long_lists import labels, terms, tree
from tools.benchmark.deep_transformer import deep_transformer
from tools.benchmark.resnet50 import resnet50

DEVICES = ("CPU", "TEMPLATE", "BATCH:CPU(4)", "HETERO:TEMPLATE,CPU", "AUTO:CPU")
TARGET_MS = 50.0
PATIENCE_SECONDS = 600.0
SLOW = frozenset({"20000 layers", "10000 weights"})


class Heartbeat:
    """A thread that ticks each millisecond."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._tick)
        self.longest_ms = 0.0
        self._thread.start()

    def _tick(self) -> None:
        wall, used = time.perf_counter(), time.process_time()
        while not self._end.is_set():
            time.sleep(0.001)
            now, spent = time.perf_counter(), time.process_time()
            self.longest_ms = max(self.longest_ms, 1000 * min(now - wall, spent - used))
            wall, used = now, spent

    def stop(self) -> float:
        self._end.set()
        self._thread.join()
        return self.longest_ms


def many_layers(count: int) -> onnx.ModelProto:
    """A chain of tiny layers."""
    operators = ("Relu", "Neg", "Abs", "Exp", "Sigmoid")
    lines = [f"v{at + 1} = {operators[at % 5]}(v{at})" for at in range(count)]
    return parse(f"chain (float[N,8] v0) => (float[N,8] v{count}) {{ {' '.join(lines)} }}", {})


def doubling(count: int, *, axis: int) -> onnx.ModelProto:
    """Each layer lays the one before beside itself, so that sizes double."""
    lines = [f"t{at + 1} = Concat<axis = {axis}>(t{at}, t{at})" for at in range(count)]
    ports = f"(float[{'N,' * axis}1] t0) => (int64[{axis + 1}] y)"
    return parse(f"doubling {ports} {{ {' '.join(lines)} y = Shape(t{count}) }}")


def wide_constants(count: int) -> onnx.ModelProto:
    """Many small weights."""
    weights = {f"w{at}": np.full(8, at, np.float32) for at in range(count)}
    lines = [f"v{at + 1} = Add(v{at}, w{at})" for at in range(count)]
    text = f"wide (float[N,8] v0) => (float[N,8] v{count}) {{ {' '.join(lines)} }}"
    return parse(text, weights)


NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "resnet50": resnet50,
    "transformer": deep_transformer,
    "20000 layers": lambda: many_layers(20_000),
    "10000 weights": lambda: wide_constants(10_000),
    "20 doublings": lambda: doubling(20, axis=0),
    "60 doublings": lambda: doubling(60, axis=1),
    "100000 labels": lambda: labels(100_000),
    "100000 terms": lambda: terms(100_000),
    "300000 tree nodes": lambda: tree(300_001),
}


def measure(core: Core, data: bytes, device: str, action: str) -> tuple[float, str]:
    """The longest gap in ms, and how it ended."""
    name = DeviceName.parse(device)
    heart = Heartbeat()
    start = time.perf_counter()
    try:
        read = lambda: Network.from_bytes(data, spooled=True)  # noqa: E731
        if action == "load":
            request = LoadRequest("m", name, {})
            core.load_network(request, read).result(PATIENCE_SECONDS)
            ended = "loaded"
        elif action == "unload":
            core.unload_network("m").result(PATIENCE_SECONDS)
            ended = "unloaded"
        else:
            result = core.query_network(name, {}, NetworkOptions(), read).result(PATIENCE_SECONDS)
            ended = f"{len(result.unsupported)} unsupported"
    except HeadraceError as error:
        ended = error.message[:60]
    return heart.stop(), f"{time.perf_counter() - start:.1f} s, {ended}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", action="append")
    parser.add_argument("--network", action="append", choices=NETWORKS)
    parser.add_argument("--model", action="append", type=Path, default=[], help="a file")
    arguments = parser.parse_args()
    made = NETWORKS if not arguments.model else {}
    wanted = arguments.network or NETWORKS.keys() - SLOW
    models = {name: make for name, make in made.items() if name in wanted} | {
        str(path): lambda path=path: onnx.load(path) for path in arguments.model
    }
    sys.setswitchinterval(0.0005)  # as the server has it
    core = Core(list(installed_plugins().values()), blob_key=b"key")
    look_seldom()
    print(f"{'network':17} {'device':20} {'action':6} {'longest':>8}  target <= {TARGET_MS:.0f} ms")
    try:
        for name, make in models.items():
            data = make().SerializeToString()
            for device in arguments.device or DEVICES:
                for action in ("query", "load", "unload"):
                    gap, ended = measure(core, data, device, action)
                    print(f"{name:17} {device:20} {action:6} {gap:6.0f} ms  {ended}", flush=True)
    finally:
        core.stop()


if __name__ == "__main__":
    main()
