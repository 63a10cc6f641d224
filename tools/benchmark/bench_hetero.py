"""What splitting a network costs, and what overlapping requests gain.

The network is as large as ResNet-50; it is split in two halves of like duration over CPU and a
second CPU, which is the same plugin under another name. All run one thread a stream, so that the
two devices have a processor each where there are two.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from headrace.plugins import cpu, hetero
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.network.network import Network
from headrace.runtime.network.values import Array
from headrace.runtime.transform.options import NetworkOptions
from headrace.testing.compare import assert_same_outputs
from headrace.testing.infer_request import InferRequest
from headrace.testing.services import services
from tools.benchmark.resnet50 import resnet50

ROUNDS = 12
IN_FLIGHT = 4
TOLERANCE = 1e-4
SECOND_HALF_FROM = 7  # block; half of the time is spent before it
DEVICE = DeviceName.parse("HETERO:CPU,CPU2")
ONE_THREAD = {"NUM_STREAMS": "1", "INFERENCE_NUM_THREADS": "1"}


@contextmanager
def networks() -> Iterator[tuple[ExecutableNetwork, ExecutableNetwork]]:
    """The network whole on CPU, and split in two."""
    model = resnet50()
    names = [node.name for node in model.graph.node]
    half = names.index(f"block{SECOND_HALF_FROM}.conv1")
    affinities = {name: "CPU" if at < half else "CPU2" for at, name in enumerate(names)}
    network = Network.from_bytes(model.SerializeToString())
    sources = [
        PluginSource(name, lambda: cpu.create_plugin, ONE_THREAD) for name in ("CPU", "CPU2")
    ]
    with services(sources) as offered:
        options = NetworkOptions(affinities=affinities, members=DEVICE.members)
        split = hetero.create_plugin("HETERO", offered, {}).load_network(
            Load(network, options=options)
        )
        whole = offered.devices.plugin("CPU").load_network(Load(network))
        yield whole, split
        split.close()
        whole.close()


class Cost(NamedTuple):
    """The time of one request in seconds; `processor` is that of all threads."""

    wall: float
    processor: float


def cost(request: InferRequest, inputs: dict[str, Array]) -> Cost:
    wall, processor = time.perf_counter(), time.process_time()
    request.infer(inputs)
    return Cost(time.perf_counter() - wall, time.process_time() - processor)


def best(costs: Iterable[Cost]) -> Cost:
    """The least of each: whatever else the machine does only adds to it."""
    return Cost(*map(min, zip(*costs, strict=True)))


def per_second(network: ExecutableNetwork, inputs: dict[str, Array], in_flight: int) -> float:
    requests = [InferRequest(network) for _ in range(in_flight)]
    start = time.perf_counter()
    for number in range(2 * ROUNDS):
        request = requests[number % in_flight]
        request.wait()
        request.start_async(inputs)
    for request in requests:
        request.wait()
    return 2 * ROUNDS / (time.perf_counter() - start)


def main() -> None:
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224), np.float32)
    inputs = {"x": x}
    with networks() as (whole, split):
        one, other = InferRequest(whole), InferRequest(split)
        assert_same_outputs(other.infer(inputs), one.infer(inputs), TOLERANCE)
        assert split.get_metric("HETERO_NUMBER_OF_SUBGRAPHS") == 2
        # In turns, so that both see the same moods of the machine.
        pairs = [(cost(one, inputs), cost(other, inputs)) for _ in range(ROUNDS)]
        first, second = (best(column) for column in zip(*pairs, strict=True))
        ratio, processor = second.wall / first.wall, second.processor / first.processor
        print(f"{'one request at a time, best':36} {'ms':>8} {'CPU ms':>8}")
        for name, found in (("whole on CPU", first), ("split over CPU and CPU2", second)):
            print(f"{name:36} {1e3 * found.wall:8.1f} {1e3 * found.processor:8.1f}")
        print(f"{'ratio (target <= 1.10)':36} {ratio:8.2f} {processor:8.2f}")
        print(f"\n{'requests in flight, split':36} {'1/s':>8} {'gain':>6}")
        alone = per_second(split, inputs, 1)
        print(f"{'1: subgraph after subgraph':36} {alone:8.1f}")
        many = per_second(split, inputs, IN_FLIGHT)
        print(f"{f'{IN_FLIGHT}: both at work':36} {many:8.1f} {many / alone:6.2f}")


if __name__ == "__main__":
    main()
