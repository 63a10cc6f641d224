"""The store of a replica's core: changes of the desired state."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cluster import networks
from headrace.cluster.desired import NOTHING, Value, VersionedValue
from headrace.cluster.keeping import CommitResult
from headrace.cluster.shared.objects import Objects
from headrace.cluster.store import COMMITS, ClusterStore, Commit, converging
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.errors import AlreadyExists, FailedPrecondition, Unavailable
from headrace.runtime.transform.options import LoadRequest
from headrace.testing import networks as models

KEY = networks.key_of("n")


class Keeper:
    """The keeper, as far as a store asks it.

    Attributes:
        meanwhile: called before each change, as if another replica came first.
    """

    def __init__(self) -> None:
        self.entries: dict[str, VersionedValue] = {}
        self.revision = 0
        self.meanwhile: Callable[[], object] = lambda: None

    def put(self, key: str, value: Value | None) -> int:
        self.revision += 1
        self.entries[key] = VersionedValue(self.revision, value)
        return self.revision

    def commit(self, key: str, value: Value | None, expected: int) -> CommitResult:
        self.meanwhile()
        there = self.entries.get(key, VersionedValue(NOTHING, None))
        if there.revision != expected:
            return CommitResult(there.revision, there)
        return CommitResult(self.put(key, value))


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


@pytest.fixture
def store(keeper: Keeper, tmp_path: Path) -> ClusterStore:
    return ClusterStore(Objects(str(tmp_path)), keeper)  # type: ignore[arg-type]


def save(store: ClusterStore, version: str = "1", replicas: str | None = None) -> None:
    config = {} if replicas is None else {"REPLICAS": replicas}
    request = LoadRequest("n", DeviceName.parse("CPU"), config, version=version)
    with store.keep_model(models.mlp().network) as model:
        store.save_network(request, model, alone=False)


def version_of(keeper: Keeper, version: str = "1") -> Value:
    value = keeper.entries[KEY].value
    assert value is not None
    found: Value = value["versions"][version]
    return found


def test_a_saved_network_says_how_it_is_loaded(store: ClusterStore, keeper: Keeper) -> None:
    save(store, replicas="2")
    value = keeper.entries[KEY].value
    assert value is not None
    assert networks.replicas(value) == 2
    assert networks.bytes_of(value) == models.mlp().network.weight_bytes
    assert json.loads(version_of(keeper)["request"])["device"] == "CPU"
    save(store, version="2")
    assert networks.replicas(keeper.entries[KEY].value) == 2
    save(store, version="2", replicas="ALL")
    assert networks.replicas(keeper.entries[KEY].value) == 0


def test_changed_keys_of_a_version_add_up(store: ClusterStore, keeper: Keeper) -> None:
    save(store)
    store.save_changes("n", "1", {"EXECUTION_TIMEOUT": "1"})
    store.save_changes("n", "1", {"QUEUE_CAPACITY": "2"})
    assert version_of(keeper)["config"] == {"EXECUTION_TIMEOUT": "1", "QUEUE_CAPACITY": "2"}


def test_changes_of_what_is_not_desired_are_not_saved(store: ClusterStore, keeper: Keeper) -> None:
    store.save_changes("n", "1", {"EXECUTION_TIMEOUT": "1"})
    assert keeper.entries == {}
    save(store)
    before = keeper.entries[KEY].value
    store.save_changes("n", "9", {"EXECUTION_TIMEOUT": "1"})
    assert keeper.entries[KEY].value == before


def test_a_change_that_another_replica_overtook_is_refused(
    store: ClusterStore, keeper: Keeper
) -> None:
    save(store)
    keeper.meanwhile = lambda: keeper.put(KEY, keeper.entries[KEY].value)
    with pytest.raises(FailedPrecondition, match="another replica") as caught:
        store.save_changes("n", "1", {"EXECUTION_TIMEOUT": "1"})
    assert caught.value.field == "name"
    assert version_of(keeper)["config"] == {}
    with pytest.raises(AlreadyExists, match="load it again"):
        save(store)


def test_clients_may_configure_a_device_at_the_same_time(
    store: ClusterStore, keeper: Keeper
) -> None:
    def other() -> None:
        keeper.meanwhile = lambda: None
        keeper.put("device/CPU", {"config": {"NUM_STREAMS": "2"}})

    keeper.meanwhile = other
    store.save_config("CPU", {"PERF_COUNT": "YES"})
    assert keeper.entries["device/CPU"].value == {
        "config": {"NUM_STREAMS": "2", "PERF_COUNT": "YES"}
    }
    revision = keeper.revision
    store.save_config("CPU", {"PERF_COUNT": "YES"})
    assert keeper.revision == revision  # nothing has changed


def test_a_device_that_is_always_overtaken_says_so(store: ClusterStore, keeper: Keeper) -> None:
    keeper.meanwhile = lambda: keeper.put("device/CPU", {"config": {}})
    with pytest.raises(Unavailable, match="many clients configure CPU"):
        store.save_config("CPU", {"PERF_COUNT": "YES"})


def test_an_extension_is_saved_once(store: ClusterStore, keeper: Keeper, tmp_path: Path) -> None:
    store.save_extension("CPU", b"functions")
    ((key, entry),) = keeper.entries.items()
    assert entry.value is not None
    assert key == f"extension/CPU/{entry.value['digest']}"
    assert (tmp_path / f"extensions/{entry.value['digest']}.onnx").read_bytes() == b"functions"
    store.save_extension("CPU", b"functions")
    assert keeper.revision == 1


def test_what_follows_the_desired_state_does_not_change_it(
    store: ClusterStore, keeper: Keeper
) -> None:
    with converging():
        save(store)
        store.save_config("CPU", {"PERF_COUNT": "YES"})
        store.save_extension("CPU", b"functions")
        store.forget_network("n")
    assert keeper.entries == {}


def test_a_call_knows_the_changes_that_it_made(store: ClusterStore, keeper: Keeper) -> None:
    commits: list[Commit] = []
    token = COMMITS.set(commits)
    try:
        save(store)
        store.save_shares("n", {"1": 100})
        store.forget_network("n")
    finally:
        COMMITS.reset(token)
    assert commits == [(KEY, 1), (KEY, 2), (KEY, 3)]
    assert keeper.entries[KEY].value is None
    assert not store.keys()
