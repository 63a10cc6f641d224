"""A Ray cluster of several nodes on this machine, with the real HAProxy. ``make test-ray``.

With RAY_ADDRESS the tests run on a cluster that is there already, and kill none of its nodes.
Start it with the variables below.
"""

# ruff: noqa: E402 - Ray reads its environment when it is imported

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


# Ray reads these when it is imported, and its nodes inherit them. Where a machine is busy, Ray's
# own timeouts of a few seconds would end what only is slow.
os.environ |= {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_HAPROXY_NBTHREAD": "1",
    "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
    "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
    "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "200",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "100",
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "ORT_DISABLE_TELEMETRY": "1",
}

import numpy as np
import psutil
import pytest
import ray
from ray import serve
from ray._private.node import Node
from ray.cluster_utils import Cluster

from headrace.client import Client, errors
from headrace.client.sync import Network
from headrace.cluster import application
from headrace.cluster.members import Member, Standing
from headrace.testing import networks

PATIENCE_SECONDS = 240.0
OBJECT_STORE_BYTES = 100 << 20
NAME = "headrace"
SETTINGS = {"devices": "CPU,TEMPLATE", "allow_insecure": "true"}
CASE = networks.mlp()
MODEL = CASE.model.SerializeToString()
X = CASE.inputs


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> Any:
    """Waits for a state, and returns what the condition gave."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.1)
    return found


class Nodes:
    """The nodes of a cluster on this machine. Each has an address of its own and a place for one
    replica."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        # Ray takes 127.0.0.1 for a request to find the machine's address in its network.
        self._addresses = (f"127.0.0.{number}" for number in range(2, 255))
        head = {**self._options(), "include_dashboard": False}
        self.ray = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(2):
            self.add()

    def _options(self) -> dict[str, Any]:
        # A node waits only 20 seconds for an agent to choose a port itself, which is too short for
        # a busy machine.
        agents = ("metrics_agent", "metrics_export", "runtime_env_agent", "dashboard_agent_listen")
        return {
            "node_ip_address": next(self._addresses),
            "temp_dir": self._folder,
            "num_cpus": 1,
            "object_store_memory": OBJECT_STORE_BYTES,
            **{f"{each}_port": free_port() for each in agents},
        }

    def add(self) -> Node:
        return self.ray.add_node(**self._options())

    def kill(self, node: Node) -> None:
        """Kills every process of a node at once, the replica's first."""
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        for process in [*raylet.children(recursive=True), raylet]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.ray.remove_node(node, allow_graceful=False)


class Servers:
    """The cluster, and the application on it."""

    def __init__(self, store: Path) -> None:
        self.store = str(store)
        self.nodes: Nodes | None = None
        address = os.environ.get("RAY_ADDRESS")
        if address is None:
            # Paths of Unix sockets are short.
            self._folder = tempfile.TemporaryDirectory(prefix="hr-", ignore_cleanup_errors=True)
            self.nodes = Nodes(self._folder.name)
            address = self.nodes.ray.address
        ray.init(address=address, namespace="serve", log_to_driver=False)
        self.port = free_port()
        serve.start(
            proxy_location="HeadOnly",  # several nodes share this machine's ports
            grpc_options={
                "port": self.port,
                "grpc_servicer_functions": [application.SERVICER],
                "enable_reflection": False,
            },
            http_options={"port": free_port()},
        )
        self.address = f"127.0.0.1:{self.port}"

    def deploy(self, settings: Mapping[str, str] = SETTINGS, **options: Any) -> None:
        """Deploys the application, and waits until it runs."""
        made = application.deployment.options(
            **{"ray_actor_options": {"num_cpus": 1}, "num_replicas": 3, **options}
        )
        try:
            serve.run(made.bind(self.store, dict(settings)), name=NAME, route_prefix="/")
        except RuntimeError as error:  # it does not say why
            raise AssertionError(str(serve.status().applications[NAME])) from error

    def members(self) -> list[tuple[Member, Standing]]:
        keeper = application.RayKeeper(NAME, self.store)
        found: list[tuple[Member, Standing]] = asyncio.run(keeper._ask("members"))
        return found

    def ready(self, count: int) -> list[Member]:
        """Waits until so many replicas take requests."""

        def look() -> list[Member] | None:
            found = [member for member, standing in self.members() if standing.ready]
            return found if len(found) == count else None

        members: list[Member] = until(look, f"{count} replicas are ready")
        return members

    def client(self) -> Client:
        return Client(self.address)

    def close(self) -> None:
        serve.shutdown()
        ray.shutdown()
        if self.nodes is not None:
            self.nodes.ray.shutdown()
            self._folder.cleanup()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    found = Servers(tmp_path_factory.mktemp("cluster") / "store")
    try:
        found.deploy()
        found.ready(3)
        yield found
    finally:
        found.close()


@pytest.fixture
def client(servers: Servers) -> Iterator[Client]:
    with servers.client() as found:
        yield found
        for network in found.networks():
            network.unload()


@pytest.fixture
def mlp(client: Client) -> Network:
    return client.load_network(MODEL, device="CPU", name="mlp")


class Load:
    """Threads of clients that call without a pause, until the context ends."""

    def __init__(self, servers: Servers, threads: int = 4, name: str = "mlp") -> None:
        self._servers, self._name = servers, name
        self.answered: Counter[str] = Counter()
        self.failed: list[str] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._unary) for _ in range(threads)]

    def _unary(self) -> None:
        with self._servers.client() as client:
            network = client.network(self._name)
            while not self._over.is_set():
                try:
                    scores = network.infer(X)["scores"]
                    assert np.isfinite(scores).all()
                    self.answered["unary"] += 1
                except errors.Error as error:
                    self.failed.append(f"{error.code.name}: {error}")

    def more(self, count: int) -> None:
        """Waits until so many further requests are answered."""
        wanted = self.answered["unary"] + count
        until(lambda: self.answered["unary"] >= wanted, f"{count} answers")

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        self.more(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
