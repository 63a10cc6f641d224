"""Processor time per tiny request on Ray Serve, beside a server alone; medians of five rounds.

Three servers run at once, and each round asks them one after another:

- a headrace server alone;
- headrace on Ray Serve: HAProxy and the replica together;
- Serve's own way: its Python proxy and a replica together, whose method only returns a reply. It
  runs no network, so headrace behind that proxy would cost more.

Usage: bench_ray, or bench_ray host haproxy|proxy, which is what it starts itself. `make
benchmark-ray` has the environment that it needs.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from tools.benchmark.bench_requests import load_tiny
from tools.benchmark.servers import INFER, headrace, load, running

ROUNDS: Final = 5
SECONDS: Final = 2.0
CALLERS: Final = 32
TARGETS: Final = {"server": 1.5, "proxy": 0.2}
"""How much of these two's time headrace on Ray Serve may take."""


class Times(NamedTuple):
    user: float
    system: float


class Processes:
    """The processes of a node that handle requests, measured as one.

    Args:
        raylet: the process that started them.
        names: parts of their command lines.
    """

    def __init__(self, raylet: int, names: Sequence[str]) -> None:
        self._raylet, self._names = psutil.Process(raylet), names

    def cpu_times(self) -> Times:
        times = [
            each.cpu_times()
            for each in self._raylet.children(recursive=True)
            if any(name in " ".join(each.cmdline()) for name in self._names)
        ]
        return Times(sum(each.user for each in times), sum(each.system for each in times))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        servers: dict[str, tuple[str, Any]] = {
            "server": stack.enter_context(headrace("--devices", "CPU")),
            "haproxy": stack.enter_context(cluster("haproxy")),
            "proxy": stack.enter_context(cluster("proxy")),
        }
        file = load_tiny(Path(folder), servers["server"][0], servers["haproxy"][0])
        rounds = [
            {
                name: load(address, processes, INFER, CALLERS, file, SECONDS).microseconds
                for name, (address, processes) in servers.items()
            }
            for _ in range(ROUNDS)
        ]
        print(f"load of the machine: {os.getloadavg()[0]:.0f}")
        for name in servers:
            print(f"{name:8} {statistics.median(each[name] for each in rounds):6.0f} us a request")
        for name, target in TARGETS.items():
            ratio = statistics.median(each["haproxy"] / each[name] for each in rounds)
            print(f"haproxy / {name:8} {ratio:5.2f} (target <= {target})")


@contextmanager
def cluster(kind: str) -> Iterator[tuple[str, Processes]]:
    """The address of a cluster, and the processes that handle its requests."""
    os.environ["RAY_SERVE_ENABLE_HA_PROXY"] = str(int(kind == "haproxy"))
    with running("-m", "tools.benchmark.bench_ray", "host", kind) as (line, _):
        facts = json.loads(line)
        yield facts["address"], Processes(facts["raylet"], HANDLERS[kind])


def host(kind: str) -> None:
    """Runs a cluster of one node until SIGTERM."""
    import signal

    out = os.dup(1)
    os.dup2(2, 1)  # Ray writes there, too
    # Sets what Ray reads when it is imported.
    from tests.ray.nodes import Nodes, free_ports  # isort: split

    import ray
    from ray import serve

    nodes = Nodes(1, "127.0.1" if kind == "proxy" else "127.0.0")
    over = threading.Event()
    store = tempfile.TemporaryDirectory()
    try:
        ray.init(address=nodes.ray.address, namespace="serve", log_to_driver=False)
        signal.signal(signal.SIGTERM, lambda *_: over.set())  # instead of Ray's
        servicer, application = APPLICATIONS[kind](store.name)
        port, http_port = free_ports(2)
        serve.start(
            proxy_location="HeadOnly",
            grpc_options={"port": port, "grpc_servicer_functions": [servicer]},
            http_options={"port": http_port},
        )
        serve.run(application, name="headrace", route_prefix="/")
        facts = {"address": f"127.0.0.1:{port}", "raylet": nodes.raylet(nodes.ray.head_node).pid}
        os.write(out, json.dumps(facts).encode() + b"\n")
        over.wait()
    finally:
        serve.shutdown()
        ray.shutdown()
        nodes.close()
        store.cleanup()


HANDLERS: Final = {
    "haproxy": ("haproxy.cfg", "ServeReplica:headrace"),
    "proxy": ("ProxyActor", "ServeReplica:headrace"),
}


def ours(store: str) -> tuple[str, Any]:
    from headrace.cluster import application

    settings = {"devices": "CPU", "allow_insecure": "true"}
    deployment = application.deployment.options(ray_actor_options={"num_cpus": 1})
    return application.SERVICER, deployment.bind(store, settings)


def theirs(_store: str) -> tuple[str, Any]:
    from ray import serve

    class Replies:
        def Infer(self, _request: Any) -> Any:
            from headrace.v1 import inference_engine_pb2 as pb

            return pb.InferReply()

    services = "headrace.v1.inference_engine_pb2_grpc.add_InferenceEngineServicer_to_server"
    deployment: Any = serve.deployment(Replies)
    return services, deployment.bind()


APPLICATIONS: Final[dict[str, Callable[[str], tuple[str, Any]]]] = {
    "haproxy": ours,
    "proxy": theirs,
}


if __name__ == "__main__":
    if sys.argv[1:2] == ["host"]:
        host(sys.argv[2])
    else:
        main()
