"""OPENVINO within this process, as a server makes it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.plugins.openvino.compiler import Compiler
from headrace.plugins.openvino.plugin import OpenVinoPlugin
from headrace.plugins.openvino.start import start_openvino
from headrace.runtime.device.plugin import Plugin
from headrace.testing.services import services


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    """One for all: finding the devices takes half a second."""
    return start_openvino()


@pytest.fixture
def plugin(compiler: Compiler) -> Iterator[Plugin]:
    with services() as offered:
        yield OpenVinoPlugin("OPENVINO", offered, {}, lambda: compiler)
