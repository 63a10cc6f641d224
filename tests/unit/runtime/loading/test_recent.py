"""Networks that were read lately."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from unittest.mock import Mock

import pytest

from headrace.plugins import cpu
from headrace.plugins.cpu.plugin import CpuPlugin
from headrace.runtime.device.load import Load
from headrace.runtime.errors import InvalidModel
from headrace.runtime.loading.recent import RecentNetworks
from headrace.runtime.network.network import Network
from headrace.testing import networks
from headrace.testing.case import network_of
from headrace.testing.infer_request import InferRequest
from headrace.testing.services import services

DATA = networks.mlp().model.SerializeToString()
SIZE = 10 * 2**20


def network() -> Network:
    return Network.from_bytes(DATA)


class Moments:
    """A timer and a clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.alarms: list[tuple[float, Callable[[], object]]] = []

    def __call__(self) -> float:
        return self.now

    def schedule(self, when: float, callback: Callable[[], object]) -> None:
        self.alarms.append((when, callback))

    def pass_to(self, now: float) -> None:
        self.now = now
        due = [each for each in self.alarms if each[0] <= now]
        self.alarms = [each for each in self.alarms if each[0] > now]
        for _, callback in due:
            callback()


@pytest.fixture
def moments() -> Moments:
    return Moments()


@pytest.fixture
def free() -> Mock:
    return Mock()


@pytest.fixture
def recent(moments: Moments, free: Mock, monkeypatch: pytest.MonkeyPatch) -> RecentNetworks:
    monkeypatch.setattr("headrace.runtime.loading.recent._memory", lambda _, size: size)
    monkeypatch.setattr("headrace.runtime.loading.recent._MOST_BYTES", 3 * SIZE)
    return RecentNetworks(moments, free, clock=moments)  # type: ignore[arg-type]


def test_the_same_model_of_the_same_client_is_read_once(recent: RecentNetworks) -> None:
    read = Mock(side_effect=network)
    first = recent.read("a", "digest", SIZE, read)
    assert recent.read("a", "digest", SIZE, read) is first
    assert recent.read("a", "another", SIZE, read) is not first


def test_no_client_meets_what_another_has_read(recent: RecentNetworks) -> None:
    first = recent.read("a", "digest", SIZE, network)
    assert recent.read("b", "digest", SIZE, network) is not first


def test_a_large_network_is_not_kept(recent: RecentNetworks) -> None:
    first = recent.read("a", "digest", 17 * 2**20, network)
    assert not first.is_kept
    assert recent.read("a", "digest", 17 * 2**20, network) is not first


def test_a_network_that_cannot_be_read_is_not_kept(recent: RecentNetworks) -> None:
    with pytest.raises(InvalidModel):
        recent.read("a", "digest", 1, lambda: Network.from_bytes(b"\0"))
    assert recent.read("a", "digest", SIZE, network).is_kept


def test_whoever_has_most_gives_way(recent: RecentNetworks, free: Mock) -> None:
    of_b = recent.read("b", "1", SIZE, network)
    of_a = [recent.read("a", digest, SIZE, network) for digest in "12"]
    free.assert_not_called()
    recent.read("a", "3", SIZE, network)
    assert [each.is_kept for each in (of_b, *of_a)] == [True, False, True]
    free.assert_called_once()


def test_a_network_is_forgotten_a_minute_after_its_last_use(
    recent: RecentNetworks, moments: Moments, free: Mock
) -> None:
    found = recent.read("a", "1", SIZE, network)
    moments.pass_to(40.0)
    assert recent.read("a", "1", SIZE, network) is found
    kept = []
    for now in (70.0, 131.0):
        moments.pass_to(now)
        kept.append(found.is_kept)
    assert kept == [True, False]
    assert not moments.alarms
    free.assert_called_once()


def test_what_was_made_of_a_network_is_dropped_after_a_few_uses(
    recent: RecentNetworks, free: Mock
) -> None:
    kept = recent.read("a", "1", SIZE, network)
    made = kept.derived("x", network)
    for _ in range(8):
        assert recent.read("a", "1", SIZE, network) is kept
    free.assert_called_once()
    assert kept.is_kept
    assert kept.derived("x", network) is not made


def test_nothing_is_kept_after_the_end(recent: RecentNetworks) -> None:
    found = recent.read("a", "1", SIZE, network)
    recent.close()
    assert not found.is_kept
    assert not recent.read("a", "1", SIZE, network).is_kept


# -- what is made of a network --


@pytest.fixture
def plugin() -> Iterator[CpuPlugin]:
    with services() as offered:
        made = cpu.create_plugin("CPU", offered, {})
        assert isinstance(made, CpuPlugin)
        yield made


def test_what_is_made_of_a_kept_network_is_made_once() -> None:
    kept, make = network(), Mock(side_effect=network)
    assert kept.derived("x", make) is not kept.derived("x", make)
    kept.keep()
    made = kept.derived("x", make)
    assert kept.derived("x", make) is made
    of_made = made.derived("y", make)
    assert made.derived("y", make) is of_made
    kept.forget()
    assert kept.derived("x", make) is not made
    assert made.derived("y", make) is not of_made


def test_threads_that_make_the_same_get_the_same() -> None:
    kept, barrier, made = network(), threading.Barrier(2), []
    kept.keep()

    def make() -> object:
        barrier.wait()
        return object()

    threads = [
        threading.Thread(target=lambda: made.append(kept.derived("x", make))) for _ in range(2)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert made[0] is made[1]


def test_a_query_and_a_load_of_a_kept_network_transform_it_once(
    plugin: CpuPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    transform = Mock(side_effect=plugin.transform_network)
    monkeypatch.setattr(plugin, "transform_network", transform)
    kept = network()
    kept.keep()
    assert plugin.query_network(kept, {}).supported_layers
    case = networks.mlp()
    for _ in range(2):
        loaded = plugin.load_network(Load(kept, {}))
        InferRequest(loaded).infer(case.inputs)
        loaded.close()
    transform.assert_called_once()
    plugin.query_network(kept, {"DISABLE_TRANSFORMATIONS": "YES"})
    assert transform.call_count == 2


def test_an_extension_makes_the_device_transform_a_kept_network_again(
    plugin: CpuPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    transform = Mock(side_effect=plugin.transform_network)
    monkeypatch.setattr(plugin, "transform_network", transform)
    kept = network()
    kept.keep()
    plugin.query_network(kept, {})
    given = network_of(networks.local_function().model)
    plugin.add_extension([*given.model.functions.values()])
    plugin.query_network(kept, {})
    assert transform.call_count == 2
