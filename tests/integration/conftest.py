"""One server for the tests that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
