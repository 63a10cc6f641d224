"""A device in a process of its own: what a crash costs, and what comes back after it.

Each test starts real processes, so there are few of them and each looks at a whole story.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin_source import PluginSource, factory_source
from headrace.runtime.device.services import Services
from headrace.runtime.device.state import DeviceEvent, DeviceState
from headrace.runtime.errors import (
    Cancelled,
    DeadlineExceeded,
    EndedWorker,
    HeadraceError,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job, Outcome
from headrace.runtime.isolation.server import network as isolated_network
from headrace.runtime.isolation.server import process
from headrace.runtime.isolation.server.blame import ENDS, RUN, End, Work
from headrace.runtime.isolation.server.plugin import IsolatedPlugin
from headrace.runtime.isolation.server.process import Answer, WorkerProcess
from headrace.runtime.isolation.server.worker_network import WorkerNetwork
from headrace.runtime.loading.plugin_registry import PluginRegistry
from headrace.runtime.metrics import families
from headrace.runtime.network.network import Network
from headrace.runtime.system.backoff import Backoff
from headrace.testing import networks
from headrace.testing.case import network_of, parse
from headrace.testing.counted import number, numbers
from headrace.testing.infer_request import InferRequest
from headrace.testing.leaks import no_leaks
from headrace.testing.occupied import eventually
from headrace.testing.services import services as real_services
from tests.support.child import Child
from tests.support.crashing_device import (
    CRASH,
    CRASHING_LAYER,
    CRASHING_QUERY,
    HELD,
    MEMORY_BYTES,
    RUNS,
    STALL,
)
from tests.support.forked import running
from tests.support.patience import PATIENCE_SECONDS

_PATH = "tests.support.crashing_device:create_plugin"
_LATE = "tests.support.crashing_device:create_late"
_RELU = parse("g (float[n] x) => (float[n] y) { y = Relu(x) }").SerializeToString()


class States:
    """The states that a device was in, in order."""

    def __init__(self, services: Services) -> None:
        self._changed = threading.Condition()
        self.seen: list[DeviceState] = []
        services.states.subscribe(self._hear)

    def _hear(self, event: DeviceEvent) -> None:
        with self._changed:
            self.seen.append(event.state)
            self._changed.notify_all()

    def wait_for(self, state: DeviceState, after: int = 0) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: state in self.seen[after:], PATIENCE_SECONDS)


@pytest.fixture
def services() -> Iterator[Services]:
    with no_leaks(), real_services() as offered:
        yield offered


@contextmanager
def isolated(
    services: Services, config: Mapping[str, str] | None = None
) -> Iterator[IsolatedPlugin]:
    backoff = Backoff(first=0.01, longest=0.5)
    plugin = IsolatedPlugin("FRAGILE", services, config or {}, _PATH, backoff=backoff)
    services.states.set("FRAGILE", DeviceState.UP)
    try:
        yield plugin
    finally:
        plugin.close()
        plugin.close()


def relu(plugin: IsolatedPlugin, config: Mapping[str, str] | None = None) -> ExecutableNetwork:
    return plugin.load_network(Load(Network.from_bytes(_RELU), config or {}))


def infer(network: ExecutableNetwork, *values: float) -> list[float]:
    outputs = InferRequest(network).infer({"x": np.array(values, np.float32)})
    result: list[float] = outputs["y"].tolist()  # type: ignore[union-attr]
    return result


def test_a_network_that_was_unloaded_from_its_worker_does_not_keep_its_owner() -> None:
    class Owner:
        def __init__(self) -> None:
            self.worker_network = WorkerNetwork(Load(Network.from_bytes(_RELU), {}), "X")
            self.worker_network.config = self.config

        def config(self) -> dict[str, str]:
            return {}

    gc.disable()
    try:
        owner = Owner()
        watched = weakref.ref(owner)
        owner.worker_network.unload()
        del owner
        assert watched() is None
    finally:
        gc.enable()


def test_a_worker_that_has_hardly_begun_leaves_the_signals_to_its_server() -> None:
    with no_leaks():
        worker = WorkerProcess("EARLY")
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(worker.pid, number)
        worker.stop()
        assert worker.end.how == "exit status 0"


def worker_of(plugin: IsolatedPlugin) -> int:
    return plugin._host.worker().pid


def workers() -> list[int]:
    """The workers that have not ended."""
    return running("headrace.runtime.isolation.worker.program")


def test_a_crash_costs_what_ran_and_everything_comes_back(services: Services) -> None:
    states = States(services)
    with isolated(services, {"NUM_STREAMS": "2"}) as plugin:
        plugin.add_extension(list(networks.local_function().network.model.functions.values()))
        plugin.set_config({"QUEUE_CAPACITY": "77", "PERF_COUNT": "NO"})
        network = relu(plugin, {"EXECUTION_TIMEOUT": "50"})
        first = worker_of(plugin)
        running = InferRequest(network)
        running.start_async({"x": np.array([STALL], np.float32)})
        eventually(lambda: plugin._host.worker().under_way != [], "a run")
        with pytest.raises(Unavailable, match=r"\(SIGSEGV\); try again") as caught:
            infer(network, CRASH)
        assert caught.value.retry_delay_seconds is not None
        assert caught.value.retry_delay_seconds > 0
        with pytest.raises(Unavailable):  # it ran in the same process
            running.result(PATIENCE_SECONDS)
        states.wait_for(DeviceState.RESTARTING)
        states.wait_for(DeviceState.UP, after=states.seen.index(DeviceState.RESTARTING))
        assert worker_of(plugin) != first
        assert not Path(f"/proc/{first}").exists()
        assert infer(network, -1, 2) == [0, 2]
        case = networks.local_function()
        del case.model.functions[:]  # the extension brings it
        again = plugin.load_network(Load(case.network))
        assert InferRequest(again).infer(case.inputs)
        counted = services.counters.device("FRAGILE.0").snapshot()
        labels = "FRAGILE.0", "request"
        accepted = number(counted, families.DEVICE_ACCEPTED, *labels)
        assert accepted == number(counted, families.DEVICE_REQUESTS, *labels)
        assert number(counted, families.DEVICE_REQUESTS, *labels, "failed") == 2
        again.close()
        network.close()


def test_what_the_plugin_counts_and_its_memory_are_seen_in_the_server(services: Services) -> None:
    states = States(services)

    def shown() -> list[tuple[str, tuple[str, ...], object]]:
        own = numbers(services.counters.snapshot(), RUNS.of_network(), "net", "1")
        return [(RUNS.name, labels, value) for labels, value in own.items()]

    with isolated(services) as plugin:
        network = relu(plugin)
        network.count_as("net", services.counters.network("net", "FRAGILE"))
        infer(network, 1)
        infer(network, 2)
        eventually(lambda: shown() == [("crashing_runs_total", ("whole",), 2.0)], "two runs")
        assert plugin.memory_bytes("0") == MEMORY_BYTES
        os.kill(worker_of(plugin), signal.SIGKILL)
        states.wait_for(DeviceState.RESTARTING)
        eventually(lambda: shown() != [("crashing_runs_total", ("whole",), 2.0)], "another worker")
        states.wait_for(DeviceState.UP, after=states.seen.index(DeviceState.RESTARTING))
        eventually(lambda: shown() == [("crashing_runs_total", ("whole",), 0.0)], "none anew")
        network.close()
        assert shown() == []


def test_a_scrape_does_not_wait_for_a_worker_that_stands_still(services: Services) -> None:
    with isolated(services) as plugin:
        network = relu(plugin)
        os.kill(worker_of(plugin), signal.SIGSTOP)
        assert plugin.memory_bytes("0") == network.network.weight_bytes
        os.kill(worker_of(plugin), signal.SIGCONT)
        network.close()


@pytest.mark.long
def test_requests_are_refused_with_a_delay_while_there_is_no_worker(
    services: Services, tmp_path: Path
) -> None:
    states, held = States(services), tmp_path / "held"
    with isolated(services) as plugin:
        network = plugin.load_network(Load(layer_called(f"{HELD}{held}")))
        held.touch()
        os.kill(worker_of(plugin), signal.SIGKILL)
        states.wait_for(DeviceState.RESTARTING)
        with pytest.raises(Unavailable) as refused:
            infer(network, 1)
        assert refused.value.retry_delay_seconds is not None
        assert refused.value.retry_delay_seconds > 0
        assert (
            number(
                services.counters.device("FRAGILE.0").snapshot(),
                families.DEVICE_REFUSED,
                "FRAGILE.0",
                "device_down",
            )
            > 0
        )
        assert plugin.get_metric("FULL_DEVICE_NAME") == "Crashing Device"
        assert plugin.device_ids() == ["0"]
        held.unlink()
        states.wait_for(DeviceState.UP, after=2)
        assert infer(network, 1) == [1]
        network.close()


def layer_called(name: str) -> Network:
    """A model that does something to the worker has a structure of its own."""
    deadly = (CRASHING_LAYER, CRASHING_QUERY)
    operator = "Identity" if name in deadly else "Abs" if name == "other" else "Relu"
    model = parse(f"g (float[n] x) => (float[n] y) {{ y = {operator}(x) }}")
    model.graph.node[0].name = name
    return network_of(model)


@pytest.mark.parametrize(
    ("layer", "verb"), [(CRASHING_LAYER, "loaded"), (CRASHING_QUERY, "queried")]
)
def test_a_model_that_ended_the_worker_is_refused_from_then_on_and_nothing_else_is(
    services: Services, layer: str, verb: str
) -> None:
    states = States(services)
    with isolated(services) as plugin:
        network = relu(plugin)

        def ask() -> None:
            if verb == "loaded":
                plugin.load_network(Load(layer_called(layer)))
            else:
                plugin.query_network(layer_called(layer), {})

        with pytest.raises(EndedWorker, match=rf"\(SIGSEGV\).* while it was {verb}"):
            ask()
        states.wait_for(DeviceState.UP, after=2)
        survivor = worker_of(plugin)
        for refused in (
            ask,
            lambda: plugin.load_network(Load(layer_called(layer), {"PERF_COUNT": "YES"})),
            lambda: plugin.query_network(layer_called(layer), {}),
            lambda: plugin.load_network(Load(layer_called(layer), native=b"native")),
        ):
            with pytest.raises(EndedWorker, match="until the server is restarted"):
                refused()
        assert worker_of(plugin) == survivor
        assert infer(network, 3) == [3]
        relu(plugin).close()
        network.close()


@pytest.mark.long
def test_a_network_that_ends_the_worker_that_is_to_have_it_again_is_given_up(
    services: Services,
) -> None:
    states = States(services)
    with isolated(services) as plugin:
        network, other = relu(plugin), plugin.load_network(Load(layer_called("other")))
        # It compiled once, and ends the next worker.
        worker_network, deadly = network._worker_network, layer_called(CRASHING_LAYER)  # type: ignore[attr-defined]
        worker_network._load, worker_network.loading = Load(deadly), Work(deadly, "0", "loaded")
        os.kill(worker_of(plugin), signal.SIGKILL)
        states.wait_for(DeviceState.UP, after=2)
        assert DeviceState.DOWN in states.seen
        assert infer(other, 3) == [3]
        with pytest.raises(EndedWorker, match="SIGSEGV"):
            infer(network, 3)
        network.close()
        other.close()


@pytest.mark.long
def test_a_request_that_alone_ended_the_worker_says_so_and_the_third_ends_its_network(
    services: Services,
) -> None:
    states = States(services)
    with isolated(services) as plugin:
        network, other = relu(plugin), plugin.load_network(Load(layer_called("other")))
        for _ in range(ENDS):
            before = len(states.seen)
            with pytest.raises(EndedWorker, match="do not send it again"):
                infer(network, CRASH)
            states.wait_for(DeviceState.UP, after=before)
        with pytest.raises(EndedWorker, match="this model ended 3 worker processes"):
            infer(network, 1)
        with pytest.raises(EndedWorker, match="this model ended 3 worker processes"):
            relu(plugin)
        assert infer(other, 3) == [3]
        network.close()
        other.close()


@pytest.mark.long
def test_a_model_that_was_loaded_when_another_ended_the_worker_is_tried_alone_and_taken(
    services: Services, tmp_path: Path
) -> None:
    states = States(services)
    held = tmp_path / "held"
    held.touch()
    with isolated(services) as plugin:
        network = relu(plugin)
        with ThreadPoolExecutor(1) as pool:
            innocent = layer_called(f"{HELD}{held}")
            load = pool.submit(plugin.load_network, Load(innocent))
            eventually(lambda: plugin._host.worker().under_way != [], "the load")
            with pytest.raises(Unavailable, match="try again"):  # it cannot be told which it was
                infer(network, CRASH)
            with pytest.raises(Unavailable, match="try again"):
                load.result(PATIENCE_SECONDS)
        states.wait_for(DeviceState.UP, after=2)
        held.unlink()
        survivor, before = worker_of(plugin), len(states.seen)
        with closing(plugin.load_network(Load(layer_called(f"{HELD}{held}")))) as again:
            assert infer(again, -1, 2) == [0, 2]
        assert worker_of(plugin) == survivor
        assert not plugin._host._blame.suspects(Work(innocent, "0", "loaded"))
        assert len(states.seen) == before
        network.close()


@pytest.mark.long
def test_a_suspected_model_that_ends_its_own_worker_costs_the_device_nothing(
    services: Services,
) -> None:
    states = States(services)
    with isolated(services) as plugin:
        network, other = relu(plugin), layer_called(CRASHING_LAYER)
        works = (Work(other, "0", "loaded"), Work(network.network, "0", RUN))
        plugin._host._blame.judge(End("SIGSEGV", crashed=True, works=works))
        survivor, before = worker_of(plugin), len(states.seen)
        with pytest.raises(EndedWorker, match="until the server is restarted"):
            plugin.load_network(Load(other))
        assert (worker_of(plugin), len(states.seen)) == (survivor, before)
        assert infer(network, 3) == [3]
        network.close()


def test_a_worker_that_stands_still_for_good_is_replaced(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_PULSE_SECONDS", 0.01)
    states = States(services)
    with isolated(services) as plugin:
        network = relu(plugin)  # on a busy machine it may take seconds, which count, too
        monkeypatch.setattr(process, "_STILL_SECONDS", 3.0)
        plugin._host.call("pulse", {})  # the pulse before it, with more time, has its answer, too
        with ThreadPoolExecutor(1) as pool:
            os.kill(worker_of(plugin), signal.SIGSTOP)
            query = pool.submit(plugin.query_network, layer_called("other"), {})
            with pytest.raises(Unavailable, match=r"it gave no answer for 3 s\); try again"):
                query.result(PATIENCE_SECONDS)
        monkeypatch.setattr(process, "_STILL_SECONDS", 120.0)
        states.wait_for(DeviceState.UP, after=2)
        assert infer(network, 3) == [3]
        network.close()


def test_whoever_leaves_a_worker_that_stands_still_waits_no_more(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_GRACE_SECONDS", 0.0)
    with isolated(services) as plugin:
        worker, token = plugin._host.worker(), CancelToken()
        os.kill(worker.pid, signal.SIGSTOP)
        try:
            with ThreadPoolExecutor(1) as pool:
                load = pool.submit(plugin.load_network, Load(layer_called("left"), token=token))
                eventually(lambda: bool(worker.under_way), "a load under way")
                token.cancel(Cancelled("the caller has left"))
                with pytest.raises(Cancelled, match="the caller has left"):
                    load.result(PATIENCE_SECONDS)
        finally:
            os.kill(worker.pid, signal.SIGCONT)
        eventually(lambda: not worker.under_way, "nothing under way")
        network = relu(plugin)
        assert infer(network, 3) == [3]
        assert plugin._host.worker() is worker
        network.close()


@pytest.mark.long
def test_a_worker_that_stands_still_while_it_gets_its_networks_back_is_replaced(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_PULSE_SECONDS", 0.01)
    states = States(services)
    with isolated(services) as plugin:
        network = relu(plugin)
        load, standing = network._worker_network.load, [1]  # type: ignore[attr-defined]

        def held(worker: WorkerProcess) -> Mapping[str, Any]:
            if standing.pop() if standing else 0:
                os.kill(worker.pid, signal.SIGSTOP)
                monkeypatch.setattr(process, "_STILL_SECONDS", 0.1)
            try:
                facts: Mapping[str, Any] = load(worker)
            finally:
                monkeypatch.setattr(process, "_STILL_SECONDS", 120.0)
            return facts

        network._worker_network.load = held  # type: ignore[attr-defined]
        os.kill(worker_of(plugin), signal.SIGKILL)
        states.wait_for(DeviceState.UP, after=2)
        assert infer(network, 3) == [3]
        network.close()


@pytest.mark.long
def test_killing_it_ends_a_worker_that_is_still_being_brought_back(services: Services) -> None:
    states = States(services)
    with isolated(services) as plugin:
        network = relu(plugin)
        compiling, killed = threading.Event(), threading.Event()
        load = network._worker_network.load  # type: ignore[attr-defined]

        def held(worker: WorkerProcess) -> Mapping[str, Any]:
            compiling.set()
            assert killed.wait(PATIENCE_SECONDS)
            facts: Mapping[str, Any] = load(worker)
            return facts

        network._worker_network.load = held  # type: ignore[attr-defined]
        os.kill(worker_of(plugin), signal.SIGKILL)
        assert compiling.wait(PATIENCE_SECONDS)
        plugin.kill()
        killed.set()
        network.close()
        plugin.close()
        assert DeviceState.UP not in states.seen[1:]


@pytest.mark.long
def test_closing_a_device_does_not_wait_for_a_worker_that_is_being_brought_back(
    services: Services, tmp_path: Path
) -> None:
    states = States(services)
    held = tmp_path / "held"
    with isolated(services) as plugin:
        network = plugin.load_network(Load(layer_called(f"{HELD}{held}")))
        compiling = threading.Event()
        worker_network = network._worker_network  # type: ignore[attr-defined]
        load = worker_network.load

        def told(worker: WorkerProcess) -> Mapping[str, Any]:
            compiling.set()
            facts: Mapping[str, Any] = load(worker)
            return facts

        worker_network.load = told
        held.touch()
        os.kill(worker_of(plugin), signal.SIGKILL)
        assert compiling.wait(PATIENCE_SECONDS)
        with ThreadPoolExecutor(1) as pool:
            closed = pool.submit(plugin.close)
            try:
                closed.result(PATIENCE_SECONDS)
            finally:
                held.unlink()
        network.close()
        assert DeviceState.UP not in states.seen[1:]


def test_a_device_that_is_closed_while_it_starts_leaves_no_worker(services: Services) -> None:
    plugins: list[IsolatedPlugin] = []

    class Late(WorkerProcess):
        def call(self, method: str, *arguments: Any, **options: Any) -> Answer:
            answer = super().call(method, *arguments, **options)
            if method == "describe":
                plugins[0]._host.stop()
            return answer

    stub = factory_source("FRAGILE", _LATE).load()("FRAGILE", services, {})
    plugins.append(IsolatedPlugin("FRAGILE", services, {}, _LATE, stub=stub, launch=Late))
    with pytest.raises(Unavailable):
        relu(plugins[0])
    plugins[0].close()
    assert workers() == []


def test_a_late_device_whose_first_worker_ends_at_once_still_shows_its_ids(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = factory_source("FRAGILE", _LATE).load()("FRAGILE", services, {})
    plugin = IsolatedPlugin("FRAGILE", services, {}, _LATE, stub=stub)
    tell = plugin._tell

    def late() -> None:
        worker = plugin._host.worker()
        worker.kill()
        worker.ended.wait()
        tell()

    monkeypatch.setattr(plugin, "_tell", late)
    with suppress(Unavailable):
        plugin.query_network(layer_called("any"), {})
    assert plugin.names() == ["FRAGILE.0"]
    plugin.close()


def test_a_device_for_which_the_system_has_no_process_is_unavailable(services: Services) -> None:
    def launch(device: str) -> WorkerProcess:
        raise OSError(11, "Resource temporarily unavailable", "/where/it/is")

    with pytest.raises(Unavailable, match=r"for device FRAGILE: Resource temporarily unavailable$"):
        IsolatedPlugin("FRAGILE", services, {}, _PATH, launch=launch)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("secret"),
        pytest.param(OSError(28, "secret"), marks=pytest.mark.long),
        pytest.param(MemoryError(), marks=pytest.mark.long),
    ],
)
def test_a_network_that_the_server_cannot_bring_back_costs_no_other_network_and_no_process(
    services: Services, error: Exception
) -> None:
    states = States(services)
    with isolated(services) as plugin:
        network, other = relu(plugin), plugin.load_network(Load(layer_called("other")))

        def fail(worker: WorkerProcess) -> Mapping[str, Any]:
            raise error

        network._worker_network.load = fail  # type: ignore[attr-defined]
        os.kill(worker_of(plugin), signal.SIGKILL)
        states.wait_for(DeviceState.RESTARTING)
        eventually(lambda: DeviceState.UP in states.seen[2:] or len(workers()) > 2, "an end")
        assert workers() == [worker_of(plugin)]
        assert infer(other, 3) == [3]
        with pytest.raises(Unavailable, match="the server's log explains; load it again"):
            infer(network, 3)
        network.close()
        other.close()


@pytest.mark.long
def test_a_worker_that_ends_while_it_gets_its_networks_back_is_followed_by_another(
    services: Services,
) -> None:
    states = States(services)
    with isolated(services) as plugin:
        network = relu(plugin)
        load, doomed = network._worker_network.load, [1, 2]  # type: ignore[attr-defined]

        def told(worker: WorkerProcess) -> Mapping[str, Any]:
            if doomed:
                worker.kill()
                doomed.pop()
            facts: Mapping[str, Any] = load(worker)
            return facts

        network._worker_network.load = told  # type: ignore[attr-defined]
        os.kill(worker_of(plugin), signal.SIGKILL)
        states.wait_for(DeviceState.UP, after=2)
        assert workers() == [worker_of(plugin)]
        assert infer(network, 3) == [3]
        network.close()


@pytest.mark.long
def test_an_extension_that_came_while_the_worker_ended_was_not_added(services: Services) -> None:
    states = States(services)
    with isolated(services) as plugin:
        host, case = plugin._host, networks.local_function()
        functions = list(case.network.model.functions.values())
        del case.model.functions[:]
        worker = host.worker()
        call = worker.call

        def last(method: str, *arguments: Any, **options: Any) -> Answer:
            answer = call(method, *arguments, **options)
            worker.kill()
            states.wait_for(DeviceState.UP, after=2)
            return answer

        worker.call = last  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match="try again"):
            plugin.add_extension(functions)
        with pytest.raises(HeadraceError):
            plugin.load_network(Load(case.network))
        plugin.add_extension(functions)
        plugin.load_network(Load(case.network)).close()


def test_a_worker_that_dies_or_raises_at_its_start_is_the_devices_reason(
    services: Services,
) -> None:
    module = "tests.support.crashing_device"
    isolated_config = {"ISOLATION": "PROCESS"}
    registry = PluginRegistry()
    sources = [
        factory_source("DEAD", f"{module}:create_crashing").configured("DEAD", isolated_config),
        factory_source("BARE", f"{module}:create_without_driver").configured(
            "BARE", isolated_config
        ),
        PluginSource("LOST", lambda: None, isolated_config),
        factory_source("ALWAYS", f"{module}:create_isolated"),
    ]
    registry.start(sources, services)
    try:
        reasons = registry.reasons(full=True)
        assert "SIGSEGV" in reasons["DEAD"]
        assert "libdriver.so.1 is not installed; install the driver" in reasons["BARE"]
        assert "path" in reasons["LOST"]
        assert "libdriver" not in registry.reasons()["BARE"]
        assert isinstance(registry.plugin("ALWAYS"), IsolatedPlugin)
        assert registry.plugin("ALWAYS").get_config("ISOLATION") == "PROCESS"
        assert "ISOLATION" not in registry.plugin("ALWAYS").settings()
        with pytest.raises(InvalidArgument, match="configuration file"):
            registry.plugin("ALWAYS").set_config({"ISOLATION": "NONE"})
    finally:
        registry.close()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"ISOLATION": "NONE"}, "works only with ISOLATION=PROCESS"),
        ({"ISOLATION": "THREAD"}, "allowed: NONE or PROCESS"),
        ({"NUM_STREAM": "1"}, "did you mean 'NUM_STREAMS'"),  # which the worker finds
    ],
)
def test_a_mistake_in_the_configuration_of_an_isolated_device_ends_the_start(
    services: Services, config: Mapping[str, str], message: str
) -> None:
    source = factory_source("FRAGILE", "tests.support.crashing_device:create_isolated")
    (key,) = config
    with pytest.raises(HeadraceError, match=message) as caught:
        PluginRegistry().start([source.configured("FRAGILE", config)], services)
    assert caught.value.field == f"plugins.FRAGILE.config['{key}']"


def test_cancelling_reaches_the_worker_and_a_run_that_ignores_its_timeout_is_killed(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated_network, "_PATIENCE_SECONDS", PATIENCE_SECONDS)
    states = States(services)
    with isolated(services, {"NUM_STREAMS": "2"}) as plugin:
        case = networks.endless()
        endless = plugin.load_network(Load(case.network))
        request = InferRequest(endless)
        request.start_async(case.inputs)
        eventually(lambda: endless.executor is not None and endless.executor.busy == 1, "a run")
        request.cancel()
        with pytest.raises(Cancelled):
            request.result(PATIENCE_SECONDS)
        assert DeviceState.RESTARTING not in states.seen
        monkeypatch.setattr(isolated_network, "_PATIENCE_SECONDS", 0.05)
        stubborn = relu(plugin, {"EXECUTION_TIMEOUT": "0.1"})
        ended: list[Job] = []
        done = threading.Event()

        def hear(job: Job) -> None:
            ended.append(job)
            done.set()

        stubborn.submit(Job({"x": np.array([STALL], np.float32)}, hear))
        assert done.wait(PATIENCE_SECONDS)
        assert ended[0].outcome is Outcome.EXPIRED
        assert isinstance(ended[0].error, DeadlineExceeded)
        states.wait_for(DeviceState.UP, after=2)
        assert infer(stubborn, 1) == [1]
        stubborn.close()
        endless.close()


def test_a_cancelled_load_leaves_nothing(services: Services) -> None:
    with isolated(services) as plugin:
        token = CancelToken()
        token.cancel(Cancelled("not wanted"))
        with pytest.raises(Cancelled):
            plugin.load_network(Load(Network.from_bytes(_RELU), token=token))
        assert plugin._host._worker_networks == []


def test_set_config_is_checked_on_both_sides_and_survives_a_crash(services: Services) -> None:
    states = States(services)
    with isolated(services, {"THROUGHPUT_STREAMS": "2"}) as plugin:
        assert plugin.streams() == 2
        plugin.set_config({"THROUGHPUT_STREAMS": "3"})
        assert plugin.streams() == 3
        with pytest.raises(InvalidArgument):
            plugin.set_config({"THROUGHPUT_STREAMS": "0"})
        with pytest.raises(NotFound, match="did you mean 'THROUGHPUT_STREAMS'"):
            plugin.set_config({"THROUGHPUT_STREAM": "1"})
        network = relu(plugin, {"PERF_COUNT": "NO"})
        network.set_config({"EXECUTION_TIMEOUT": "9"})
        os.kill(worker_of(plugin), signal.SIGKILL)
        states.wait_for(DeviceState.UP, after=2)
        assert plugin.get_metric("RANGE_FOR_STREAMS").maximum == 3  # type: ignore[union-attr]
        assert infer(network, 1) == [1]
        network.close()


def test_large_tensors_share_memory_that_is_given_back(services: Services) -> None:
    with isolated(services) as plugin:
        network = relu(plugin)
        rng = np.random.default_rng(0)
        kept = []
        for size in (10, 200_000, 50_000, 400_000):
            x = rng.standard_normal(size).astype(np.float32)
            outputs = InferRequest(network).infer({"x": x})
            kept.append((x, outputs["y"]))
        for x, y in kept:  # none was written over by a later request
            assert np.array_equal(np.maximum(x, 0), y)  # type: ignore[arg-type]
        pool = plugin._host.worker().pool
        del kept, y, outputs
        assert pool.idle() > 0
        network.close()
        assert pool.idle() == 0


@pytest.mark.long
def test_one_large_answer_has_later_ones_reserve_no_more_than_they_take(
    services: Services,
) -> None:
    with isolated(services) as plugin:
        network = relu(plugin)
        exchange = network._worker_network.exchange()  # type: ignore[attr-defined]
        expected = []
        for size in (10, 400_000, 50_000, 10):
            InferRequest(network).infer({"x": np.zeros(size, np.float32)})
            expected.append(exchange.expected)
        assert expected == [0, 1_600_000, 200_000, 0]
        network.close()


def test_the_worker_dies_with_its_server_whatever_it_does() -> None:
    """A second process stands for the server, and is killed while its worker computes."""
    program = (
        "import sys, threading\n"
        "import numpy as np\n"
        "from headrace.runtime.device.load import Load\n"
        "from headrace.runtime.isolation.server.plugin import IsolatedPlugin\n"
        "from headrace.testing.infer_request import InferRequest\n"
        "from headrace.runtime.network.network import Network\n"
        "from headrace.testing.services import services\n"
        "from tests.unit.runtime.isolation.server.test_host import _PATH, _RELU, STALL\n"
        "with services() as offered:\n"
        "    plugin = IsolatedPlugin('FRAGILE', offered, {}, _PATH)\n"
        "    network = plugin.load_network(Load(Network.from_bytes(_RELU)))\n"
        "    request = InferRequest(network)\n"
        "    request.start_async({'x': np.array([STALL], np.float32)})\n"
        "    print(plugin._host.worker().pid, flush=True)\n"
        "    threading.Event().wait()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[5])}
    with Child(program, env=environment) as server:
        worker = int(server.line())
    eventually(lambda: not alive(worker), "the worker's end")


def alive(pid: int) -> bool:
    """Whether the process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
