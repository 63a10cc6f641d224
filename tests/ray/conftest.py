"""A Ray cluster of several nodes on this machine, with the real HAProxy. ``make test-ray``.

With RAY_ADDRESS the tests run on a cluster that is there already, and kill none of its nodes.
Start it with the variables of nodes.py.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

# Sets what Ray reads when it is imported.
from tests.ray.nodes import Nodes, free_ports  # isort: split

import numpy as np
import pytest
import ray
from ray import serve

from headrace.client import Client, errors
from headrace.client.sync import Network
from headrace.cluster import application
from headrace.cluster.members import ReplicaAddress, ReplicaStatus
from headrace.testing import networks

PATIENCE_SECONDS = 240.0
NAME = "headrace"
SETTINGS = {"devices": "CPU,TEMPLATE", "allow_insecure": "true"}
CASE = networks.mlp()
MODEL = CASE.model.SerializeToString()
X = CASE.inputs
LARGE = {"x": np.tile(np.asarray(X["x"]), (1000, 1))}
"""More bytes than a request on a shared stream may have."""
WAYS = ("shared", "call", "many")

Outcome = Mapping[str, Any] | errors.Error


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> Any:
    """Waits for a state, and returns what the condition gave."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.1)
    return found


class Servers:
    """The cluster, and the application on it."""

    def __init__(self, store: Path) -> None:
        self.store = str(store)
        self.settings = SETTINGS
        self.nodes: Nodes | None = None
        address = os.environ.get("RAY_ADDRESS")
        if address is None:
            self.nodes = Nodes(3)
            address = self.nodes.ray.address
        ray.init(address=address, namespace="serve", log_to_driver=False)
        self.port, http_port = free_ports(2)
        serve.start(
            proxy_location="HeadOnly",  # several nodes share this machine's ports
            grpc_options={
                "port": self.port,
                "grpc_servicer_functions": [application.SERVICER],
                "enable_reflection": False,
            },
            http_options={"port": http_port},
        )
        self.address = f"127.0.0.1:{self.port}"

    def deploy(self, settings: Mapping[str, str] | None = None, **options: Any) -> None:
        """Deploys the application, and waits until it runs.

        Args:
            settings: None for the ones that it has.
            options: options of the deployment, instead of three replicas.
        """
        self.settings = dict(settings or self.settings)
        made = application.deployment.options(
            **{"ray_actor_options": {"num_cpus": 1}, **(options or {"num_replicas": 3})}
        )
        try:
            serve.run(made.bind(self.store, self.settings), name=NAME, route_prefix="/")
        except RuntimeError as error:  # it does not say why
            raise AssertionError(str(serve.status().applications[NAME])) from error
        until(self._reachable, "HAProxy knows a replica")

    def _reachable(self) -> bool:
        with self.client() as client:
            try:
                client.networks()
            except errors.Unavailable:
                return False
        return True

    def members(self) -> list[tuple[ReplicaAddress, ReplicaStatus]]:
        keeper = application.RayKeeper(NAME, self.store)
        found: list[tuple[ReplicaAddress, ReplicaStatus]] = asyncio.run(keeper._ask("members"))
        return found

    def ready(self, count: int) -> list[ReplicaAddress]:
        """Waits until so many replicas take requests."""

        def look() -> list[ReplicaAddress] | None:
            found = [member for member, status in self.members() if status.ready]
            return found if len(found) == count else None

        members: list[ReplicaAddress] = until(look, f"{count} replicas are ready")
        return members

    def client(self) -> Client:
        return Client(self.address)

    def close(self) -> None:
        serve.shutdown()
        ray.shutdown()
        if self.nodes is not None:
            self.nodes.close()


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
    """Clients that call without a pause, until the context ends, in every way that requests travel:
    on the stream that a client's requests share, in calls of their own, and in `infer_many`."""

    def __init__(self, servers: Servers, name: str = "mlp") -> None:
        self._servers, self._name = servers, name
        self.answered: Counter[str] = Counter()
        self.failed: list[str] = []
        self._over = threading.Event()
        ways = {"shared": self._shared, "call": self._call, "many": self._many}
        self._threads = [threading.Thread(target=self._repeat, args=each) for each in ways.items()]

    def _repeat(self, way: str, ask: Callable[[Network], Iterator[Outcome]]) -> None:
        # The balancing client moves a stream that breaks, also if it has one address.
        target: Any = [self._servers.address] if way == "many" else self._servers.address
        with Client(target) as client:
            network = client.network(self._name)
            while not self._over.is_set():
                try:
                    for outcome in ask(network):
                        if isinstance(outcome, errors.Error):
                            raise outcome
                        assert np.isfinite(outcome["scores"]).all()
                        self.answered[way] += 1
                except errors.Error as error:
                    self.failed.append(f"{way}: {error.code.name}: {error}")

    @staticmethod
    def _shared(network: Network) -> Iterator[Outcome]:
        yield network.infer(X)

    @staticmethod
    def _call(network: Network) -> Iterator[Outcome]:
        yield network.infer(LARGE)

    @staticmethod
    def _many(network: Network) -> Iterator[Outcome]:
        for _, outcome in network.infer_many([X] * 50, in_flight=4):
            yield outcome

    def more(self, count: int) -> None:
        """Waits until each client has so many further answers."""
        wanted = {way: self.answered[way] + count for way in WAYS}
        until(
            lambda: all(self.answered[way] >= number for way, number in wanted.items()),
            f"{count} answers in each way",
        )

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        self.more(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
