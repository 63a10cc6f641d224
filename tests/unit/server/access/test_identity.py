from __future__ import annotations

import asyncio

import pytest

from headrace.server.access.identity import ANONYMOUS, CALLER, Identity, Role


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        (Role.READ, {Role.OPEN, Role.READ}),
        (Role.INFER, {Role.OPEN, Role.READ, Role.INFER}),
        (Role.MANAGE, set(Role)),
    ],
)
def test_a_role_includes_the_roles_below_it(role: Role, allowed: set[Role]) -> None:
    identity = Identity("token:ci", frozenset({role}))
    assert {each for each in Role if identity.may(each)} == allowed


def test_an_identity_without_roles_may_only_make_open_calls() -> None:
    identity = Identity("token:ci", frozenset())
    assert [each for each in Role if identity.may(each)] == [Role.OPEN]


def test_everybody_may_do_everything_without_access_control() -> None:
    assert all(CALLER.get().may(each) for each in Role)
    assert CALLER.get() is ANONYMOUS


def test_each_task_has_its_own_caller() -> None:
    async def call(identity: Identity) -> Identity:
        CALLER.set(identity)
        await asyncio.sleep(0)
        return CALLER.get()

    async def all_calls() -> list[Identity]:
        return await asyncio.gather(*map(call, callers))

    callers = [Identity(f"token:{number}", frozenset()) for number in range(3)]
    assert asyncio.run(all_calls()) == callers
    assert CALLER.get() is ANONYMOUS


def test_identities_with_equal_names_and_roles_are_equal() -> None:
    one, two = (Identity("token:ci", frozenset({Role.READ})) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
