"""One server for the tests that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.client import outputs
from headrace.client.outputs import Outputs
from headrace.client.plans import infer_plans
from headrace.client.shared_memory import loan
from headrace.client.shared_memory.loan import Loan
from tests.integration.harness import Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Stops at the end as it should, and has had no error that it could not explain."""
    with Server() as running:
        yield running
        assert running.stop() == 0, running.log()
        assert "internal error" not in running.log().lower(), running.log()
        assert "Traceback" not in running.log(), running.log()


@pytest.fixture(params=["TEMPLATE", "CPU"])
def device(request: pytest.FixtureRequest, server: Server) -> str:
    """Each device in turn."""
    name = str(request.param)
    if name not in server.devices():
        pytest.skip(f"{name} is not up on this server")
    return name


@pytest.fixture
def spied(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each reply that a client has decoded: whether it was lent shared memory."""
    seen: list[bool] = []
    receive, decode = Loan.receive, outputs.decode_reply

    def lent(self: Loan, *reply: Any) -> Outputs:
        found = receive(self, *reply)
        seen.append(True)
        return found

    def plain(data: bytes) -> Outputs:
        seen.append(False)
        return decode(data)

    monkeypatch.setattr(Loan, "receive", lent)
    for module in (infer_plans, loan):
        monkeypatch.setattr(module, "decode_reply", plain)
    return seen
