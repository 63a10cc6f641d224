"""A cluster without Ray: whole replicas and their keeper in one process, on one event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import grpc.aio

from headrace.client import Client
from headrace.cluster.desired import Value
from headrace.cluster.keeper import Keeper
from headrace.cluster.keeping import CommitResult
from headrace.cluster.replica import Replica
from headrace.cluster.shared.objects import Objects
from headrace.server.settings.settings import Settings
from tests.support.patience import PATIENCE_SECONDS

T = TypeVar("T")

STOP_SECONDS = 120.0  # half of it is for other replicas to take over networks


class LocalKeeper:
    """A keeper on this event loop, which other threads reach too."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper
        self._loop = asyncio.get_running_loop()
        self.follow, self.report, self.enter = keeper.follow, keeper.report, keeper.enter
        self.settle, self.release, self.leave = keeper.settle, keeper.release, keeper.leave

    def commit(self, key: str, value: Value | None, expected: int) -> CommitResult:
        call = self.keeper.commit(key, value, expected)
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(PATIENCE_SECONDS)


class _Server(grpc.aio._server.Server):  # type: ignore[misc]
    """A server of a class of its own, as Ray Serve's is."""

    def __init__(self) -> None:
        super().__init__(None, (), (), (("grpc.so_reuseport", 0),), None, None)


class Hosted:
    """A replica on a gRPC server.

    Attributes:
        address: where clients and other replicas reach it.
        http: where its HTTP port is.
    """

    def __init__(self, name: str, store: str, keeper: LocalKeeper, settings: Settings) -> None:
        self.name = name
        self.replica = Replica(settings, Objects(store), keeper, b"k" * 32, name=name, node="here")
        self._server = _Server()
        self.address = self.http = ""

    async def start(self) -> None:
        self.replica.mount(self._server)
        assert self.replica._convergence is not None
        self.address = self.replica._convergence.member.address
        await self.replica.start()
        assert self.replica._app is not None
        self.http = self.replica._app._listeners._addresses().http
        await self._server.start()

    async def stop(self) -> None:
        await self.replica.stop(STOP_SECONDS)


class Cluster:
    """Replicas on an event loop of their own. Every method may be called by the test's thread.

    Args:
        store: a folder.
        settings: those of each replica.
    """

    def __init__(self, store: str, settings: Settings, replicas: int = 3) -> None:
        self._store, self._settings = store, settings
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(48))  # replicas wait for one another
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)
        self._thread.start()
        self.keeper = self.run(self._make_keeper())
        self.replicas: list[Hosted] = []
        self._joined = 0
        for _ in range(replicas):
            self.join()

    async def _make_keeper(self) -> LocalKeeper:
        # However slow the machine is, no replica counts as lost.
        return LocalKeeper(Keeper(self._store, lost_seconds=STOP_SECONDS))

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(STOP_SECONDS)

    def join(self) -> Hosted:
        """Adds a replica."""

        async def begin() -> Hosted:
            hosted = Hosted(f"r{self._joined}", self._store, self.keeper, self._settings)
            await hosted.start()
            return hosted

        hosted = self.run(begin())
        self._joined += 1
        self.replicas.append(hosted)
        return hosted

    def stop(self, hosted: Hosted) -> None:
        """Stops a replica, as Serve does."""
        self.replicas.remove(hosted)
        self.run(hosted.stop())

    def clients(self) -> list[Client]:
        """A client of each replica."""
        return [Client(each.address) for each in self.replicas]

    def holders(self, name: str) -> tuple[str, ...]:
        """The replicas that are to have a network."""
        return self.keeper.keeper._places.of(name)

    def close(self) -> None:
        for each in list(self.replicas):
            self.stop(each)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_SECONDS)
        self._loop.close()
