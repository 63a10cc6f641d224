"""What every unit test has to leave as it was."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextvars import copy_context
from functools import partial
from typing import Any

import pytest

_GRACE_SECONDS = 60.0


def _ours() -> set[threading.Thread]:
    """Threads that the runtime named; those of libraries may stay for the next test."""
    return {
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("headrace") or "-stream-" in thread.name
    }


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> Iterator[Any]:
    """Runs each test in a context of its own, as gRPC runs each call: what it sets there, such as
    the id of a request, is gone afterwards."""
    test = pyfuncitem.obj
    pyfuncitem.obj = partial(copy_context().run, test)
    try:
        return (yield)
    finally:
        pyfuncitem.obj = test


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """Fails a test that leaves a thread of the runtime behind; one about to end gets a moment. A
    pool of threads that is older than the test, as that of a module's core, may grow in it."""
    before = _ours()
    pools = {thread.name.rpartition("_")[0] for thread in before} - {""}
    yield
    left = {each for each in _ours() - before if each.name.rpartition("_")[0] not in pools}
    for thread in left:
        thread.join(_GRACE_SECONDS)
    alive = sorted(thread.name for thread in left if thread.is_alive())
    assert not alive, f"threads left behind: {alive}"


@pytest.fixture(autouse=True)
def _logging_is_restored() -> Iterator[None]:
    """Commands of ours configure the logging of their process, which here is the tests' own."""
    root, hook = logging.getLogger(), sys.excepthook
    handlers = list(root.handlers)
    levels = {"": root.level} | dict.fromkeys(("headrace", "onnx_ir", "uvicorn"), logging.NOTSET)
    yield
    sys.excepthook = hook
    root.handlers[:] = handlers
    for name, level in levels.items():
        logger = logging.getLogger(name)
        if logger.level != level:  # setting it goes through all loggers
            logger.setLevel(level)
