from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.runtime.errors import HeadraceError, Internal, PermissionDenied, Unauthenticated
from headrace.server.access import gate as module
from headrace.server.access.authenticator import Authenticator, Grant
from headrace.server.access.gate import Gate, OpenCall, need, uncancelled, when_ended
from headrace.server.access.identity import CALLER, STRANGER, Role
from headrace.server.access.tokens import Entries, parse_entries
from headrace.server.access.watched import WatchedFiles
from tests.support.tokens import entry, replace

BOTH = entry("a", "1", "infer") + entry("b", "2", "infer")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.toml"
    path.write_text(BOTH)
    return path


@pytest.fixture
def files(path: Path) -> WatchedFiles[Entries]:
    return WatchedFiles([path], parse_entries, field="tokens")


@pytest.fixture
def gate(files: WatchedFiles[Entries], monkeypatch: pytest.MonkeyPatch) -> Gate:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.001)
    return Gate(Authenticator(files))


def nobody() -> tuple[str, ...]:
    return ()


def handler() -> asyncio.Task[object]:
    """The task that handles the call."""
    task = asyncio.current_task()
    assert task is not None
    return task


async def ended(gate: Gate, token: str, work: Callable[[], Awaitable[object]]) -> OpenCall:
    """A call that works until its end, as the boundary makes it."""
    call = gate.enter(f"Bearer {token}", nobody, Role.INFER, handler())
    assert call is not None
    try:
        await work()
    except asyncio.CancelledError:
        assert call.ended is not None
    finally:
        gate.leave(call)
    return call


async def forever() -> None:
    await asyncio.Event().wait()


def test_a_caller_without_the_role_does_not_get_in(gate: Gate) -> None:
    async def enter(header: str | None, role: Role) -> object:
        return gate.enter(header, nobody, role, handler())

    with pytest.raises(PermissionDenied, match="the role manage"):
        asyncio.run(enter("Bearer 1", Role.MANAGE))
    with pytest.raises(Unauthenticated):
        asyncio.run(enter("Bearer 3", Role.READ))
    with pytest.raises(Unauthenticated):
        asyncio.run(enter(None, Role.READ))


@pytest.mark.parametrize("header", [None, "Bearer 3", "nonsense"])
def test_an_open_call_lets_strangers_in_under_no_name(header: str | None, gate: Gate) -> None:
    async def enter() -> None:
        assert gate.enter(header, nobody, Role.OPEN, handler()) is None
        assert CALLER.get() is STRANGER

    asyncio.run(enter())


def test_a_revoked_token_ends_its_open_call_and_no_other(
    gate: Gate, path: Path, files: WatchedFiles[Entries]
) -> None:
    async def calls() -> None:
        revoked, kept = (asyncio.create_task(ended(gate, each, forever)) for each in "12")
        await asyncio.sleep(0)
        replace(path, entry("b", "2", "infer"))
        files.look()
        call = await revoked
        assert isinstance(call.ended, Unauthenticated)
        assert not kept.done()
        kept.cancel()

    asyncio.run(calls())


def test_a_role_that_becomes_too_small_ends_the_open_call(
    gate: Gate, path: Path, files: WatchedFiles[Entries]
) -> None:
    async def calls() -> OpenCall:
        task = asyncio.create_task(ended(gate, "1", forever))
        await asyncio.sleep(0)
        replace(path, entry("a", "1", "read"))
        files.look()
        return await task

    assert isinstance(asyncio.run(calls()).ended, PermissionDenied)


def test_a_request_that_turns_out_to_need_more_ends_when_it_has_less(
    gate: Gate, path: Path, files: WatchedFiles[Entries]
) -> None:
    """HTTP knows the role of a request only when it has found the route."""

    async def calls() -> OpenCall:
        call = gate.enter("Bearer 1", nobody, Role.READ, handler())
        assert call is not None
        with pytest.raises(PermissionDenied):
            need(Role.MANAGE)
        need(Role.INFER)
        replace(path, entry("a", "1", "read"))
        files.look()
        with pytest.raises(asyncio.CancelledError):
            await forever()
        return call

    assert isinstance(asyncio.run(asyncio.wait_for(calls(), 60)).ended, PermissionDenied)


def test_a_call_may_say_how_it_ends(gate: Gate, path: Path, files: WatchedFiles[Entries]) -> None:
    async def calls() -> tuple[OpenCall, HeadraceError]:
        told: asyncio.Future[HeadraceError] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            when_ended(told.set_result)
            replace(path, "# nobody")
            files.look()
            await told

        call = await ended(gate, "1", work)
        return call, await told

    call, told = asyncio.run(calls())
    assert call.ended is told


def test_a_call_that_writes_ends_after_the_write(
    gate: Gate, path: Path, files: WatchedFiles[Entries]
) -> None:
    """grpc.aio never ends a call that is cancelled while it writes."""

    async def calls() -> None:
        call = gate.enter("Bearer 1", nobody, Role.INFER, handler())
        assert call is not None
        written: list[bool] = []

        async def write() -> None:
            with uncancelled():
                replace(path, "# nobody")
                files.look()
                while call.ended is None:
                    await asyncio.sleep(0)
                written.append(True)

        with pytest.raises(Unauthenticated) as caught:
            await write()
        assert written
        assert caught.value is call.ended

    asyncio.run(calls())


def test_a_call_that_is_over_is_freed_without_a_garbage_collection(gate: Gate) -> None:
    """Its task's context refers to the call, so the call must not refer to the task for ever."""

    async def work() -> None:
        when_ended(print)

    async def calls() -> weakref.ref[asyncio.Task[OpenCall]]:
        task = asyncio.create_task(ended(gate, "1", work))
        seen = weakref.ref(task)
        await task
        return seen

    gc.disable()
    try:
        assert asyncio.run(calls())() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("ends_badly", [False, True])
def test_a_bug_in_a_check_ends_its_call_and_the_others_are_still_checked(
    ends_badly: bool,
    gate: Gate,
    path: Path,
    files: WatchedFiles[Entries],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A caller whose credential cannot be checked may have lost it."""
    authenticator = gate._authenticator
    check = authenticator.is_current

    def failing(grant: Grant) -> bool:
        if grant.identity.name == "token:a":
            raise RuntimeError("a bug")
        return check(grant)

    async def badly() -> None:
        def end(_: HeadraceError) -> None:
            raise RuntimeError("another bug")

        when_ended(end)
        await forever()

    async def calls() -> tuple[OpenCall, OpenCall]:
        work = badly if ends_badly else forever
        first, second = (
            asyncio.create_task(ended(gate, token, each))
            for token, each in (("1", work), ("2", forever))
        )
        await asyncio.sleep(0)
        broken = next(each for each in gate._open if each.grant.identity.name == "token:a")
        monkeypatch.setattr(authenticator, "is_current", failing)
        while broken.ended is None:
            await asyncio.sleep(0)
        replace(path, "# nobody")
        files.look()
        other = await second
        first.cancel()
        await first
        return broken, other

    broken, other = asyncio.run(asyncio.wait_for(calls(), 60))
    assert isinstance(broken.ended, Internal)
    assert isinstance(broken.ended.__cause__, RuntimeError)
    assert isinstance(other.ended, Unauthenticated)
