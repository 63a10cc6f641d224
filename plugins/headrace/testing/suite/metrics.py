"""Metrics: the standard ones with their types, and whatever the device adds."""

from __future__ import annotations

import pytest

from headrace.runtime.config.key import Range
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import NotFound
from headrace.testing.suite.fixtures import DeviceFixtures

_DEVICE_METRICS = {
    "AVAILABLE_DEVICES": list,
    "FULL_DEVICE_NAME": str,
    "SUPPORTED_METRICS": list,
    "SUPPORTED_CONFIG_KEYS": list,
    "OPTIMIZATION_CAPABILITIES": list,
    "RANGE_FOR_ASYNC_INFER_REQUESTS": Range,
    "RANGE_FOR_STREAMS": Range,
    "IMPORT_EXPORT_SUPPORT": bool,
    "DEVICE_ARCHITECTURE": str,
    "NUMBER_OF_WAITING_INFER_REQUESTS": int,
    "NUMBER_OF_EXEC_INFER_REQUESTS": int,
}
_NETWORK_METRICS = {
    "SUPPORTED_METRICS": list,
    "SUPPORTED_CONFIG_KEYS": list,
    "NETWORK_NAME": str,
    "OPTIMAL_NUMBER_OF_INFER_REQUESTS": int,
    "EXECUTION_DEVICES": list,
    "LOADED_FROM_CACHE": bool,
    "NOTES": list,
}


class MetricConformance(DeviceFixtures):
    @pytest.mark.parametrize("name", _DEVICE_METRICS)
    def test_a_standard_metric_is_there_with_its_type(self, plugin: Plugin, name: str) -> None:
        value = plugin.get_metric(name)
        assert type(value) is _DEVICE_METRICS[name]
        if isinstance(value, list):
            assert all(isinstance(item, str) for item in value)

    def test_every_metric_that_the_device_lists_can_be_read(self, plugin: Plugin) -> None:
        names = plugin.get_metric("SUPPORTED_METRICS")
        assert isinstance(names, list)
        assert set(_DEVICE_METRICS) <= set(names)
        for name in names:
            assert isinstance(plugin.get_metric(name), str | int | float | bool | list | Range)

    def test_an_unknown_metric_is_refused_and_the_nearest_named(self, plugin: Plugin) -> None:
        with pytest.raises(NotFound, match="did you mean 'FULL_DEVICE_NAME'"):
            plugin.get_metric("FULL_DEVICE_NAMES")

    def test_a_metric_takes_a_device_id_and_no_other_option(self, plugin: Plugin) -> None:
        for device_id in plugin.device_ids():
            for name in _DEVICE_METRICS:
                plugin.get_metric(name, {"DEVICE_ID": device_id})
        with pytest.raises(NotFound, match="DEVICE_ID"):
            plugin.get_metric("FULL_DEVICE_NAME", {"DEVICE_ID": "no-such-id"})
        with pytest.raises(NotFound, match="option"):
            plugin.get_metric("FULL_DEVICE_NAME", {"DEVICE": "0"})

    def test_the_device_has_an_id_and_a_full_name(self, plugin: Plugin) -> None:
        assert plugin.get_metric("AVAILABLE_DEVICES")
        assert plugin.get_metric("FULL_DEVICE_NAME")

    @pytest.mark.parametrize("name", ["RANGE_FOR_ASYNC_INFER_REQUESTS", "RANGE_FOR_STREAMS"])
    def test_a_range_is_in_order(self, plugin: Plugin, name: str) -> None:
        value = plugin.get_metric(name)
        assert isinstance(value, Range)
        assert 1 <= value.minimum <= value.maximum
        assert value.step >= 1

    def test_an_idle_device_has_no_requests(self, plugin: Plugin) -> None:
        assert plugin.get_metric("NUMBER_OF_WAITING_INFER_REQUESTS") == 0
        assert plugin.get_metric("NUMBER_OF_EXEC_INFER_REQUESTS") == 0

    def test_a_network_has_the_standard_metrics_with_their_types(
        self, add: ExecutableNetwork
    ) -> None:
        for name, kind in _NETWORK_METRICS.items():
            assert type(add.get_metric(name)) is kind, name
        listed = add.get_metric("SUPPORTED_METRICS")
        assert isinstance(listed, list)
        assert set(_NETWORK_METRICS) <= set(listed)
        for name in listed:
            add.get_metric(name)

    def test_an_unknown_metric_of_a_network_is_refused(self, add: ExecutableNetwork) -> None:
        with pytest.raises(NotFound, match="did you mean 'NETWORK_NAME'"):
            add.get_metric("NETWORK_NAMES")

    def test_a_network_says_where_it_runs_and_how_many_requests_fill_it(
        self, add: ExecutableNetwork
    ) -> None:
        assert add.get_metric("EXECUTION_DEVICES")
        optimal = add.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
        assert isinstance(optimal, int)
        assert optimal >= 1
