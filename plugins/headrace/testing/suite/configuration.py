"""Configuration: every key is declared and checked. The load's value overrides the device's, which
overrides the default."""

from __future__ import annotations

import pytest

from headrace.runtime.config.standard_keys import EXECUTION_TIMEOUT, STANDARD_KEYS
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import InvalidArgument, NotFound
from headrace.testing import networks
from headrace.testing.suite.fixtures import DeviceFixtures, Loader


class ConfigurationConformance(DeviceFixtures):
    def test_every_supported_key_can_be_read(self, plugin: Plugin) -> None:
        keys = plugin.get_metric("SUPPORTED_CONFIG_KEYS")
        assert isinstance(keys, list)
        for key in keys:
            assert isinstance(plugin.get_config(key), str | int | float | bool)

    def test_the_standard_keys_are_supported(self, plugin: Plugin) -> None:
        keys = plugin.get_metric("SUPPORTED_CONFIG_KEYS")
        assert isinstance(keys, list)
        assert {key.name for key in STANDARD_KEYS} <= set(keys)

    def test_a_key_that_was_set_reads_back(self, plugin: Plugin) -> None:
        plugin.set_config({"EXECUTION_TIMEOUT": "25"})
        assert plugin.get_config("EXECUTION_TIMEOUT") == 25.0

    def test_an_unknown_key_is_refused_and_the_nearest_named(self, plugin: Plugin) -> None:
        with pytest.raises(NotFound, match="did you mean 'PERF_COUNT'"):
            plugin.set_config({"PERF_COUNTS": "YES"})
        with pytest.raises(NotFound, match="did you mean 'PERF_COUNT'"):
            plugin.get_config("PERF_COUNTS")

    def test_an_unknown_key_is_refused_at_load(self, plugin: Plugin) -> None:
        with pytest.raises(NotFound, match="NUM_STREAM_") as caught:
            plugin.load_network(Load(networks.add().network, {"NUM_STREAM_": "1"}))
        assert caught.value.field == "config['NUM_STREAM_']"

    def test_a_key_of_the_whole_device_is_refused_at_load(self, plugin: Plugin) -> None:
        for key in plugin.schema:
            if key.scope == "device":
                with pytest.raises(InvalidArgument, match=f"{key.name}.*SetConfig") as caught:
                    plugin.load_network(Load(networks.add().network, {key.name: "1"}))
                assert caught.value.field == f"config['{key.name}']"

    def test_a_key_of_the_server_is_nobody_elses_to_set(self, plugin: Plugin) -> None:
        network = networks.add().network
        for key in plugin.schema:
            if key.scope == "server":
                changes = {key.name: key.format(key.default)}
                for refuse in (
                    lambda config: plugin.set_config(config),
                    lambda config: plugin.load_network(Load(network, config)),
                    lambda config: plugin.load_network(Load(network, config, native=b"bytes")),
                    lambda config: plugin.query_network(network, config),
                ):
                    with pytest.raises(InvalidArgument, match="configuration file") as caught:
                        refuse(changes)
                    assert caught.value.field == f"config['{key.name}']"

    def test_a_query_passes_over_keys_of_the_whole_device(self, plugin: Plugin) -> None:
        network = networks.add().network
        asked = plugin.query_network(network, {"QUEUE_CAPACITY": "7"})
        assert asked == plugin.query_network(network, {})

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("PERF_COUNT", "maybe"),
            ("NUM_STREAMS", "-1"),
            ("NUM_STREAMS", "many"),
            ("EXECUTION_TIMEOUT", "nan"),
            ("EXECUTION_TIMEOUT", "-1"),
            ("PERFORMANCE_HINT", "SPEED"),
            ("CACHE_DIR", "../elsewhere"),
        ],
    )
    def test_a_bad_value_is_refused_and_changes_nothing(
        self, plugin: Plugin, key: str, value: str
    ) -> None:
        before = plugin.get_config(key), plugin.get_config("QUEUE_CAPACITY")
        with pytest.raises(InvalidArgument, match=key) as caught:
            plugin.set_config({"QUEUE_CAPACITY": "7", key: value})
        assert caught.value.field == f"config['{key}']"
        assert (plugin.get_config(key), plugin.get_config("QUEUE_CAPACITY")) == before

    def test_a_bad_value_is_refused_at_load(self, plugin: Plugin) -> None:
        with pytest.raises(InvalidArgument, match="PERF_COUNT"):
            plugin.load_network(Load(networks.add().network, {"PERF_COUNT": "maybe"}))

    def test_the_load_wins_over_the_device_over_the_default(
        self, plugin: Plugin, load: Loader
    ) -> None:
        default = load(networks.add())
        plugin.set_config({"EXECUTION_TIMEOUT": "50"})
        as_set = load(networks.add())
        at_load = load(networks.add(), {"EXECUTION_TIMEOUT": "7"})
        timeouts = [network.config[EXECUTION_TIMEOUT] for network in (default, as_set, at_load)]
        assert timeouts == [EXECUTION_TIMEOUT.default, 50.0, 7.0]
        assert plugin.get_config("EXECUTION_TIMEOUT") == 50.0

    def test_a_loaded_network_takes_only_the_keys_that_may_change(
        self, add: ExecutableNetwork
    ) -> None:
        add.set_config({"EXECUTION_TIMEOUT": "3"})
        assert add.config[EXECUTION_TIMEOUT] == 3.0
        with pytest.raises(InvalidArgument, match="load the network again"):
            add.set_config({"PERF_COUNT": "YES"})
        with pytest.raises(InvalidArgument, match="SetConfig on the device"):
            add.set_config({"QUEUE_CAPACITY": "7"})

    def test_the_device_id_is_one_of_those_available(self, plugin: Plugin, load: Loader) -> None:
        with pytest.raises(NotFound, match="DEVICE_ID"):
            plugin.set_config({"DEVICE_ID": "no-such-id"})
        with pytest.raises(NotFound, match="DEVICE_ID"):
            plugin.load_network(Load(networks.add().network, {"DEVICE_ID": "no-such-id"}))
        for device_id in plugin.device_ids():
            load(networks.add(), {"DEVICE_ID": device_id})

    def test_reading_a_key_takes_a_device_id_and_no_other_option(self, plugin: Plugin) -> None:
        for device_id in plugin.device_ids():
            plugin.get_config("PERF_COUNT", {"DEVICE_ID": device_id})
        with pytest.raises(NotFound, match="DEVICE_ID"):
            plugin.get_config("PERF_COUNT", {"DEVICE_ID": "no-such-id"})
        with pytest.raises(NotFound, match="option"):
            plugin.get_config("PERF_COUNT", {"DEVICE": "0"})
