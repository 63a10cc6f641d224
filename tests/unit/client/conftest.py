"""A server that answers as each test wants, and clients of every kind to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.client_fake import KINDS, Fake, connected, running


@pytest.fixture
def fake() -> Iterator[Fake]:
    with running() as server:
        yield server


@pytest.fixture(params=KINDS)
def client(request: pytest.FixtureRequest, fake: Fake) -> Iterator[Any]:
    with connected(request.param, fake.target) as made:
        yield made
