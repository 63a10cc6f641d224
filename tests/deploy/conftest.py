"""The server of each overlay, for every test that asks for one."""

from __future__ import annotations

import pytest

from tests.deploy.rendering import SERVERS, Rendering, rendered


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Rendering:
    return rendered(SERVERS[request.param])
