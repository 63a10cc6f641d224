"""What MULTI makes of two devices together, what it costs a request, and AUTO's first reply.

The two devices are CPU, on one thread, and a slower one that computes elsewhere: its requests take
a while and none of this machine's time, so that the two do not slow each other down. CPU has one
stream here, and is as fast as others let it: so each round takes MULTI between the devices alone,
and the figure is the median of the rounds' ratios, beside the quarters around it. What the rounds
do not depend on is how long the devices' streams are busy: MULTI loses what they are idle.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from headrace.plugins import auto, cpu, multi
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.device.services import Services
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job
from headrace.runtime.metrics.families import DEVICE_EXECUTION_SECONDS
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions
from headrace.testing import networks
from headrace.testing.case import Case, parse
from headrace.testing.counted import histogram
from headrace.testing.infer_request import InferRequest
from headrace.testing.services import services
from tests.support import slowed_device
from tests.support.gate import Gate
from tests.support.moody_device import MoodyPlugin, moody

SECONDS = 0.5
ROUNDS = 9
IN_FLIGHT = 12
ONE_THREAD = {"NUM_STREAMS": "1", "INFERENCE_NUM_THREADS": "1"}
SLOW = {"NUM_STREAMS": "2", "RUN_SECONDS": "0.04"}
LAYERS = 24
WIDTH = 256
COSTS = 4000


def chain() -> Network:
    """A network of some ten milliseconds on one thread: products of float32[256, 256]."""
    body = " ".join(f"h{at + 1} = MatMul(h{at}, w)" for at in range(LAYERS))
    text = (
        f"n (float[{WIDTH},{WIDTH}] x, float[{WIDTH},{WIDTH}] w) => (float[{WIDTH},{WIDTH}] y) "
        f"{{ h0 = Relu(x) {body} y = Relu(h{LAYERS}) }}"
    )
    return Case("n", parse(text), {}).network


@contextmanager
def devices() -> Iterator[Services]:
    sources = [
        PluginSource("CPU", lambda: cpu.create_plugin, ONE_THREAD),
        PluginSource("SLOW", lambda: slowed_device.create_plugin, SLOW),
    ]
    with services(sources) as offered:
        yield offered


def load(offered: Services, device: str, network: Network) -> ExecutableNetwork:
    name = DeviceName.parse(device)
    plugin = (
        multi.create_plugin("MULTI", offered, {})
        if name.members
        else offered.devices.plugin(name.type)
    )
    return plugin.load_network(Load(network, options=NetworkOptions(members=name.members)))


class Callers:
    """Closed loop: whoever has a reply sends the next request, until the time is over."""

    def __init__(
        self, network: ExecutableNetwork, inputs: dict[str, np.ndarray], many: int
    ) -> None:
        self._inputs = inputs
        self._ended = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._count = 0
        self._requests = [InferRequest(network, self._again) for _ in range(many)]
        self._end = time.perf_counter() + SECONDS
        for request in self._requests:
            request.start_async(inputs)

    def _again(self, request: InferRequest) -> None:
        if time.perf_counter() >= self._end:
            self._ended.release()
            return
        with self._lock:
            self._count += 1
        request.start_async(self._inputs)

    def per_second(self) -> float:
        """Waits for the end; counts what came in time."""
        for _ in self._requests:
            self._ended.acquire()
        return self._count / SECONDS


def busy_seconds(offered: Services) -> list[float]:
    """For how long the streams of CPU and of SLOW have run requests' parts."""
    return [
        histogram(offered.counters.snapshot(), DEVICE_EXECUTION_SECONDS, name, "part").sum
        for name in ("CPU.0", "SLOW")
    ]


def throughput() -> None:
    rng = np.random.default_rng(0)
    inputs = {
        "x": rng.standard_normal((WIDTH, WIDTH), np.float32),
        "w": rng.standard_normal((WIDTH, WIDTH), np.float32) / WIDTH**0.5,
    }
    with devices() as offered:
        names = ("CPU", "SLOW", "MULTI:CPU,SLOW")
        one, other, both = networks_of_all = [load(offered, name, chain()) for name in names]
        for network in networks_of_all:
            InferRequest(network).infer(inputs)
        rounds, shares = [], []
        for _ in range(ROUNDS):
            alone = []
            for between in (True, False):
                half = IN_FLIGHT // 2
                apart = Callers(one, inputs, half), Callers(other, inputs, half)
                alone.append([each.per_second() for each in apart])
                if between:
                    start, before = time.perf_counter(), busy_seconds(offered)
                    together = [Callers(both, inputs, IN_FLIGHT).per_second() for _ in range(2)]
                    took, after = time.perf_counter() - start, busy_seconds(offered)
                    shares.append([(b - a) / took for a, b in zip(before, after, strict=True)])
            means = map(statistics.mean, zip(*alone, strict=True))
            rounds.append((*means, statistics.mean(together)))
        cpu_rate, slow_rate, multi_rate = map(statistics.median, zip(*rounds, strict=True))
        low, share, high = statistics.quantiles(multi / (a + b) for a, b, multi in rounds)
        print(f"{f'closed loop, {IN_FLIGHT} in flight':48} {'1/s':>7} {'of sum':>7} {'target':>8}")
        print(f"{'CPU, with half of the callers':48} {cpu_rate:7.1f}")
        print(f"{'SLOW, with the other half, at the same time':48} {slow_rate:7.1f}")
        print(f"{names[-1]:48} {multi_rate:7.1f} {share:7.3f} {'>= 0.95':>8}")
        print(f"{'half of the rounds are between':48} {low:15.3f} and {high:.3f}")
        on_cpu, on_slow = map(statistics.median, zip(*shares, strict=True))
        print(f"{'streams busy: of 1 of CPU, of 2 of SLOW':48} {on_cpu:7.3f} {on_slow:7.3f}")
        print(f"{'requests each':48} {both.get_metric('DEVICE_REQUESTS')}")
        for network in networks_of_all:
            network.close()


def cost() -> None:
    """The time of a request to a tiny network, with one caller."""
    case = networks.add()
    with devices() as offered:
        print(f"\n{'one tiny request at a time':36} {'CPU µs':>8} {'more':>8}")
        first = 0.0
        for name in ("CPU", "MULTI:CPU"):
            network = load(offered, name, case.network)
            ended = threading.Event()

            def done(_: Job, ended: threading.Event = ended) -> None:
                ended.set()

            start = time.process_time()
            for _ in range(COSTS):
                ended.clear()
                network.submit(Job(case.inputs, done, may_run_inline=True))
                ended.wait()
            took = 1e6 * (time.process_time() - start) / COSTS
            first = first or took
            print(f"{name:36} {took:8.1f} {took - first:8.1f}")
            network.close()


def first_reply() -> None:
    """With a better device that compiles until it is told to stop."""
    case, gate = networks.mlp(), Gate()
    with services([PluginSource("CPU", lambda: cpu.create_plugin), moody("BETTER")]) as offered:
        better = offered.devices.plugin("BETTER")
        assert isinstance(better, MoodyPlugin)

        def compile_later(token: CancelToken) -> None:
            token.attach(gate.open)
            gate()

        better.on_compile = compile_later
        start = time.perf_counter()
        network = auto.create_plugin("AUTO", offered, {}).load_network(Load(case.network))
        InferRequest(network).infer(case.inputs)
        took = 1e3 * (time.perf_counter() - start)
        states = network.get_metric("DEVICE_STATES")
        print(f"\n{'AUTO: load and first reply':36} {took:8.1f} ms, {states}")
        network.close()


if __name__ == "__main__":
    throughput()
    cost()
    first_reply()
