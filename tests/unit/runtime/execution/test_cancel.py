"""Cancel tokens: once, with a reason, down the tree and never up."""

from __future__ import annotations

import gc
import weakref

import pytest

from headrace.runtime.errors import Cancelled, DeadlineExceeded
from headrace.runtime.execution.cancel import CancelToken
from tests.support.gate import run_together
from tests.support.interleaving import frequent_switches

ENOUGH = Cancelled("enough")


def test_a_token_is_cancelled_once_and_keeps_the_first_reason() -> None:
    token = CancelToken()
    assert (token.cancelled, token.error) == (False, None)
    assert token.cancel(ENOUGH) is True
    assert token.cancel(DeadlineExceeded("late")) is False
    assert token.error is ENOUGH


def test_a_hook_is_called_once_on_cancel() -> None:
    token, calls = CancelToken(), list[str]()
    token.attach(lambda: calls.append("hook"))
    assert calls == []
    token.cancel(ENOUGH)
    token.cancel(ENOUGH)
    assert calls == ["hook"]


def test_a_hook_attached_to_a_cancelled_token_is_called_at_once() -> None:
    token, calls = CancelToken(), list[object]()
    token.cancel(ENOUGH)
    token.attach(lambda: calls.append(token.error))
    assert calls == [ENOUGH]


def test_a_detached_hook_is_not_called() -> None:
    token, calls = CancelToken(), list[str]()

    def hook() -> None:
        calls.append("hook")

    token.attach(hook)
    assert token.detach(hook)
    assert not token.detach(hook)
    token.cancel(ENOUGH)
    assert calls == []


def test_a_hook_that_was_called_is_not_attached_any_more() -> None:
    token, hook = CancelToken(), list[str]().clear
    token.attach(hook)
    token.cancel(ENOUGH)
    assert not token.detach(hook)


def test_a_hook_that_raises_keeps_no_other_from_hearing() -> None:
    def broken() -> None:
        raise RuntimeError("a bug")

    token, calls = CancelToken(), list[str]()
    token.attach(broken)
    token.attach(lambda: calls.append("hook"))
    token.cancel(ENOUGH)
    token.attach(broken)
    assert calls == ["hook"]


def test_a_hook_may_use_its_token() -> None:
    token, calls = CancelToken(), list[bool]()

    def hook() -> None:
        token.detach(hook)
        calls.append(token.cancel(ENOUGH))
        token.attach(lambda: calls.append(True))

    token.attach(hook)
    token.cancel(ENOUGH)
    assert calls == [False, True]


def test_cancelling_goes_down_the_tree_with_the_same_reason() -> None:
    call = CancelToken()
    request = call.child()
    parts = [request.child() for _ in range(3)]
    call.cancel(ENOUGH)
    assert [part.error for part in parts] == [ENOUGH] * 3


def test_cancelling_a_child_touches_neither_parent_nor_siblings() -> None:
    batch = CancelToken()
    one, two = batch.child(), batch.child()
    one.cancel(ENOUGH)
    assert (one.cancelled, two.cancelled, batch.cancelled) == (True, False, False)


def test_a_child_keeps_its_own_reason() -> None:
    parent = CancelToken()
    child = parent.child()
    late = DeadlineExceeded("late")
    child.cancel(late)
    parent.cancel(ENOUGH)
    assert child.error is late


def test_a_child_of_a_cancelled_token_is_cancelled_from_the_start() -> None:
    parent = CancelToken()
    parent.cancel(ENOUGH)
    assert parent.child().error is ENOUGH


def test_a_closed_child_is_not_kept_by_its_parent() -> None:
    parent = CancelToken()
    gc.disable()
    try:
        kept = []
        for _ in range(3):
            child = parent.child()
            marker = lambda: None  # noqa: E731 - something weakly referable that the child holds
            child.attach(marker)
            kept.append(weakref.ref(marker))
            child.close()
            del child, marker
        assert [each() for each in kept] == [None] * 3
    finally:
        gc.enable()
    CancelToken().close()


@pytest.mark.parametrize("depth", [0, 3])
def test_a_hook_attached_while_another_thread_cancels_is_called_exactly_once(depth: int) -> None:
    with frequent_switches():
        for _ in range(200):
            root = token = CancelToken()
            for _ in range(depth):
                token = token.child()
            calls: list[str] = []

            def attach(token: CancelToken = token, calls: list[str] = calls) -> None:
                token.attach(lambda: calls.append("hook"))

            def cancel(root: CancelToken = root) -> None:
                root.cancel(ENOUGH)

            run_together(attach, cancel)
            assert calls == ["hook"]


def test_threads_that_race_to_cancel_agree_on_one_reason() -> None:
    token, won = CancelToken(), list[bool]()
    with frequent_switches():
        run_together(*[lambda: won.append(token.cancel(Cancelled("mine"))) for _ in range(8)])
    assert sorted(won) == [False] * 7 + [True]
