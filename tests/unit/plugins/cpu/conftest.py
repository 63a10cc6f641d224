from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.plugins import cpu
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.testing.services import services


@pytest.fixture
def offered() -> Iterator[Services]:
    with services() as offered:
        yield offered


@pytest.fixture
def plugin(offered: Services) -> Plugin:
    return cpu.create_plugin("CPU", offered, {})
