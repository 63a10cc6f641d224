"""The service's methods, where the order of events on the loop matters."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.plugins import hetero, template
from headrace.plugins.template.plugin import TemplatePlugin
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.device.services import Services
from headrace.runtime.device.state import DeviceState
from headrace.runtime.errors import Cancelled, NotFound, StillLoading, Unavailable
from headrace.runtime.loading.entry import USUAL
from headrace.runtime.loading.executor import LoadExecutor
from headrace.runtime.loading.memory_budget import MemoryBudget
from headrace.runtime.loading.registry import NetworkRegistry, NetworkState
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import LoadRequest
from headrace.server.access.identity import CALLER, Identity, Role
from headrace.server.access.networks import Networks
from headrace.server.services.engine import Servicer
from headrace.server.services.uploads import Uploads
from headrace.server.serving.catalogue import Catalogue
from headrace.server.status.devices import device_rows
from headrace.testing import networks
from headrace.v1 import inference_engine_pb2 as pb
from tests.support.patience import PATIENCE_SECONDS

NETWORKS = Networks(NetworkRegistry(1))


class LoadingCore:
    """A core that loads one network, for as long as the test likes, and cannot stop it any more."""

    limits = None

    def __init__(self) -> None:
        self.load: Future[Any] = Future()
        self.asked, self.given_up = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def plugin(self, _: object) -> None: ...

    def load_network(self, *_: object, **__: object) -> Future[Any]:
        self._loop.call_soon_threadsafe(self.asked.set)
        return self.load

    def cancel_load(self, load: Future[Any]) -> None:
        assert load is self.load
        self.given_up.set()


LOAD = pb.LoadNetworkRequest(name="net", device="CPU", model=pb.ModelSource(data=b"model"))
QUERY = pb.QueryNetworkRequest(device="CPU", model=pb.ModelSource(data=b"model"))


def servicer_of(
    core: Any, uploads: Any = None, changed: Callable[[str], object] = lambda _: None
) -> Servicer:
    repository: Any = None
    return Servicer(core, NETWORKS, uploads, repository, Catalogue(core, changed))


async def leave(core: LoadingCore, call: Coroutine[Any, Any, Any]) -> None:
    """Makes a call, and leaves it when the core has been asked."""
    task = asyncio.create_task(call)
    await core.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_network_whose_caller_left_is_told_of_all_the_same() -> None:
    async def scenario() -> None:
        core, told = LoadingCore(), list[str]()
        await leave(core, servicer_of(core, changed=told.append).load_network(LOAD, None))
        await core.given_up.wait()
        assert not told
        core.load.set_result(SimpleNamespace(state=NetworkState.READY))
        assert told == ["net"]

    asyncio.run(scenario())


def test_an_error_of_a_load_whose_caller_left_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    """A cancelled load fails. Any client could fill the log with tracebacks."""

    async def scenario() -> None:
        core = LoadingCore()
        await leave(core, servicer_of(core).load_network(LOAD, None))
        core.load.set_exception(Cancelled("the caller cancelled the load"))
        del core
        await asyncio.sleep(0)  # the loop hears of it
        await asyncio.sleep(0)
        gc.collect()  # asyncio tells of errors that nobody heard of when their futures go

    asyncio.run(scenario())
    assert not caplog.records


def test_loads_that_wait_for_a_store_keep_no_other_call_waiting() -> None:
    async def scenario() -> None:
        loop, asked, answers = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))

        def load(*_: object, **__: object) -> Any:
            loop.call_soon_threadsafe(asked.set)
            answers.wait()
            raise NotFound("no such network")

        core: Any = LoadingCore()
        uploads: Any = None
        threads = LoadExecutor()
        repository: Any = SimpleNamespace(load=load, index=list, threads=threads)
        catalogue = Catalogue(core, lambda _: None)
        servicer = Servicer(core, NETWORKS, uploads, repository, catalogue)
        request = pb.LoadNetworkRequest(model=pb.ModelSource(repository="m"))
        loading = asyncio.create_task(servicer.load_network(request, None))
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asked.wait()
                assert await servicer.list_repository(None, None) == pb.ListRepositoryReply()
        finally:
            answers.set()
        with pytest.raises(NotFound):
            await loading
        threads.stop()

    asyncio.run(scenario())


class QueryingCore(LoadingCore):
    """A core that answers one query when the test likes."""

    def query_network(self, *_: object, **__: object) -> Future[Any]:
        return self.load_network()

    def cancel_query(self, query: Future[Any]) -> None:
        self.cancel_load(query)


def test_a_query_whose_caller_left_is_cancelled() -> None:
    async def scenario() -> None:
        core = QueryingCore()
        await leave(core, servicer_of(core).query_network(QUERY, None))
        await core.given_up.wait()

    asyncio.run(scenario())


class ImportingCore(LoadingCore):
    """Takes its time to look at the blob."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.threads = threading.Event(), set[int]()

    def import_network(self, *_: object, **__: object) -> Future[Any]:
        self.threads.add(threading.get_ident())
        self._loop.call_soon_threadsafe(self.asked.set)
        self.seen.wait()
        return self.load


class Parts:
    """The messages of an import."""

    def __init__(self) -> None:
        options = pb.ImportOptions(name="net", device="CPU")
        self._left: list[Any] = [
            pb.ImportNetworkRequest(options=options).SerializeToString(),
            pb.ImportNetworkRequest(chunk=b"blob").SerializeToString(),
            None,
        ]

    async def read(self) -> Any:
        return self._left.pop(0)


def test_a_blob_is_looked_at_beside_the_loop_and_given_up_with_its_caller() -> None:
    async def scenario() -> None:
        core = ImportingCore()
        with closing(Uploads(100, 100)) as uploads:
            call = asyncio.create_task(servicer_of(core, uploads).import_network(Parts()))
            await core.asked.wait()
            assert threading.get_ident() not in core.threads
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            core.seen.set()
            await core.given_up.wait()

    asyncio.run(scenario())


@contextmanager
def templates(**options: Any) -> Iterator[Core]:
    source = PluginSource("TEMPLATE", lambda: template.create_plugin)
    core = Core([source], blob_key=b"key", **options)
    try:
        yield core
    finally:
        core.stop()


REQUEST = LoadRequest("net", DeviceName.parse("TEMPLATE"))


def described(core: Core, seconds_left: float | None = None) -> pb.GetNetworkReply:
    nothing: Any = None
    catalogue = Catalogue(core, lambda _: None)
    servicer = Servicer(core, Networks(core.networks), nothing, nothing, catalogue)
    context = SimpleNamespace(time_remaining=lambda: seconds_left)
    return asyncio.run(servicer.get_network(pb.GetNetworkRequest(name="net"), context))


def read() -> Network:
    return networks.add().network


def test_a_network_stays_open_while_its_layers_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    with templates() as core:
        executable = core.load_network(REQUEST, read).result(PATIENCE_SECONDS).executable
        assert executable is not None
        layers, unloads = executable.layers, list[Future[None]]()

        def unloaded_meanwhile() -> Any:
            unloads.append(core.unload_network("net"))
            assert core.networks.entries()[0].references
            return layers()

        monkeypatch.setattr(executable, "layers", unloaded_meanwhile)
        assert described(core).layers
        unloads[0].result(PATIENCE_SECONDS)


def test_who_asks_about_a_cold_network_with_too_little_time_hears_how_long_its_load_takes() -> None:
    with templates(budget=MemoryBudget({"TEMPLATE": 2**30})) as core:
        core.know_network(REQUEST, read, owner="repository", residence=USUAL)
        core.networks.find("net").load_seconds = 30.0
        with pytest.raises(StillLoading) as caught:
            described(core, seconds_left=1.0)
        assert caught.value.retry_delay_seconds == 30.0


def test_only_who_may_change_a_network_learns_when_it_was_used_last() -> None:
    with templates() as core:
        core.load_network(REQUEST, read).result(PATIENCE_SECONDS)
        assert described(core).info.idle_seconds > 0
        token = CALLER.set(Identity("token:reader", frozenset({Role.READ})))
        try:
            assert not described(core).info.HasField("idle_seconds")
        finally:
            CALLER.reset(token)


class LatePlugin(TemplatePlugin):
    """Starts its backend when it is asked for its devices, and finds that it cannot."""

    def _device_ids(self) -> list[str]:
        self.services.states.set(self.name, DeviceState.DOWN, "the driver is missing")
        raise Unavailable("the driver is missing")

    def announce(self) -> None:
        """Knows no device yet."""


@plugin_api(1)
def create_late(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    return LatePlugin(name, services, config)


def test_a_device_whose_backend_does_not_start_when_it_is_looked_at_is_down_with_the_reason() -> (
    None
):
    core = Core([PluginSource("LATE", lambda: create_late)], blob_key=b"key")
    try:
        assert core.devices_up() == {"LATE": True}
        nothing: Any = None
        reply = asyncio.run(servicer_of(core).list_devices(nothing, nothing))
        (device,) = reply.devices
        assert (device.state, device.reason) == (pb.DOWN, "the driver is missing")
        assert core.devices_up() == {"LATE": False}
    finally:
        core.stop()


@plugin_api(1)
def create_broken(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    raise OSError(f"/usr/lib/{name}.so: wrong version of {config}{services.cache}")


def test_what_a_plugin_raises_at_its_start_is_told_to_those_who_may_manage_alone() -> None:
    core = Core([PluginSource("BROKEN", lambda: create_broken)], blob_key=b"key")
    nothing: Any = None

    def listed() -> list[str]:
        (device,) = asyncio.run(servicer_of(core).list_devices(nothing, nothing)).devices
        (row,) = device_rows(core, (), full=NETWORKS.manages(""))
        return [device.reason, row["reason"]]

    try:
        assert listed() == ["OSError: /usr/lib/BROKEN.so: wrong version of {}None"] * 2
        token = CALLER.set(Identity("token:user", frozenset({Role.INFER})))
        try:
            assert listed() == ["an internal error; see the server's log"] * 2
        finally:
            CALLER.reset(token)
    finally:
        core.stop()


def test_a_device_without_an_id_is_listed_with_none() -> None:
    sources = [
        PluginSource("TEMPLATE", lambda: template.create_plugin),
        PluginSource("HETERO", lambda: hetero.create_plugin),
    ]
    core = Core(sources, blob_key=b"key")
    try:
        nothing: Any = None
        reply = asyncio.run(servicer_of(core).list_devices(nothing, nothing))
        listed = {device.name: list(device.device_ids) for device in reply.devices}
        assert listed == {"TEMPLATE": ["0"], "HETERO": []}
    finally:
        core.stop()
