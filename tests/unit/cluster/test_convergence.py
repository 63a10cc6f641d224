"""Replicas without Ray: cores that follow one keeper, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from headrace.cluster import networks
from headrace.cluster.actions import Actions
from headrace.cluster.convergence import Convergence
from headrace.cluster.keeper import Keeper
from headrace.cluster.members import ReplicaAddress
from headrace.cluster.placement.directory import Directory
from headrace.cluster.settlement import settle
from headrace.cluster.shared.objects import Objects
from headrace.cluster.store import COMMITS, ClusterStore, Commit
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.plugin_source import factory_source
from headrace.runtime.errors import AlreadyExists, FailedPrecondition, NotFound, NotLoaded
from headrace.runtime.loading.entry import NetworkState
from headrace.runtime.loading.memory_budget import MemoryBudget
from headrace.runtime.loading.shadows.shadow import NO_SHADOW, Shadow
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import LoadRequest
from headrace.server.services.targets import configure
from headrace.server.serving.catalogue import Catalogue
from headrace.testing import networks as models
from headrace.testing.case import parse
from tests.support.cluster import LocalKeeper
from tests.support.patience import PATIENCE_SECONDS

CPU, TEMPLATE = (f"headrace.plugins.{each}:create_plugin" for each in ("cpu", "template"))
MODEL = models.add().model.SerializeToString()
OTHER = models.mlp().model.SerializeToString()
WEIGHTY = parse(
    "m (float[N,512] x) => (float[N,512] y) { y = MatMul(x, w) }",
    {"w": np.zeros((512, 512), np.float32)},  # 1 MiB
).SerializeToString()
EXTENSION = models.local_function().model.SerializeToString()
_USING = onnx.ModelProto.FromString(EXTENSION)
del _USING.functions[:]
USER = _USING.SerializeToString()


class Replica:
    """A core that follows the keeper."""

    def __init__(
        self, name: str, folder: str, keeper: LocalKeeper, *devices: str, **options: Any
    ) -> None:
        self.keeper = keeper
        objects = Objects(folder)
        self.store = ClusterStore(objects, keeper)
        sources = [
            factory_source(device, CPU if device == "CPU" else TEMPLATE)
            for device in devices or ("TEMPLATE",)
        ]
        self.core = Core(sources, blob_key=b"k" * 32, store=self.store, **options)
        self.directory = Directory(name)
        self.directory.here = self.core.networks
        self.convergence = Convergence(
            Actions(self.core, Catalogue(self.core, lambda _: None), objects),
            self.store,
            keeper,
            ReplicaAddress(name),
            self.directory,
            lambda _: None,
        )

    async def load(self, name: str = "n", model: bytes = MODEL, **said: Any) -> None:
        """Loads a network as a client's call does, and waits for all replicas."""
        device = DeviceName.parse(said.pop("device", "TEMPLATE"))
        request = LoadRequest(name, device, {}, version=said.pop("version", "1"))
        read = partial(Network.from_bytes, model)
        await self.change(
            lambda: self.core.load_network(request, read, **said).result(PATIENCE_SECONDS)
        )

    async def change(self, call: Callable[[], object]) -> None:
        commits: list[Commit] = []
        token = COMMITS.set(commits)
        try:
            await asyncio.to_thread(call)
        finally:
            COMMITS.reset(token)
        await asyncio.wait_for(settle(commits, self.keeper), PATIENCE_SECONDS)

    async def unload(self, name: str = "n", version: str = "") -> None:
        await self.change(lambda: self.core.unload_network(name, version).result(PATIENCE_SECONDS))

    def serves(self, name: str = "n") -> list[str]:
        """The versions of a network that take requests."""
        found = self.core.networks.versions(name)
        return [each.key.version for each in found if each.state is NetworkState.READY]


@asynccontextmanager
async def replicas(folder: Path, count: int = 3) -> AsyncIterator[list[Replica]]:
    store = str(folder / "store")
    keeper = LocalKeeper(Keeper(store))
    async with AsyncExitStack() as stack:
        yield [await joined(stack, store, keeper, f"r{number}") for number in range(count)]


async def joined(
    stack: AsyncExitStack,
    store: str,
    keeper: LocalKeeper,
    name: str,
    *devices: str,
    **options: Any,
) -> Replica:
    replica = Replica(name, store, keeper, *devices, **options)
    stack.callback(replica.core.stop)
    stack.push_async_callback(replica.convergence.stop)
    await asyncio.wait_for(replica.convergence.start(), PATIENCE_SECONDS)
    return replica


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def with_threads() -> None:
        # Three cores wait for one another on these.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(32))
        await test()

    asyncio.run(with_threads())


def test_a_network_is_on_all_replicas_when_the_load_returns(tmp_path: Path) -> None:
    async def test() -> None:
        async with replicas(tmp_path) as (first, second, third):
            await first.load()
            assert [each.serves() for each in (first, second, third)] == [["1"]] * 3
            await third.unload()
            assert [each.serves() for each in (first, second, third)] == [[]] * 3

    run(test)


def test_a_replica_of_tomorrow_has_everything_before_it_starts(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            store = str(tmp_path / "store")
            keeper = LocalKeeper(Keeper(store))
            first = await joined(stack, store, keeper, "r0", "CPU", "TEMPLATE")
            await first.load("a")
            await first.load("b", OTHER)
            device = DeviceName.parse("TEMPLATE")
            await first.change(lambda: first.core.set_config(device, {"PERF_COUNT": "YES"}))
            cpu = DeviceName.parse("CPU")
            await first.change(lambda: first.core.add_extension(cpu, EXTENSION))
            again = LocalKeeper(Keeper(store))
            later = await joined(stack, store, again, "r1", "CPU", "TEMPLATE")
            assert (later.serves("a"), later.serves("b")) == (["1"], ["1"])
            assert later.core.plugin(device).settings()["PERF_COUNT"] == "YES"
            assert first.store.keys() == later.store.keys()

    run(test)


def test_only_one_of_two_replicas_gets_a_new_name(tmp_path: Path) -> None:
    async def test() -> None:
        async with replicas(tmp_path) as (first, second, third):
            results = await asyncio.gather(
                first.load(model=MODEL), second.load(model=OTHER), return_exceptions=True
            )
            failed = [each for each in results if each is not None]
            assert len(failed) == 1
            assert isinstance(failed[0], AlreadyExists)
            digests = set()
            for each in (first, second, third):
                await asyncio.wait_for(settled(each), PATIENCE_SECONDS)
                digests.add(each.core.networks.find("n").record.given.digest)
            assert len(digests) == 1

    run(test)


async def settled(replica: Replica) -> None:
    """Returns when every replica has what is desired of the network now."""
    revision = replica.store.knows(networks.key_of("n"))
    await replica.keeper.settle(networks.key_of("n"), revision)


def test_a_replacement_and_versions_reach_all_replicas(tmp_path: Path) -> None:
    async def test() -> None:
        async with replicas(tmp_path) as (first, second, third):
            owner = object()
            await first.load(version="1", owner=owner)
            await first.load(version="2", owner=owner, model=OTHER)
            assert [each.serves() for each in (second, third)] == [["1", "2"]] * 2
            await second.change(lambda: second.core.set_traffic("n", {"1": 30, "2": 70}))
            assert third.core.networks.serving("n") == {"1": 30, "2": 70}
            await second.unload(version="2")
            assert [each.serves() for each in (first, second, third)] == [["1"]] * 3
            await third.load(model=OTHER, replace=True)
            assert first.core.networks.find("n").record.given.digest == (
                third.core.networks.find("n").record.given.digest
            )

    run(test)


def test_changed_keys_reach_loaded_networks(tmp_path: Path) -> None:
    async def test() -> None:
        async with replicas(tmp_path) as (first, second, third):
            await first.load()
            entry = first.core.networks.find("n")
            await first.change(
                lambda: configure(first.core, entry, {"EXECUTION_TIMEOUT": "7"}, first.store)
            )
            for each in (second, third):
                executable = each.core.networks.find("n").executable
                assert executable is not None
                assert executable.config.to_strings()["EXECUTION_TIMEOUT"] == "7"

    run(test)


def test_a_shadow_reaches_all_replicas_also_one_that_comes_later(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            store = str(tmp_path / "store")
            keeper = LocalKeeper(Keeper(store))
            first = await joined(stack, store, keeper, "r0")
            second = await joined(stack, store, keeper, "r1")
            await first.load(version="1", owner=(owner := object()))
            await first.load(version="2", owner=owner)
            shadow = Shadow("1", percent=7)
            await first.change(lambda: first.core.set_shadow("n", shadow))
            later = await joined(stack, store, keeper, "r2")
            all_of = (first, second, later)
            assert [each.core.shadows.get("n") for each in all_of] == [shadow] * 3
            await second.change(lambda: second.core.set_shadow("n", Shadow(percent=0)))
            assert [each.core.shadows.get("n") for each in all_of] == [NO_SHADOW] * 3
            await first.change(lambda: first.core.set_shadow("n", shadow))
            await later.unload()
            await first.load()
            assert [each.core.shadows.get("n") for each in all_of] == [NO_SHADOW] * 3

    run(test)


def test_a_replica_that_cannot_give_a_network_its_shadow_serves_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            store = str(tmp_path / "store")
            keeper = LocalKeeper(Keeper(store))
            first = await joined(stack, store, keeper, "r0", "TEMPLATE", "SPECIAL")
            second = await joined(stack, store, keeper, "r1")
            await first.load()
            shadow = Shadow(device="SPECIAL")
            await first.change(lambda: first.core.set_shadow("n", shadow))
            assert [each.core.shadows.get("n") for each in (first, second)] == [shadow, NO_SHADOW]
            assert second.serves() == ["1"]

    run(test)


def test_the_memory_budget_of_a_replica_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.runtime.loading.life.family_bytes", lambda: 0)

    async def test() -> None:
        async with AsyncExitStack() as stack:
            store = str(tmp_path / "store")
            keeper = LocalKeeper(Keeper(store))
            # With room for the load of one network beside two others that are loaded.
            budget = MemoryBudget({"TEMPLATE": 9 * 2**20})
            small = await joined(
                stack, store, keeper, "small", budget=budget, clients_networks_leave=True
            )
            large = await joined(stack, store, keeper, "large")
            names = [f"n{number}" for number in range(4)]
            for name in names:
                await large.load(name, model=WEIGHTY)
            assert [large.serves(name) for name in names] == [["1"]] * 4
            assert [small.serves(name) for name in names] == [[], ["1"], ["1"], ["1"]]
            with pytest.raises(NotLoaded):  # its next request loads it
                small.core.networks.acquire("n0")

    run(test)


def test_the_reply_names_the_replica_that_does_not_serve_the_network(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            store = str(tmp_path / "store")
            keeper = LocalKeeper(Keeper(store))
            first = await joined(stack, store, keeper, "r0", "TEMPLATE", "SPECIAL")
            await joined(stack, store, keeper, "poor")
            with pytest.raises(FailedPrecondition, match="1 of its replicas") as caught:
                await first.load(device="SPECIAL")
            assert "SPECIAL" in caught.value.metadata["poor"]
            assert first.serves() == ["1"]
            await first.unload()

    run(test)


def test_a_name_that_nobody_has_cannot_be_unloaded(tmp_path: Path) -> None:
    async def test() -> None:
        async with replicas(tmp_path, 1) as (only,):
            with pytest.raises(NotFound):
                await only.unload("none")

    run(test)


def test_an_extension_is_on_all_replicas_when_the_call_returns(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            store = str(tmp_path / "store")
            keeper = LocalKeeper(Keeper(store))
            found = [await joined(stack, store, keeper, f"r{n}", "CPU") for n in range(3)]
            cpu = DeviceName.parse("CPU")
            await found[1].change(lambda: found[1].core.add_extension(cpu, EXTENSION))
            for each in found:
                (kept,) = each.store.keys()
                assert kept.startswith("extension/CPU/")
            # A network that needs the extension loads everywhere.
            await found[0].load(model=USER, device="CPU")
            assert [each.serves() for each in found] == [["1"]] * 3

    run(test)
