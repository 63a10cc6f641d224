"""OPENVINO within this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.plugins.openvino.compiler import Compiler
from headrace.plugins.openvino.plugin import OpenVinoPlugin
from headrace.plugins.openvino.session.session import Runtime
from headrace.runtime.device.plugin import Plugin
from headrace.testing.services import services


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return Runtime()


@pytest.fixture
def plugin(runtime: Runtime) -> Iterator[Plugin]:
    with services() as offered:
        yield OpenVinoPlugin("OPENVINO", offered, {"NUM_STREAMS": "2"}, lambda: Compiler(runtime))
