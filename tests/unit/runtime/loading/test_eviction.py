"""Networks that are loaded at their first request, and leave memory for others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.config.standard_keys import EXECUTION_TIMEOUT
from headrace.runtime.core import Core
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin_source import PluginSource, installed_plugins
from headrace.runtime.errors import (
    Cancelled,
    FailedPrecondition,
    HeadraceError,
    InvalidModel,
    NotFound,
    NotLoaded,
    ResourceExhausted,
    Unavailable,
)
from headrace.runtime.execution.job import Job, Sequence
from headrace.runtime.loading.cold_loads import ColdNetwork, LoadWaiter
from headrace.runtime.loading.entry import USUAL, NetworkEntry, NetworkKey, NetworkState, Residence
from headrace.runtime.loading.memory_budget import MemoryBudget, MemoryMeter, WeightSize
from headrace.runtime.metrics.families import COLD_REQUESTS
from headrace.runtime.network.network import Network
from headrace.runtime.pipelines.model import network_of
from headrace.runtime.system.asker import NOBODY, Asker, current_asker
from headrace.runtime.transform.options import LoadRequest, NetworkOptions
from headrace.server.repository.pipelines import parse_pipeline
from headrace.server.services.targets import configure
from headrace.testing.case import parse
from headrace.testing.occupied import eventually
from tests.support.gate import Gate, run_together
from tests.support.hook_plugin import Copies, HookPlugin
from tests.support.patience import PATIENCE_SECONDS

MIB = 2**20
ONE = WeightSize(2**20, 2**20)
MODEL = parse(
    "m (float[N,512] x) => (float[N,512] y) { y = MatMul(x, w) }",
    {"w": np.zeros((512, 512), np.float32)},  # 1 MiB; its load takes 7 MiB at most
).SerializeToString()
KEPT = parse(
    "m (float[512,512] h, float[512,512] x) => (float[512,512] g, float[512,512] y) {"
    " y = MatMul(x, w)  g = Identity(h) }",
    {"w": np.zeros((512, 512), np.float32)},
).SerializeToString()
SMALL = parse("m (float[N,512] x) => (float[N,512] y) { y = Relu(x) }").SerializeToString()
OTHER = parse(
    "m (float[N,512] x) => (float[N,512] y) { y = MatMul(x, w) }",
    {"w": np.ones((512, 512), np.float32)},
).SerializeToString()
LARGE = parse(
    "m (float[N,512] x) => (float[N,1024] y) { y = MatMul(x, w) }",
    {"w": np.ones((512, 1024), np.float32)},  # 2 MiB; its load takes all room
).SerializeToString()
X = np.zeros((1, 512), np.float32)
READY, KNOWN, EVICTED = NetworkState.READY, NetworkState.KNOWN, NetworkState.EVICTED


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[Core]:
    """With room for the load of one network beside two others that are loaded."""
    monkeypatch.setattr("headrace.runtime.loading.life.family_bytes", lambda: 0)
    yield from running()


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> Iterator[Core]:
    """The same, where clients' networks leave, too, and with four networks at most."""
    monkeypatch.setattr("headrace.runtime.loading.life.family_bytes", lambda: 0)
    yield from running(clients_networks_leave=True, max_networks=4)


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> Iterator[Core]:
    """The same with room for nine networks that are loaded."""
    monkeypatch.setattr("headrace.runtime.loading.life.family_bytes", lambda: 0)
    yield from running(16)


def running(mib: int = 9, **options: Any) -> Iterator[Core]:
    source = PluginSource("HOOK", lambda: plugin_api(1)(HookPlugin))
    core = Core([source], blob_key=b"key", budget=MemoryBudget({"HOOK": mib * MIB}), **options)
    try:
        yield core
    finally:
        core.stop()


@pytest.fixture
def plugin(core: Core) -> HookPlugin:
    plugin = core.plugins.plugin("HOOK")
    assert isinstance(plugin, HookPlugin)
    return plugin


def read(model: bytes = MODEL) -> Network:
    return Network.from_bytes(model)


def know(
    core: Core,
    *names: str,
    model: Callable[[], Network] = read,
    residence: Residence = USUAL,
    config: dict[str, str] | None = None,
) -> None:
    for name in names:
        request = LoadRequest(name, DeviceName.parse("HOOK"), config or {})
        core.know_network(request, model, owner="repository", residence=residence)


def ask(core: Core, name: str, who: str = "") -> Future[LoadWaiter]:
    """Has a network loaded as a request does that finds it cold."""
    told: Future[LoadWaiter] = Future()
    with pytest.raises(NotLoaded) as caught:
        core.networks.acquire(name)
    cold = caught.value.cold
    assert isinstance(cold, ColdNetwork)
    cold.loads.wait(cold.entry, told.set_result, who=who)
    return told


def loaded(core: Core, name: str, who: str = "") -> BaseException | None:
    """Waits until a network is loaded, and gives its error. Its memory is counted by then."""
    waiter = ask(core, name, who).result(PATIENCE_SECONDS)
    core.networks.cold.leave(waiter)
    settled(core)
    return waiter.error


def settled(core: Core) -> None:
    """Waits until all that was closed and measured is counted."""
    core._loads.close(lambda: None).result(PATIENCE_SECONDS)
    core._loads.close(lambda: None).result(PATIENCE_SECONDS)


def states(core: Core) -> dict[str, NetworkState]:
    return {each.key.name: each.state for each in core.networks.entries()}


def use(core: Core, name: str) -> None:
    """As a request does."""
    core.networks.release(core.networks.acquire(name), object())


def test_the_count_of_cold_requests_goes_with_the_network(core: Core) -> None:
    def counted() -> dict[tuple[str, ...], object]:
        found = core.counters.snapshot()
        return {each.labels: each.value for each in found if each.family is COLD_REQUESTS}

    know(core, "a", "b")
    assert loaded(core, "a") is None
    assert counted() == {("a",): 1}
    core.unload_network("a").result(PATIENCE_SECONDS)
    assert counted() == {}


def test_a_known_network_is_not_read_before_it_is_asked_for(core: Core, plugin: HookPlugin) -> None:
    know(core, "a", "b")
    assert states(core) == {"a": KNOWN, "b": KNOWN}
    assert loaded(core, "a") is None
    assert states(core) == {"a": READY, "b": KNOWN}
    assert len(plugin.compiled) == 1
    use(core, "a")


def test_a_network_that_is_being_loaded_is_shown_once_and_as_loading(
    core: Core, plugin: HookPlugin
) -> None:
    gate = Gate()
    plugin.on_compile = lambda _: gate()
    know(core, "a")
    told = ask(core, "a")
    gate.await_arrivals()
    assert [each.state for each in core.networks.entries()] == [NetworkState.LOADING]
    assert core.networks.find("a").state is NetworkState.LOADING
    other = ask(core, "a")
    gate.open()
    assert {each.result(PATIENCE_SECONDS).error for each in (told, other)} == {None}
    assert len(plugin.compiled) == 1


def test_the_network_that_was_used_longest_ago_makes_room(core: Core, plugin: HookPlugin) -> None:
    know(core, "a", "b", "c", "d")
    for name in "abc":
        assert loaded(core, name) is None
    use(core, "a")
    assert loaded(core, "d") is None
    assert states(core) == {"a": READY, "b": EVICTED, "c": READY, "d": READY}
    assert [each.closed for each in plugin.compiled] == [0, 1, 0, 0]
    assert core.life.room.evictions == {"HOOK": 1}


def test_an_evicted_network_is_loaded_again_and_remembers_what_it_takes(core: Core) -> None:
    know(core, "a", "b", "c", "d")
    for name in "abcd":
        assert loaded(core, name) is None
    assert core.networks.find("a").memory_bytes == MIB
    assert core.networks.find("a").load_seconds > 0
    assert loaded(core, "a") is None
    assert states(core)["a"] is READY


def test_a_request_under_way_ends_before_its_network_leaves(core: Core, plugin: HookPlugin) -> None:
    know(core, "a", "b", "c", "d")
    held = []
    for name in "abc":
        assert loaded(core, name) is None
        held.append(core.networks.acquire(name))
    told = ask(core, "d")
    eventually(lambda: states(core)["a"] is not READY, "the first network leaves")
    assert not told.done()
    with pytest.raises(NotLoaded):
        core.networks.acquire("a")
    for entry in held:
        core.networks.release(entry)
    assert told.result(PATIENCE_SECONDS).error is None
    assert plugin.compiled[0].closed


def test_a_load_that_waits_for_requests_to_end_keeps_no_other_one_waiting(core: Core) -> None:
    know(core, "a", "b", "c", "d")
    know(core, "small", model=lambda: read(SMALL))
    held = []
    for name in "abc":
        assert loaded(core, name) is None
        held.append(core.networks.acquire(name))
    told = ask(core, "d")
    eventually(lambda: states(core)["a"] is not READY, "the first network leaves")
    waiter = ask(core, "small").result(PATIENCE_SECONDS)
    assert waiter.error is None
    assert not told.done()
    core.networks.cold.leave(waiter)
    for entry in held:
        core.networks.release(entry)
    assert told.result(PATIENCE_SECONDS).error is None


def test_a_network_is_loaded_again_for_whom_it_was_loaded_first_or_who_wants_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.runtime.loading.life.family_bytes", lambda: 0)
    eve, askers = Asker("eve", trusted=False, owner="eve"), list[Asker]()
    now = [eve]
    with contextmanager(running)(clients_networks_leave=True, asker=lambda: now[0]) as core:
        plugin = core.plugins.plugin("HOOK")
        assert isinstance(plugin, HookPlugin)
        plugin.on_compile = lambda _: askers.append(current_asker())
        load(core, "a", "b", "c", "d")
        now[0] = NOBODY
        infer(core, "a")
        know(core, "repository")
        with pytest.raises(NotLoaded) as caught:
            core.networks.acquire("repository")
        told: Future[LoadWaiter] = Future()
        cold: Any = caught.value.cold
        cold.loads.wait(cold.entry, told.set_result, who="bob")
        cold.loads.leave(told.result(PATIENCE_SECONDS))
        settled(core)
    assert askers == [eve] * 5 + [Asker("bob")]


def test_a_network_stays_until_the_requests_that_waited_for_it_have_begun(core: Core) -> None:
    know(core, "a", "b", "c", "d")
    waiters = [ask(core, name).result(PATIENCE_SECONDS) for name in "abc"]
    told = ask(core, "d")
    for waiter in reversed(waiters):
        assert states(core)[waiter.wanted.entry.key.name] is READY
        use(core, waiter.wanted.entry.key.name)
        core.networks.cold.leave(waiter)
        if told.done():
            break
    assert told.result(PATIENCE_SECONDS).error is None


def test_a_load_that_waits_for_those_that_keep_a_network_keeps_no_other_one_waiting(
    core: Core,
) -> None:
    know(core, "kept", "b")
    know(core, "large", model=lambda: read(LARGE))
    keeps = ask(core, "kept").result(PATIENCE_SECONDS)
    settled(core)
    told = ask(core, "large")
    eventually(lambda: len(core.life.room._queue) == 1, "the large one waits for room")
    assert loaded(core, "b") is None
    assert not told.done()
    core.networks.cold.leave(keeps)
    assert told.result(PATIENCE_SECONDS).error is None


def test_a_pinned_network_stays_and_is_named_where_there_is_no_room(core: Core) -> None:
    know(core, "a", "b", "c", residence=Residence(pinned=True))
    know(core, "d")
    for name in "abc":
        assert loaded(core, name) is None
    error = loaded(core, "d")
    assert isinstance(error, ResourceExhausted)
    assert "'a' 1 MiB (it is pinned)" in error.message
    assert error.retry_delay_seconds is None
    assert states(core)["d"] is KNOWN


def test_a_network_that_was_used_lately_stays(core: Core) -> None:
    know(core, "a", "b", "c", residence=Residence(min_idle_seconds=3600))
    know(core, "d")
    for name in "abc":
        assert loaded(core, name) is None
    error = loaded(core, "d")
    assert isinstance(error, ResourceExhausted)
    assert "(it was used less than 3600 s ago)" in error.message
    assert 3000 < (error.retry_delay_seconds or 0) <= 3600


def test_a_client_s_network_stays(core: Core) -> None:
    for name in "abc":
        core.load_network(LoadRequest(name, DeviceName.parse("HOOK")), read).result(
            PATIENCE_SECONDS
        )
        settled(core)
    know(core, "d")
    error = loaded(core, "d")
    assert isinstance(error, ResourceExhausted)
    assert "(it is a client's)" in error.message


def test_a_client_s_network_drives_out_those_of_the_repository(core: Core) -> None:
    know(core, "a", "b", "c")
    for name in "abc":
        assert loaded(core, name) is None
    core.load_network(LoadRequest("d", DeviceName.parse("HOOK")), read).result(PATIENCE_SECONDS)
    assert states(core)["a"] is EVICTED


def in_sequence(
    core: Core, name: str, who: str = "", *, start: bool = False
) -> BaseException | None:
    """The error of a request of a sequence."""
    ended: Future[Job] = Future()
    entry = core.networks.acquire(name)
    inputs = {"x": np.zeros((512, 512), np.float32)}
    job = Job(inputs, ended.set_result, sequence=Sequence("s", start=start, end=False), owner=who)
    try:
        core.networks.submit(entry, job)
    except FailedPrecondition as error:
        return error
    return ended.result(PATIENCE_SECONDS).error


def test_sequences_of_an_identity_end_that_leave_no_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.runtime.loading.life.family_bytes", lambda: 0)
    monkeypatch.setattr("headrace.runtime.loading.memory_budget._PEAK", 1)
    monkeypatch.setattr("headrace.runtime.loading.memory_budget._OTHERS", 0)
    with contextmanager(running)(4) as core:
        know(core, *"abcd", model=lambda: read(KEPT), config={"STATES": "h=g"})
        know(core, "e", "f", "g")
        for name in "abcd":
            assert loaded(core, name) is None
            assert in_sequence(core, name, "eve", start=True) is None
        assert isinstance(loaded(core, "g", "eve"), ResourceExhausted)  # hers stay for her
        assert loaded(core, "e", "bob") is None
        assert loaded(core, "f", "bob") is None
        assert loaded(core, "g", "carol") is None
        assert states(core) == {
            **dict.fromkeys("abe", EVICTED),
            **dict.fromkeys("cdfg", READY),
        }
        assert in_sequence(core, "c", "eve") is None
        assert loaded(core, "a", "eve") is None
        ended = in_sequence(core, "a", "eve")
        assert isinstance(ended, FailedPrecondition)
        assert "or because the network was loaded again" in ended.message


def test_an_open_sequence_keeps_its_network(core: Core) -> None:
    know(core, "a", model=lambda: read(KEPT), config={"STATES": "h=g"})
    know(core, "b", "c", residence=Residence(pinned=True))
    know(core, "d")
    assert loaded(core, "a") is None
    assert in_sequence(core, "a", start=True) is None
    for name in "bc":
        assert loaded(core, name) is None
    error = loaded(core, "d")
    assert isinstance(error, ResourceExhausted)
    assert "'a' 1 MiB (a sequence is open on it)" in error.message


def test_a_network_that_fails_for_good_says_so_and_is_not_tried_again(core: Core) -> None:
    def no_model() -> Network:
        raise InvalidModel("no model")

    know(core, "a", model=no_model)
    assert isinstance(loaded(core, "a"), InvalidModel)
    with pytest.raises(FailedPrecondition, match="failed to load: no model"):
        core.networks.acquire("a")


def unreadable() -> InvalidModel:
    error = InvalidModel("'model.onnx' cannot be read: Too many open files")
    error.__cause__ = OSError()
    return error


@pytest.mark.parametrize(
    "error", [Unavailable("copied"), ResourceExhausted("full"), unreadable(), OSError("no files")]
)
def test_a_network_that_fails_for_a_reason_that_may_pass_is_tried_again(
    core: Core, error: Exception
) -> None:
    errors = [error]

    def read_later() -> Network:
        if errors:
            raise errors.pop()
        return read()

    know(core, "a", model=read_later)
    assert loaded(core, "a") is error
    assert loaded(core, "a") is None


def test_a_network_that_is_unloaded_while_it_is_being_loaded_is_gone(
    core: Core, plugin: HookPlugin
) -> None:
    gate = Gate()
    plugin.on_compile = lambda _: gate()
    know(core, "a")
    told = ask(core, "a")
    gate.await_arrivals()
    core.unload_network("a").result(PATIENCE_SECONDS)
    gate.open()
    assert isinstance(told.result(PATIENCE_SECONDS).error, Cancelled)
    with pytest.raises(NotFound):
        core.networks.acquire("a")


def test_a_known_network_keeps_its_name(core: Core) -> None:
    know(core, "a")
    with pytest.raises(HeadraceError, match="network 'a' exists"):
        core.load_network(LoadRequest("a", DeviceName.parse("HOOK")), read)


def test_a_load_by_somebody_else_is_waited_for(
    core: Core, plugin: HookPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: Future[object] = Future()

    def under_way(*place: str) -> Future[NetworkEntry] | None:
        load = real(*place)
        found.set_result(load)
        return load

    real = core.life.under_way
    monkeypatch.setattr(core.life, "under_way", under_way)
    gate = Gate()
    plugin.on_compile = lambda _: gate()
    know(core, "a")
    request = LoadRequest("a", DeviceName.parse("HOOK"))
    load = core.load_network(request, read, replace=True, owner="repository")
    gate.await_arrivals()
    told = ask(core, "a")
    assert found.result(PATIENCE_SECONDS) is not None
    gate.open()
    assert told.result(PATIENCE_SECONDS).error is None
    assert load.result(PATIENCE_SECONDS).state is READY
    assert len(plugin.compiled) == 1


def test_a_network_that_has_taken_the_place_of_one_that_waits_is_loaded_instead(
    core: Core, plugin: HookPlugin
) -> None:
    gate = Gate()
    plugin.on_compile = lambda _: gate()
    know(core, "a", "b", "c")
    others = [ask(core, "a"), ask(core, "b")]  # they have all places
    told = ask(core, "c")
    know(core, "c", config={"PERF_COUNT": "YES"})
    gate.open()
    assert {each.result(PATIENCE_SECONDS).error for each in (*others, told)} == {None}
    assert core.networks.find("c").record.request.config == {"PERF_COUNT": "YES"}


def test_only_a_load_of_the_same_version_that_is_wanted_is_waited_for(
    core: Core, plugin: HookPlugin
) -> None:
    gate = Gate()
    plugin.on_compile = lambda _: gate()
    request = LoadRequest("a", DeviceName.parse("HOOK"))
    first = core.load_network(request, read, owner="repository")
    gate.await_arrivals()
    assert core.life.under_way("a") is first
    assert core.life.under_way("a", "2") is None
    core.unload_network("a")
    assert core.life.under_way("a") is None
    gate.open()


def test_many_callers_of_more_networks_than_fit_all_get_theirs(core: Core) -> None:
    names = [f"n{number}" for number in range(6)]
    know(core, *names)

    def call(turn: int) -> Callable[[], None]:
        def many() -> None:
            for step in range(12):
                infer(core, names[(turn * step + turn) % len(names)])

        return many

    run_together(*map(call, range(4)))
    settled(core)
    held = sum(each.bytes for each in core.life.room._holders())
    assert held <= 9 * MIB


def infer(core: Core, name: str) -> None:
    try:
        entry = core.networks.acquire(name)
    except NotLoaded as error:
        cold: Any = error.cold
        told = Future[LoadWaiter]()
        waiter = cold.loads.wait(cold.entry, told.set_result)
        assert told.result(PATIENCE_SECONDS).error is None
        entry = core.networks.acquire(name)  # it stays until the waiter leaves
        core.networks.cold.leave(waiter)
    ended: Future[Job] = Future()
    core.networks.submit(entry, Job({"x": X}, ended.set_result))
    assert ended.result(PATIENCE_SECONDS).error is None


PIPELINE = """
[[step]]
name = "one"
network = "step"
inputs = {x = "x"}
outputs = {y = "y"}

[outputs]
y = "y"
"""


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Core]:
    """As `core`, with a pipeline and the network of its step."""
    monkeypatch.setattr("headrace.runtime.loading.life.family_bytes", lambda: 0)
    sources = [
        PluginSource("HOOK", lambda: plugin_api(1)(HookPlugin)),
        installed_plugins()["PIPELINE"],
    ]
    core = Core(sources, blob_key=b"key", budget=MemoryBudget({"HOOK": 9 * MIB}))
    try:
        know(core, "step")
        know_pipeline(core, "pipeline", PIPELINE)
        yield core
    finally:
        core.stop()


def know_pipeline(core: Core, name: str, text: str) -> None:
    core.know_network(
        LoadRequest(name, DeviceName.parse("PIPELINE")),
        lambda: network_of(parse_pipeline(text.encode()), {}, core.limits),
        owner="repository",
        residence=USUAL,
    )


def test_a_pipeline_whose_networks_do_not_fit_together_says_so_at_once(piped: Core) -> None:
    know(piped, "large", model=lambda: read(LARGE))
    second = """
        [[step]]
        name = "two"
        network = "large"
        inputs = {x = "x"}
        outputs = {z = "y"}
    """
    text = PIPELINE.replace("[outputs]", second + "[outputs]\nz = 'z'")
    know_pipeline(piped, "both", text)
    assert "(the same pipeline needs it)" in str(loaded(piped, "both"))
    assert loaded(piped, "large") is None


def test_a_pipeline_leaves_with_the_network_of_its_step_and_both_come_back(piped: Core) -> None:
    know(piped, "b", "c", "d")
    for _ in range(2):
        assert loaded(piped, "pipeline") is None
        assert states(piped)["step"] is READY
        for name in "bcd":
            assert loaded(piped, name) is None
        assert states(piped)["step"] is states(piped)["pipeline"] is EVICTED
        for name in "bcd":
            piped.unload_network(name).result(PATIENCE_SECONDS)
        know(piped, "b", "c", "d")


def test_a_pipeline_stays_with_its_steps_until_the_requests_that_waited_for_it_have_begun(
    piped: Core,
) -> None:
    know(piped, "b", "c", "d")
    waiter = ask(piped, "pipeline").result(PATIENCE_SECONDS)
    settled(piped)
    for name in "bcd":
        assert loaded(piped, name) is None
    assert states(piped)["step"] is states(piped)["pipeline"] is READY
    piped.networks.cold.leave(waiter)


def test_a_pipeline_that_runs_one_version_does_not_leave_with_another(piped: Core) -> None:
    second = LoadRequest("step", DeviceName.parse("HOOK"), {}, version="2")
    piped.know_network(second, read, owner="repository", residence=USUAL)
    know_pipeline(piped, "first", PIPELINE.replace('"step"', '"step:1"'))
    assert loaded(piped, "first") is None
    assert loaded(piped, "step") is None  # version 2, which serves
    users = {each.key[:2]: len(each.users) for each in piped.life.room._holders()}
    assert (users["step", "1"], users["step", "2"]) == (1, 0)


def test_a_request_to_a_loaded_pipeline_loads_the_network_of_its_step_that_came_back(
    piped: Core,
) -> None:
    assert loaded(piped, "pipeline") is None
    piped.unload_network("step").result(PATIENCE_SECONDS)
    know(piped, "step")
    executable = piped.networks.find("pipeline").executable
    assert executable is not None
    assert executable.unready() == ""  # its next request loads it
    assert loaded(piped, "pipeline") is None
    assert states(piped) == {"pipeline": READY, "step": READY}
    infer(piped, "pipeline")


def test_a_request_to_a_loaded_pipeline_loads_the_new_version_of_its_step(piped: Core) -> None:
    assert loaded(piped, "pipeline") is None
    request = LoadRequest("step", DeviceName.parse("HOOK"), {}, version="2")
    piped.know_network(request, read, owner="repository", residence=USUAL)
    assert loaded(piped, "pipeline") is None
    assert piped.networks.find("step", "2").state is READY
    infer(piped, "pipeline")


def test_a_pipeline_that_is_not_loaded_waits_for_the_network_of_its_step_to_come_back(
    piped: Core,
) -> None:
    piped.unload_network("step").result(PATIENCE_SECONDS)
    assert "unknown network 'step'" in str(loaded(piped, "pipeline"))
    assert states(piped) == {"pipeline": KNOWN}
    know(piped, "step")
    assert loaded(piped, "pipeline") is None


def test_who_only_looks_at_a_network_does_not_keep_it(core: Core) -> None:
    know(core, "a", "b", "c", "d")
    for name in "abc":
        assert loaded(core, name) is None
    core.networks.release(core.networks.acquire("a"))
    assert loaded(core, "d") is None
    assert states(core)["a"] is EVICTED


def hold_first(
    core: Core, plugin: HookPlugin, monkeypatch: pytest.MonkeyPatch
) -> tuple[Future[LoadWaiter], Gate]:
    """Lets the load of the first of two networks hang, where no load waits for memory long."""
    monkeypatch.setattr("headrace.runtime.loading.memory_room._PATIENCE_SECONDS", 0.0)
    gate = Gate()
    plugin.on_compile = lambda _: gate()
    know(core, "a", "b")
    first = ask(core, "a")
    gate.await_arrivals()
    return first, gate


def test_a_load_waits_for_another_one_however_long_that_takes(
    core: Core, plugin: HookPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, gate = hold_first(core, plugin, monkeypatch)
    other = ask(core, "b")
    eventually(lambda: bool(core.life.room._queue), "the second load waits")
    gate.open()
    assert {each.result(PATIENCE_SECONDS).error for each in (first, other)} == {None}


def test_a_load_waits_so_long_alone_for_one_that_nobody_wants_and_that_hangs(
    core: Core, plugin: HookPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, gate = hold_first(core, plugin, monkeypatch)
    core.unload_network("a")
    other = ask(core, "b").result(PATIENCE_SECONDS)
    assert isinstance(other.error, ResourceExhausted)
    gate.open()
    assert isinstance(first.result(PATIENCE_SECONDS).error, Cancelled)


def test_a_request_that_saw_a_cold_network_does_not_load_it_again_when_it_is_there(
    core: Core, plugin: HookPlugin
) -> None:
    know(core, "a")
    with pytest.raises(NotLoaded) as caught:
        core.networks.acquire("a")
    assert loaded(core, "a") is None
    cold: Any = caught.value.cold
    told: Future[LoadWaiter] = Future()
    waiter = cold.loads.wait(cold.entry, told.set_result)
    assert told.result(PATIENCE_SECONDS).error is None
    cold.loads.leave(waiter)
    assert len(plugin.compiled) == 1


def test_single_requests_to_many_networks_do_not_drive_out_one_that_is_often_used(
    core: Core,
) -> None:
    know(core, "often", "a", "b", "c", "d")
    assert loaded(core, "often") is None
    for _ in range(3):
        use(core, "often")
    for name in ("a", "b", "c", "d"):
        assert loaded(core, name) is None
        use(core, name)
    assert states(core) == {"often": READY, "a": EVICTED, "b": EVICTED, "c": READY, "d": READY}


def test_many_networks_of_one_identity_do_not_drive_out_those_of_another_one(core: Core) -> None:
    know(core, "often", "a", "b", "c", "d")
    assert loaded(core, "often", "bob") is None
    for name in ("a", "b", "c", "d"):
        assert loaded(core, name, "eve") is None
        for _ in range(3):
            use(core, name)
    assert states(core) == {"often": READY, "a": EVICTED, "b": EVICTED, "c": READY, "d": READY}
    assert loaded(core, "a", "carol") is None
    assert states(core) == {"often": READY, "a": READY, "b": EVICTED, "c": EVICTED, "d": READY}


def test_the_networks_of_a_tenant_leave_memory_for_others(wide: Core) -> None:
    def load(name: str, who: str) -> None:
        stranger = Asker(who, trusted=False, owner=who)
        request = LoadRequest(f"{name}@{who}", DeviceName.parse("HOOK"))
        wide.load_network(request, read, asker=stranger).result(PATIENCE_SECONDS)
        settled(wide)

    for name in "abcdefgh":
        load(name, "eve")
    with pytest.raises(ResourceExhausted, match="your networks have 8 MiB of the memory budget"):
        load("i", "eve")
    load("a", "bob")


# -- lent memory --


def test_memory_is_lent_where_there_is_some_and_loads_wait_for_it(
    core: Core, plugin: HookPlugin
) -> None:
    know(core, "a", "b")
    assert loaded(core, "a") is None
    room, budgets = core.life.room, frozenset({"HOOK"})
    with room.lent("a", budgets, ONE):
        told = ask(core, "b")
        eventually(lambda: bool(room._queue), "the load waits")
        with pytest.raises(ResourceExhausted, match="no room"), room.lent("a", budgets, ONE):
            pytest.fail("it was lent")
    assert told.result(PATIENCE_SECONDS).error is None
    assert states(core) == {"a": READY, "b": READY}


def test_memory_that_was_lent_and_kept_counts_for_the_network(core: Core) -> None:
    know(core, "a")
    assert loaded(core, "a") is None
    settled(core)
    before = core.networks.find("a").memory_bytes
    kept = []
    for _ in range(2):
        with core.life.room.lent("a", frozenset({"HOOK"}), ONE) as keep:
            kept.append(keep())
    assert core.networks.find("a").memory_bytes == before + 2 * MIB
    kept.pop()()
    assert core.networks.find("a").memory_bytes == before + MIB


def test_no_network_leaves_for_memory_that_is_lent(core: Core) -> None:
    know(core, "a", "b", "c")
    for name in "abc":
        assert loaded(core, name) is None
    with (
        pytest.raises(ResourceExhausted, match="no room"),
        core.life.room.lent("a", frozenset({"HOOK"}), ONE),
    ):
        pytest.fail("it was lent")
    assert set(states(core).values()) == {READY}


def test_a_query_that_loads_the_network_needs_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.runtime.loading.life.family_bytes", lambda: 0)
    sources = [
        PluginSource("HOOK", lambda: plugin_api(1)(HookPlugin)),
        installed_plugins()["BATCH"],
    ]
    core = Core(sources, blob_key=b"key", budget=MemoryBudget({"HOOK": 6 * MIB}))
    query = core.query_network(DeviceName.parse("BATCH:HOOK(8)"), {}, NetworkOptions(), read)
    with pytest.raises(ResourceExhausted, match="the memory budget of HOOK has no room"):
        query.result(PATIENCE_SECONDS)
    core.stop()


# -- networks that clients have loaded --


def load(core: Core, *names: str) -> None:
    """As a client does, whose model cannot be read twice."""
    for name in names:
        models = [MODEL]
        request = LoadRequest(name, DeviceName.parse("HOOK"))
        core.load_network(request, partial(lambda left: read(left.pop()), models)).result(
            PATIENCE_SECONDS
        )
        settled(core)


def test_clients_networks_leave_if_the_operator_wants_it_and_come_back(lenient: Core) -> None:
    load(lenient, "a", "b", "c", "d")
    assert states(lenient) == {"a": EVICTED, "b": READY, "c": READY, "d": READY}
    for _ in range(2):
        for name in "abcd":
            infer(lenient, name)
            settled(lenient)
    assert lenient.networks.find("d").record.network is not None


def test_a_client_s_network_that_has_left_counts_for_the_most_networks(lenient: Core) -> None:
    load(lenient, "a", "b", "c", "d")
    with pytest.raises(ResourceExhausted, match="4 networks"):
        load(lenient, "e")
    lenient.unload_network("a").result(PATIENCE_SECONDS)
    load(lenient, "e")


def test_a_client_s_network_that_leaves_after_its_last_request_is_not_counted_twice(
    lenient: Core,
) -> None:
    load(lenient, "a", "b")
    lenient.networks._table._limit = 2
    entry = lenient.networks.acquire("a")
    assert lenient.life._evict(entry)
    told = ask(lenient, "a")
    assert told.result(PATIENCE_SECONDS).error is None
    lenient.networks.cold.leave(told.result())
    lenient.networks.release(entry)


def test_a_client_s_network_that_has_left_and_is_unloaded_is_gone_with_its_model(
    lenient: Core,
) -> None:
    load(lenient, "a", "b", "c", "d")
    with pytest.raises(NotLoaded) as caught:
        lenient.networks.acquire("a")
    lenient.unload_network("a").result(PATIENCE_SECONDS)
    cold: Any = caught.value.cold
    assert cold.entry.record.network is None
    told: Future[LoadWaiter] = Future()
    waiter = cold.loads.wait(cold.entry, told.set_result)  # of a request that has just seen it
    assert isinstance(told.result(PATIENCE_SECONDS).error, NotFound)
    cold.loads.leave(waiter)
    assert "a" not in states(lenient)


def test_a_client_s_load_that_fails_for_the_moment_keeps_the_model(lenient: Core) -> None:
    load(lenient, "a", "b", "c", "d")
    plugin = lenient.plugins.plugin("HOOK")
    assert isinstance(plugin, HookPlugin)

    def is_down(_: object) -> None:
        raise Unavailable("it is down")

    plugin.on_compile = is_down
    assert isinstance(loaded(lenient, "a"), Unavailable)
    plugin.on_compile = lambda _: None
    assert loaded(lenient, "a") is None


def test_what_clients_configure_while_the_network_leaves_outlasts_that(core: Core) -> None:
    know(core, "a")
    assert loaded(core, "a") is None
    entry = core.networks.acquire("a")
    assert core.life._evict(entry)
    configure(core, entry, {EXECUTION_TIMEOUT.name: "5"}, None)
    core.networks.release(entry)
    assert core.networks.find("a").record.request.config == {EXECUTION_TIMEOUT.name: "5"}


def test_what_clients_configure_outlasts_an_eviction(core: Core) -> None:
    know(core, "a", "b", "c", "d")
    assert loaded(core, "a") is None
    entry = core.networks.acquire("a")
    configure(core, entry, {"EXECUTION_TIMEOUT": "7"}, None)
    core.networks.release(entry)
    for name in "bcda":
        assert loaded(core, name) is None
    executable = core.networks.find("a").executable
    assert executable is not None
    assert executable.config.get(EXECUTION_TIMEOUT) == 7


# -- networks that map the same weights --


@pytest.fixture
def mapping(core: Core, plugin: HookPlugin, monkeypatch: pytest.MonkeyPatch) -> Core:
    """Where networks map their weights, which a device does after it has asked for their digest."""
    monkeypatch.setattr(Copies, "maps_weights", True)
    load = plugin.load_network

    def asks(given: Load) -> ExecutableNetwork:
        assert given.network.digest
        return load(given)

    monkeypatch.setattr(plugin, "load_network", asks)
    return core


def sizes(core: Core) -> dict[str, int]:
    there = core.networks.entries()
    return {each.key.name: each.memory_bytes for each in there if each.state is READY}


def test_copies_of_a_network_take_no_room_from_others(mapping: Core) -> None:
    know(mapping, "a", "b", "c", "d", "e")
    assert [loaded(mapping, name) for name in "abcde"] == [None] * 5
    assert sizes(mapping) == {"a": MIB, "b": 0, "c": 0, "d": 0, "e": 0}


def test_loads_of_other_weights_or_of_another_configuration_are_no_copies(mapping: Core) -> None:
    know(mapping, "a")
    know(mapping, "b", config={"PERF_COUNT": "YES"})
    know(mapping, "c", model=lambda: read(OTHER))
    for name in "abc":
        assert loaded(mapping, name) is None
    assert sizes(mapping) == {"a": MIB, "b": MIB, "c": MIB}


def test_networks_that_map_nothing_count_each(core: Core) -> None:
    know(core, "a", "b")
    assert (loaded(core, "a"), loaded(core, "b")) == (None, None)
    assert sizes(core) == {"a": MIB, "b": MIB}


def test_another_copy_counts_for_the_weights_of_one_that_is_gone(mapping: Core) -> None:
    know(mapping, "a", "b", "c")
    for name in "abc":
        assert loaded(mapping, name) is None
    mapping.unload_network("a").result(PATIENCE_SECONDS)
    assert sizes(mapping) == {"b": MIB, "c": 0}
    mapping.unload_network("b").result(PATIENCE_SECONDS)
    assert sizes(mapping) == {"c": MIB}


def test_another_copy_counts_for_the_session_of_one_that_is_gone(
    mapping: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = MemoryMeter.end

    def found(meter: MemoryMeter, key: NetworkKey, _: int) -> dict[NetworkKey, int]:
        return end(meter, key, 3 * MIB if key.name == "a" else 0)

    monkeypatch.setattr(MemoryMeter, "end", found)
    know(mapping, "a", "b", "c")
    for name in "abc":
        assert loaded(mapping, name) is None
    assert sizes(mapping) == {"a": 3 * MIB, "b": 0, "c": 0}
    mapping.unload_network("a").result(PATIENCE_SECONDS)
    assert sizes(mapping) == {"b": 3 * MIB, "c": 0}
    mapping.unload_network("b").result(PATIENCE_SECONDS)
    assert sizes(mapping) == {"c": 3 * MIB}


def test_all_copies_leave_if_their_weights_must(mapping: Core) -> None:
    know(mapping, "a", "b")
    know(mapping, "large", model=lambda: read(LARGE))
    for name in ("a", "b", "large"):
        assert loaded(mapping, name) is None
    assert sizes(mapping) == {"large": 2 * MIB}


def test_a_network_that_has_mapped_its_weights_needs_room_for_them_once_when_it_comes_back(
    mapping: Core,
) -> None:
    know(mapping, "large", model=lambda: read(LARGE))
    know(mapping, "a")
    know(mapping, "b", model=lambda: read(OTHER))
    for name in ("large", "a", "b"):
        assert loaded(mapping, name) is None
    assert sizes(mapping) == {"a": MIB, "b": MIB}
    assert loaded(mapping, "large") is None
    assert sizes(mapping) == {"large": 2 * MIB, "a": MIB, "b": MIB}


def test_a_copy_counts_for_the_weights_of_one_that_is_gone_while_it_is_loaded(
    mapping: Core, plugin: HookPlugin
) -> None:
    know(mapping, "a", "b")
    assert loaded(mapping, "a") is None
    gate = Gate()
    plugin.on_compile = lambda _: gate()
    waiter = ask(mapping, "b")
    gate.await_arrivals()
    mapping.unload_network("a").result(PATIENCE_SECONDS)
    gate.open()
    mapping.networks.cold.leave(waiter.result(PATIENCE_SECONDS))
    settled(mapping)
    assert sizes(mapping) == {"b": MIB}
