"""A front end gets the settings and the table of methods as the engine has them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headrace.server.processes.orders import Orders
from headrace.server.processes.relay import Row
from headrace.server.settings.plugin_settings import PluginSettings
from headrace.server.settings.settings import Settings


def test_orders_come_out_as_they_went_in_but_without_devices() -> None:
    settings = Settings(
        port=1234,
        tls_cert=Path("/c/server.crt"),
        tokens=Path("relative/tokens.toml"),
        operators=("token:a", "token:b"),
        jwt_audience="us",
        processes=2,
        plugins=(PluginSettings("X", config={"SECRET": "1"}),),
    )
    rows = [Row("/s/A", streams=True, reads_one=False), Row("/s/B", streams=False, reads_one=True)]
    data = Orders(settings, rows).to_json()
    assert b"SECRET" not in data
    assert Orders.from_json(data) == Orders(replace(settings, plugins=()), rows)
