"""Whose networks a caller sees, uses and changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headrace.runtime.errors import (
    AlreadyExists,
    HeadraceError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
)
from headrace.runtime.execution.job import Job, Sequence
from headrace.runtime.loading.entry import NetworkEntry, full_name, owner_of, plain_name
from headrace.runtime.loading.registry import NetworkRegistry
from headrace.server.access.identity import ANONYMOUS, CALLER, Identity, Role
from headrace.server.access.networks import Networks, PrivateNetworks, asker, owner_name

A = Identity("token:a", frozenset({Role.MANAGE}))
B = Identity("token:b", frozenset({Role.MANAGE}))
USER = Identity("token:user", frozenset({Role.INFER}))
OBSERVER = Identity("token:prometheus", frozenset({Role.READ}))
OPERATOR = Identity("token:ops", frozenset({Role.MANAGE}))
STRANGER = Identity("", frozenset())


class Executable:
    """A network that notes the jobs that it gets."""

    runs = frozenset[tuple[str, str]]()

    def __init__(self) -> None:
        self.jobs: list[Any] = []

    def submit(self, job: Any) -> None:
        self.jobs.append(job)

    def has_sequence(self, _: str) -> bool:
        return False


@pytest.fixture
def networks() -> PrivateNetworks:
    return PrivateNetworks(NetworkRegistry(16), ["token:ops"])


@contextmanager
def caller(identity: Identity) -> Iterator[None]:
    token = CALLER.set(identity)
    try:
        yield
    finally:
        CALLER.reset(token)


def load(networks: Networks, identity: Identity, name: str) -> NetworkEntry:
    registry = networks._registry
    with caller(identity):
        entry = registry.reserve(networks.new(name), "CPU", None)
    executable: Any = Executable()
    registry.publish(entry, executable, lambda _: None)
    return entry


def seen(networks: Networks, identity: Identity) -> list[str]:
    with caller(identity):
        return sorted(networks.shown(entry.key.name) for entry in networks.entries())


def error(networks: Networks, identity: Identity, name: str) -> tuple[type, str]:
    with caller(identity), pytest.raises(HeadraceError) as raised:
        networks.acquire(name)
    return type(raised.value), str(raised.value).replace(name, "NAME")


def test_two_tenants_use_the_same_name_for_networks_of_their_own(networks: PrivateNetworks) -> None:
    first, second = load(networks, A, "m"), load(networks, B, "m")
    for identity, own in ((A, first), (B, second)):
        with caller(identity):
            assert networks.acquire("m") is own
            assert networks.find("m") is own
            assert networks.versions("m") == [own]
        assert seen(networks, identity) == ["m"]


def test_a_tenant_uses_a_shared_network_until_it_has_one_of_the_same_name(
    networks: PrivateNetworks,
) -> None:
    shared = load(networks, OPERATOR, "m")
    with caller(A):
        assert networks.acquire("m") is shared
    own = load(networks, A, "m")
    with caller(A):
        assert networks.acquire("m") is own
        assert not networks.sees(shared.key.name)
    with caller(USER):
        assert networks.acquire("m") is shared
    assert seen(networks, A) == ["m"]


@pytest.mark.parametrize("name", ["secret", "secret@token:a", "secret@token%3Aa", "@token:a"])
@pytest.mark.parametrize("identity", [B, USER, ANONYMOUS, STRANGER], ids=lambda each: each.name)
def test_another_s_network_is_as_one_that_does_not_exist(
    networks: PrivateNetworks, identity: Identity, name: str
) -> None:
    load(networks, OPERATOR, "shared")
    load(networks, A, "secret")
    never = name.replace("secret", "nosuch")
    assert error(networks, identity, name) == error(networks, identity, never)
    assert error(networks, identity, name)[0] is NotFound
    assert "secret" not in error(networks, identity, "secrey")[1]


def test_the_suggestions_of_an_error_are_networks_that_the_caller_sees(
    networks: PrivateNetworks,
) -> None:
    load(networks, OPERATOR, "mobilenet")
    load(networks, A, "resnet50")
    assert "'resnet50'" in error(networks, A, "resnet-50")[1]
    assert error(networks, B, "resnet-50")[1].endswith("known: mobilenet")


def test_operators_and_observers_see_each_network_with_its_owner(
    networks: PrivateNetworks,
) -> None:
    load(networks, OPERATOR, "m")
    theirs = load(networks, A, "m")
    for identity in (OPERATOR, OBSERVER):
        assert seen(networks, identity) == ["m", "m@token:a"]
    with caller(OPERATOR):
        assert networks.acquire("m@token:a") is theirs
        assert networks.changeable("m@token:a") == theirs.key.name


def test_a_tenant_changes_its_own_networks_and_no_others(networks: PrivateNetworks) -> None:
    load(networks, OPERATOR, "shared")
    own = load(networks, A, "own")
    with caller(A):
        assert networks.changeable("own") == own.key.name
        with pytest.raises(PermissionDenied, match="only an operator changes it"):
            networks.changeable("shared")
        with pytest.raises(PermissionDenied, match="operators"):
            networks.check_operator("the log")
    with caller(OPERATOR):
        networks.check_operator("the log")
        assert networks.changeable("shared") == "shared"


def test_a_name_in_use_by_the_same_tenant_is_refused_with_the_name_that_it_gave(
    networks: PrivateNetworks,
) -> None:
    load(networks, A, "m")
    with pytest.raises(AlreadyExists, match="network 'm' exists"):
        load(networks, A, "m")


@pytest.mark.parametrize("name", ["m@token:b", "a b", "@", "m@"])
@pytest.mark.parametrize("identity", [A, OPERATOR], ids=lambda each: each.name)
def test_nobody_loads_under_a_name_with_an_owner_in_it(
    networks: PrivateNetworks, identity: Identity, name: str
) -> None:
    with caller(identity), pytest.raises(InvalidArgument, match="is not a network name"):
        networks.new(name)


def test_sequences_of_one_id_on_a_shared_network_are_apart(networks: PrivateNetworks) -> None:
    entry = load(networks, OPERATOR, "m")
    executable: Any = entry.executable
    for identity in (A, B):
        with caller(identity):
            job = Job({}, lambda _: None, sequence=Sequence("talk", start=True))
            networks.submit(networks.acquire("m", "", "talk"), job)
    keys = [job.sequence.key for job in executable.jobs]
    assert len(set(keys)) == len(keys) == 2
    assert {job.sequence.id for job in executable.jobs} == {"talk"}


@pytest.mark.parametrize(
    "identity",
    [
        "token:ci",
        "jwt:https://idp.example/realm:bob@example.com",
        "certificate:a/b\n*?[",
        "x" * 999,
    ],
)
def test_an_owner_is_short_and_can_be_part_of_a_file_s_name(identity: str) -> None:
    owner = owner_name(identity)
    assert len(owner) <= 96
    assert not set(owner) & set("@/*?[]\n\0")
    full = full_name("m.v-1", owner)
    assert (plain_name(full), owner_of(full)) == ("m.v-1", owner)


def test_identities_that_differ_own_different_networks() -> None:
    names = ["a@b", "a%40b", "a/b", "A@b", "", "nobody:", "x" * 200, "x" * 201]
    assert len({owner_name(each) for each in names}) == len(names)


def test_without_private_networks_callers_share_all_networks() -> None:
    networks = Networks(NetworkRegistry(4))
    entry = load(networks, A, "m")
    with caller(B):
        assert networks.acquire("m") is entry
        assert networks.changeable("m") == "m"
        networks.check_operator("the log")
    assert entry.key.name == "m"
    assert networks.acquire == networks._registry.acquire, "a request costs a call more"


@pytest.mark.parametrize(
    ("identity", "operators", "trusted"),
    [
        (A, None, True),
        (USER, None, False),
        (A, ["token:ops"], False),
        (OPERATOR, ["token:ops"], True),
        (ANONYMOUS, None, True),
    ],
)
def test_models_of_callers_who_may_not_unload_others_networks_are_not_trusted(
    identity: Identity, operators: list[str] | None, trusted: bool
) -> None:
    with caller(identity):
        assert asker(operators).trusted is trusted
