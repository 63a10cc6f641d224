"""OPENVINO within this process, as a server makes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from headrace.plugins.openvino.backend.compiler import Compiler
from headrace.plugins.openvino.compiling import CompilingPlugin
from headrace.plugins.openvino.plugin import OpenVinoPlugin
from headrace.plugins.openvino.running.shapes import ShapeTable
from headrace.plugins.openvino.start import start_openvino
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.plugin_source import PluginSource, installed_plugins
from headrace.runtime.device.services import Services
from headrace.testing.services import services


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    """One for all: finding the devices takes half a second."""
    return start_openvino()


@pytest.fixture
def plugin(compiler: Compiler) -> Iterator[Plugin]:
    @plugin_api(1)
    def create(name: str, offered: Services, config: Mapping[str, str]) -> Plugin:
        compiling = CompilingPlugin(name, offered, config, lambda: compiler)
        return OpenVinoPlugin(name, offered, config, compiling)

    sources = [installed_plugins()[each] for each in ("CPU", "HETERO", "BATCH")]
    with services([*sources, PluginSource("OPENVINO", lambda: create)]) as offered:
        yield offered.devices.plugin("OPENVINO")


@pytest.fixture
def openvino_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of such tiny networks say nothing."""
    tried = ShapeTable.tried

    def faster(table: Any, key: Any, compilation: Any, _: Any, *, equal: bool) -> str:
        return tried(table, key, compilation, (1.0, 2.0), equal=equal)

    monkeypatch.setattr(ShapeTable, "tried", faster)
