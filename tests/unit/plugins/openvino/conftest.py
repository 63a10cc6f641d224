"""OPENVINO within this process, as a server makes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.plugins.openvino.compiler import Compiler
from headrace.plugins.openvino.plugin import OpenVinoPlugin
from headrace.plugins.openvino.running.shapes import ShapeTable
from headrace.plugins.openvino.start import start_openvino
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.plugin_source import installed_plugins
from headrace.testing.services import services


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    """One for all: finding the devices takes half a second."""
    return start_openvino()


@pytest.fixture
def plugin(compiler: Compiler) -> Iterator[Plugin]:
    with services([installed_plugins()["CPU"]]) as offered:
        plugin = OpenVinoPlugin("OPENVINO", offered, {}, lambda: compiler)
        yield plugin
        plugin.close()


@pytest.fixture
def openvino_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of such tiny networks say nothing."""
    tried = ShapeTable.tried

    def faster(table: Any, key: Any, compilation: Any, _: Any, *, equal: bool) -> str:
        return tried(table, key, compilation, (1.0, 2.0), equal=equal)

    monkeypatch.setattr(ShapeTable, "tried", faster)
