"""Loads, unloads and cancels that cross each other, and the memory they leave behind."""

from __future__ import annotations

import gc
import re
import tempfile
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.errors import (
    Cancelled,
    FailedPrecondition,
    InvalidModel,
    NotFound,
    ResourceExhausted,
    StillLoading,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.intake.naming import walk
from headrace.runtime.loading.registry import NetworkEntry, NetworkState
from headrace.runtime.loading.shadows.shadow import Shadow
from headrace.runtime.metrics import families
from headrace.runtime.network.memory import use
from headrace.runtime.network.network import Network
from headrace.runtime.system.asker import Asker
from headrace.runtime.transform.options import LoadRequest, NetworkOptions, Reference
from headrace.testing import networks
from headrace.testing.case import parse
from headrace.testing.counted import numbers
from headrace.testing.occupied import eventually
from tests.support.gate import Gate, run_together
from tests.support.hook_plugin import HookPlugin
from tests.support.interleaving import frequent_switches
from tests.support.patience import PATIENCE_SECONDS

LARGE = parse(
    "m (float[N,700] x) => (float[N,700] y) { y = MatMul(x, w) }",
    {"w": np.zeros((700, 700), np.float32)},
).SerializeToString()


class Store:
    """Names of what it keeps; models are named by their size."""

    shared = False

    def __init__(self) -> None:
        self.networks: dict[str, str] = {}

    @contextmanager
    def keep_model(self, network: Network) -> Iterator[str]:
        yield network.digest

    def save_network(self, request: LoadRequest, model: str, *, alone: bool) -> None:
        self.networks[request.name] = model

    def forget_network(self, name: str, versions: Collection[str] | None = None) -> None:
        self.networks.pop(name, None)

    def save_shares(self, name: str, shares: Mapping[str, int]) -> None: ...

    def save_shadow(self, name: str, shadow: Shadow) -> None: ...

    def save_changes(self, name: str, version: str, changes: Mapping[str, str]) -> None: ...

    def save_config(self, device: str, config: Mapping[str, str]) -> None: ...

    def save_extension(self, device: str, functions: bytes) -> None: ...


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def core(store: Store) -> Iterator[Core]:
    source = PluginSource("HOOK", lambda: plugin_api(1)(HookPlugin))
    core = Core([source], blob_key=b"key", store=store)
    yield core
    core.stop()


@pytest.fixture
def plugin(core: Core) -> HookPlugin:
    plugin = core.plugins.plugin("HOOK")
    assert isinstance(plugin, HookPlugin)
    return plugin


def small() -> Network:
    return networks.add().network


def no_model() -> Network:
    raise InvalidModel("no model")


def load(
    core: Core,
    name: str = "m",
    read: Callable[[], Network] = small,
    *,
    reference: Reference | None = None,
    replace: bool = False,
    on_disk: bool = False,
) -> Future[NetworkEntry]:
    request = LoadRequest(name, DeviceName.parse("HOOK"), reference=reference)
    return core.load_network(request, read, replace=replace, on_disk=on_disk)


def names(core: Core) -> set[str]:
    ready = NetworkState.READY
    return {entry.key.name for entry in core.networks.entries() if entry.state is ready}


def test_a_network_that_does_not_close_keeps_none_of_another_client_in_memory(
    core: Core, plugin: HookPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    for who in ("eve", "bob"):
        request = LoadRequest(who, DeviceName.parse("HOOK"))
        core.load_network(request, small, asker=Asker(who)).result(PATIENCE_SECONDS)
    stuck = Gate()
    monkeypatch.setattr(plugin.compiled[0], "_close", stuck)
    closing = core.unload_network("eve")
    core.unload_network("bob").result(PATIENCE_SECONDS)
    assert not closing.done()
    stuck.open()
    closing.result(PATIENCE_SECONDS)


# -- cancelled loads --


def test_a_load_that_is_cancelled_while_it_compiles_never_succeeds(
    core: Core, plugin: HookPlugin, store: Store
) -> None:
    gate = Gate()
    plugin.on_compile = lambda _: gate()
    loading = load(core)
    gate.await_arrivals()
    core.cancel_load(loading)
    gate.open()
    with pytest.raises(Cancelled, match="the caller cancelled"):
        loading.result(PATIENCE_SECONDS)
    assert [each.closed for each in plugin.compiled] == [1]
    assert (core.networks.entries(), store.networks) == ([], {})


def test_a_load_that_is_cancelled_while_it_is_read_is_neither_transformed_nor_compiled(
    core: Core, plugin: HookPlugin
) -> None:
    gate, transformed = Gate(), []

    def note(_: ir.Model) -> bool:
        transformed.append("it")
        return False

    def read() -> Network:
        gate()
        return small()

    plugin.passes = [note]

    loading = load(core, read=read)
    gate.await_arrivals()
    core.cancel_load(loading)
    gate.open()
    with pytest.raises(Cancelled, match="the caller cancelled"):
        loading.result(PATIENCE_SECONDS)
    assert (transformed, plugin.compiled) == ([], [])


def test_loads_and_queries_that_are_given_up_leave_their_threads_to_others(
    core: Core, plugin: HookPlugin
) -> None:
    """As large networks do, these have passes over their layers without end."""
    began, wanted = Gate(), threading.Event()

    def endless(model: ir.Model) -> bool:
        began()
        while not wanted.is_set():
            list(walk(model.graph))
        return False

    began.open()
    plugin.passes = [endless]
    device, options = DeviceName.parse("HOOK"), NetworkOptions()
    loading, query = load(core), core.query_network(device, {}, options, small)
    began.await_arrivals(2)
    plugin.passes = []
    core.cancel_load(loading)
    core.cancel_query(query)
    try:
        load(core, "other").result(PATIENCE_SECONDS)
    finally:
        wanted.set()
    for given_up in (loading, query):
        with pytest.raises(Cancelled, match="the caller cancelled"):
            given_up.result(PATIENCE_SECONDS)


@pytest.mark.parametrize("how", ["cancelled", "unloaded"])
def test_a_load_that_is_given_up_gives_its_name_back_while_its_backend_goes_on(
    core: Core, plugin: HookPlugin, store: Store, how: str
) -> None:
    gate = Gate()
    plugin.on_compile = lambda _: gate()
    loading = load(core)
    gate.await_arrivals()
    if how == "cancelled":
        core.cancel_load(loading)
    else:
        core.unload_network("m").result(PATIENCE_SECONDS)
    assert core.networks.entries() == []
    plugin.on_compile = lambda _: None
    load(core).result(PATIENCE_SECONDS)
    gate.open()
    with pytest.raises(Cancelled):
        loading.result(PATIENCE_SECONDS)
    assert (names(core), set(store.networks)) == ({"m"}, {"m"})
    assert sorted(each.closed for each in plugin.compiled) == [0, 1]


def test_a_load_that_was_given_up_counts_until_its_backend_returns(store: Store) -> None:
    source = PluginSource("HOOK", lambda: plugin_api(1)(HookPlugin))
    core = Core([source], blob_key=b"key", store=store, max_networks=1)
    plugin = core.plugins.plugin("HOOK")
    assert isinstance(plugin, HookPlugin)
    gate = Gate()
    plugin.on_compile = lambda _: gate()
    try:
        loading = load(core)
        gate.await_arrivals()
        core.cancel_load(loading)
        with pytest.raises(ResourceExhausted, match="1 networks are loaded"):
            load(core)
        gate.open()
        with pytest.raises(Cancelled):
            loading.result(PATIENCE_SECONDS)
        load(core).result(PATIENCE_SECONDS)
    finally:
        gate.open()
        core.stop()


def test_a_load_that_is_cancelled_before_it_begins_reads_nothing(
    core: Core, plugin: HookPlugin
) -> None:
    gate, read = Gate(), Gate()
    plugin.on_compile = lambda _: gate()
    others = [load(core, name) for name in ("a", "b")]  # there are two threads
    gate.await_arrivals(2)

    def never() -> Network:
        read.open()
        raise AssertionError("was read")

    waiting = load(core, "c", never)
    core.cancel_load(waiting)
    gate.open()
    with pytest.raises(Cancelled):
        waiting.result(PATIENCE_SECONDS)
    for each in others:
        each.result(PATIENCE_SECONDS)


def test_a_load_that_is_cancelled_before_it_begins_counts_no_more(store: Store) -> None:
    source = PluginSource("HOOK", lambda: plugin_api(1)(HookPlugin))
    core = Core([source], blob_key=b"key", store=store, max_networks=3)
    plugin, gate = core.plugins.plugin("HOOK"), Gate()
    assert isinstance(plugin, HookPlugin)
    plugin.on_compile = lambda _: gate()
    try:
        others = [load(core, name) for name in ("a", "b")]  # there are two threads
        gate.await_arrivals(2)
        waiting = load(core, "c")
        core.cancel_load(waiting)
        with pytest.raises(Cancelled):
            waiting.result(PATIENCE_SECONDS)
        others.append(load(core, "d"))
        gate.open()
        for each in others:
            each.result(PATIENCE_SECONDS)
    finally:
        gate.open()
        core.stop()


def test_a_network_that_is_loaded_cannot_be_cancelled_any_more(core: Core) -> None:
    loaded = load(core)
    loaded.result(PATIENCE_SECONDS)
    core.cancel_load(loaded)
    assert names(core) == {"m"}


def test_a_cancel_that_comes_late_leaves_the_next_load_of_the_name_alone(
    core: Core, plugin: HookPlugin
) -> None:
    failed = load(core, "m", no_model)
    with pytest.raises(InvalidModel):
        failed.result(PATIENCE_SECONDS)
    gate = Gate()
    plugin.on_compile = lambda _: gate()
    second = load(core)
    gate.await_arrivals()
    core.cancel_load(failed)
    gate.open()
    second.result(PATIENCE_SECONDS)
    assert names(core) == {"m"}


def test_an_unload_ends_a_load(core: Core, plugin: HookPlugin, store: Store) -> None:
    gate = Gate()
    plugin.on_compile = lambda _: gate()
    loading = load(core)
    gate.await_arrivals()
    core.unload_network("m").result(PATIENCE_SECONDS)
    gate.open()
    with pytest.raises(Cancelled, match="unloaded while"):
        loading.result(PATIENCE_SECONDS)
    assert (names(core), store.networks) == (set(), {})


def test_an_unload_ends_a_load_that_replaces_what_serves(
    core: Core, plugin: HookPlugin, store: Store
) -> None:
    load(core).result(PATIENCE_SECONDS)
    gate = Gate()
    plugin.on_compile = lambda _: gate()
    loading = load(core, replace=True)
    gate.await_arrivals()
    core.unload_network("m").result(PATIENCE_SECONDS)
    gate.open()
    with pytest.raises(Cancelled, match="unloaded while"):
        loading.result(PATIENCE_SECONDS)
    assert (names(core), store.networks) == (set(), {})


def test_a_cancel_and_the_end_of_a_load_agree_on_who_was_first(core: Core, store: Store) -> None:
    outcomes = set()
    with frequent_switches():
        for number in range(60):
            loading = load(core, f"n{number}")
            run_together(lambda future=loading: core.cancel_load(future))  # type: ignore[misc]
            try:
                loading.result(PATIENCE_SECONDS)
                outcomes.add("loaded")
                assert f"n{number}" in names(core)
            except Cancelled:
                outcomes.add("cancelled")
                assert f"n{number}" not in names(core)
            assert set(store.networks) == names(core)
    assert outcomes <= {"loaded", "cancelled"}


# -- the store --


def test_the_store_has_what_clients_loaded_and_nothing_else(core: Core, store: Store) -> None:
    load(core, "mine").result(PATIENCE_SECONDS)
    load(core, "theirs", on_disk=True).result(PATIENCE_SECONDS)
    assert set(store.networks) == {"mine"}
    core.unload_network("mine").result(PATIENCE_SECONDS)
    core.unload_network("theirs").result(PATIENCE_SECONDS)
    assert store.networks == {}


def test_no_model_is_kept_of_a_network_that_the_repository_has(core: Core, store: Store) -> None:
    load(core, reference=Reference("m")).result(PATIENCE_SECONDS)
    assert store.networks == {"m": ""}


def test_a_network_that_did_not_come_at_start_stays_listed_and_kept_until_it_is_unloaded(
    core: Core, store: Store
) -> None:
    store.networks = {"m": "kept", "n": "kept"}
    with pytest.raises(InvalidModel):
        load(core, "m", no_model, on_disk=True).result(PATIENCE_SECONDS)
    core.life.list_failed(LoadRequest("n", DeviceName.parse("GONE")), "there is no device 'GONE'")
    with pytest.raises(InvalidModel):
        load(core, "m", no_model).result(PATIENCE_SECONDS)
    found = {entry.key.name: (entry.state, entry.reason) for entry in core.networks.entries()}
    assert found == {
        "m": (NetworkState.FAILED, "no model"),
        "n": (NetworkState.FAILED, "there is no device 'GONE'"),
    }
    assert set(store.networks) == {"m", "n"}
    for name in ("m", "n"):
        core.unload_network(name).result(PATIENCE_SECONDS)
    assert (core.networks.entries(), store.networks) == ([], {})


def test_a_network_that_did_not_come_at_start_makes_place_for_the_next_load(
    core: Core, store: Store
) -> None:
    store.networks = {"m": "kept"}
    core.life.list_failed(LoadRequest("m", DeviceName.parse("GONE")), "there is no device 'GONE'")
    load(core).result(PATIENCE_SECONDS)
    assert (names(core), store.networks) == ({"m"}, {"m": small().digest})


def test_a_network_that_is_unloaded_while_it_loads_at_start_is_forgotten(
    core: Core, plugin: HookPlugin, store: Store
) -> None:
    store.networks = {"m": "kept"}
    gate = Gate()
    plugin.on_compile = lambda _: gate()
    loading = load(core, on_disk=True)
    gate.await_arrivals()
    core.unload_network("m").result(PATIENCE_SECONDS)
    gate.open()
    with pytest.raises(Cancelled, match="unloaded while"):
        loading.result(PATIENCE_SECONDS)
    assert (core.networks.entries(), store.networks) == ([], {})


def test_a_load_that_cannot_be_saved_is_none(
    core: Core, plugin: HookPlugin, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(store, "save_network", full)
    with pytest.raises(OSError, match="no space"):
        load(core).result(PATIENCE_SECONDS)
    assert [each.closed for each in plugin.compiled] == [1]
    assert not numbers(core.counters.snapshot(), families.NETWORK_ACCEPTED)
    monkeypatch.undo()
    load(core).result(PATIENCE_SECONDS)


def test_a_load_whose_model_cannot_be_read_for_a_note_is_none(
    core: Core, plugin: HookPlugin, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(_: Network) -> None:
        raise FailedPrecondition("the model's file was written to since it was loaded")

    monkeypatch.setattr(core.life, "_note", changed)
    with pytest.raises(FailedPrecondition):
        load(core).result(PATIENCE_SECONDS)
    assert [each.closed for each in plugin.compiled] == [1]
    assert (names(core), store.networks) == (set(), {})


def test_unloads_and_replacements_leave_in_the_store_what_is_loaded(
    core: Core, store: Store
) -> None:
    load(core).result(PATIENCE_SECONDS)

    def unload() -> None:
        with suppress(NotFound, StillLoading):
            core.unload_network("m").result(PATIENCE_SECONDS)

    def replace() -> None:
        with suppress(Cancelled):
            load(core, replace=True).result(PATIENCE_SECONDS)

    with frequent_switches():
        for _ in range(40):
            run_together(unload, replace)
            assert set(store.networks) == names(core)


def test_the_end_cancels_loads_and_leaves_the_store_as_it_is(store: Store) -> None:
    source = PluginSource("HOOK", lambda: plugin_api(1)(HookPlugin))
    core = Core([source], blob_key=b"key", store=store)
    plugin: Any = core.plugins.plugin("HOOK")
    load(core, "kept").result(PATIENCE_SECONDS)
    gate = Gate()

    def compile_until_cancelled(token: CancelToken) -> None:
        token.attach(gate.open)
        gate()

    plugin.on_compile = compile_until_cancelled
    loading = load(core, "late")
    gate.await_arrivals()
    core.stop()
    with pytest.raises(Cancelled, match="shutting down"):
        loading.result(PATIENCE_SECONDS)
    assert [each.closed for each in plugin.compiled] == [1, 1]
    assert set(store.networks) == {"kept"}


# -- memory --


@pytest.fixture
def spooled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Whether the process has weights in a temporary file."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return lambda: str(tmp_path) in Path("/proc/self/maps").read_text()


def large() -> Network:
    return Network.from_bytes(LARGE, spooled=True)


@pytest.fixture
def _only_on_request() -> Iterator[None]:
    """Garbage is collected where the code asks for it, and at no other time."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_only_on_request")
def test_an_unload_has_freed_the_network_when_it_is_done(
    core: Core, plugin: HookPlugin, spooled: Callable[[], bool]
) -> None:
    given: list[weakref.ref[Network]] = []

    def read() -> Network:
        network = large()
        given.append(weakref.ref(network))
        return network

    load(core, "m", read).result(PATIENCE_SECONDS)
    plugin.compiled.clear()
    (network,) = given
    assert network() is not None
    assert spooled()
    core.unload_network("m").result(PATIENCE_SECONDS)
    # The thread that has loaded it may still be on its way out.
    eventually(lambda: network() is None, "the end of the network")
    assert not spooled()


@pytest.mark.usefixtures("_only_on_request")
def test_a_network_that_was_replaced_is_freed(
    core: Core, plugin: HookPlugin, spooled: Callable[[], bool]
) -> None:
    load(core, "m", large).result(PATIENCE_SECONDS)
    plugin.compiled.clear()
    load(core, "m", replace=True).result(PATIENCE_SECONDS)
    core.unload_network("m").result(PATIENCE_SECONDS)  # closed after the one before
    eventually(lambda: not spooled(), "the end of the weights")


@pytest.mark.usefixtures("_only_on_request")
def test_a_load_that_failed_keeps_no_weights(
    core: Core, plugin: HookPlugin, spooled: Callable[[], bool]
) -> None:
    def refuse(_: object) -> None:
        raise InvalidModel("the backend does not take it")

    load(core, "other").result(PATIENCE_SECONDS)
    plugin.on_compile = refuse
    failed = load(core, "m", large, on_disk=True)
    with pytest.raises(InvalidModel):
        failed.result(PATIENCE_SECONDS)
    assert core.networks.find("m").state is NetworkState.FAILED
    core.unload_network("other").result(PATIENCE_SECONDS)  # closed after what is left is freed
    # The thread that loaded has told of the failure, and may still be on its way out.
    eventually(lambda: not spooled(), "the end of the weights")


@pytest.mark.usefixtures("_only_on_request")
@pytest.mark.parametrize("error", [None, RuntimeError("a bug")], ids=str)
def test_what_is_used_once_is_freed(spooled: Callable[[], bool], error: Exception | None) -> None:
    def ask(network: Network) -> int:
        assert spooled()
        if error is not None:
            raise error
        return len(network.layers)

    with suppress(RuntimeError):
        assert use(large, ask) == 1
    assert not spooled()


def test_a_loaded_network_is_exported_as_it_came(core: Core, spooled: Callable[[], bool]) -> None:
    load(core, "m", large).result(PATIENCE_SECONDS)
    assert spooled()
    blob = b"".join(core.export_network("m"))
    copied = core.import_network("copy", "", {}, blob, replace=False).result(PATIENCE_SECONDS)
    assert copied.record.given.digest == Network.from_bytes(LARGE).digest


# -- the log --


def test_the_log_says_which_networks_come_and_go(
    core: Core, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "headrace.runtime.loading.life"):
        load(core).result(PATIENCE_SECONDS)
        core.unload_network("m").result(PATIENCE_SECONDS)
    loaded, unloaded = caplog.messages
    assert re.fullmatch(r"network m is loaded on HOOK\S*, in \d+\.\d{3} s: read \d.*", loaded)
    assert unloaded == "network m is unloaded"


def test_a_network_that_does_not_close_keeps_a_stop_from_nothing(
    core: Core,
    plugin: HookPlugin,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in "abc":
        load(core, name).result(PATIENCE_SECONDS)
    closed: list[str] = []

    def close(executable: ExecutableNetwork) -> None:
        closed.append("network")
        raise OSError("the device is lost")

    monkeypatch.setattr(type(plugin.compiled[0]), "_close", close)
    monkeypatch.setattr(plugin, "close", lambda: closed.append("device"))
    core.stop()
    assert closed == ["network"] * 3 + ["device"]
    assert caplog.text.count("OSError: the device is lost") == 3
