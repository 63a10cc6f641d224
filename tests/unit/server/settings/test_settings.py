"""Settings: precedence of their sources, kinds of value, plugin tables, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.plugins.provider.config import SCHEMA
from headrace.runtime.errors import InvalidArgument, NotFound
from headrace.server.plugins import plugin_sources
from headrace.server.settings.option import GIB, MIB
from headrace.server.settings.plugin_settings import PluginSettings
from headrace.server.settings.settings import Settings, options
from headrace.server.settings.sources import load_settings
from tests.support.tables import settings_table


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "headrace.toml"


def test_without_any_source_the_defaults_hold() -> None:
    settings = load_settings({}, {})
    assert settings == Settings()
    assert (settings.host, settings.port, settings.http_port) == ("127.0.0.1", 9000, 9001)
    assert settings.max_message_bytes == 64 * MIB


def test_the_command_line_wins_over_environment_over_file(toml: Path) -> None:
    toml.write_text("port = 1\nmax_networks = 1\ngrace_seconds = 1\n")
    environment = {"HEADRACE_PORT": "2", "HEADRACE_MAX_NETWORKS": "2"}
    settings = load_settings({"config": toml, "port": 3}, environment)
    assert (settings.port, settings.max_networks, settings.grace_seconds) == (3, 2, 1.0)


def test_an_argument_that_was_not_given_leaves_the_other_sources_alone() -> None:
    assert load_settings({"port": None}, {"HEADRACE_PORT": "2"}).port == 2


def test_the_environment_can_name_the_file(toml: Path) -> None:
    toml.write_text("port = 1\n")
    assert load_settings({}, {"HEADRACE_CONFIG": str(toml)}).port == 1


def test_an_empty_variable_counts_as_not_set() -> None:
    assert load_settings({}, {"HEADRACE_PORT": "", "HEADRACE_STATE_DIR": ""}) == Settings()


def test_http_is_served_beside_grpc_unless_told_otherwise() -> None:
    assert load_settings({"host": "0.0.0.0"}, {}).http_host == "0.0.0.0"
    given = {"host": "0.0.0.0", "http_host": "127.0.0.1"}
    assert load_settings(given, {}).http_host == "127.0.0.1"


def test_values_are_read_from_text() -> None:
    environment = {
        "HEADRACE_DEVICES": "CPU, TEMPLATE",
        "HEADRACE_MAX_MESSAGE_BYTES": "128 MiB",
        "HEADRACE_MODEL_REPOSITORY": "/models",
        "HEADRACE_GRACE_SECONDS": "2.5",
        "HEADRACE_LOG_FORMAT": "JSON",
    }
    settings = load_settings({}, environment)
    assert settings.devices == ("CPU", "TEMPLATE")
    assert settings.max_message_bytes == 128 * MIB
    assert settings.model_repository == Path("/models")
    assert settings.grace_seconds == 2.5
    assert settings.log_format == "json"


def test_values_are_read_from_toml(toml: Path) -> None:
    toml.write_text('devices = ["CPU"]\nmax_message_bytes = 4194304\nmax_model_bytes = "1 GiB"\n')
    settings = load_settings({"config": toml}, {})
    assert settings.devices == ("CPU",)
    assert (settings.max_message_bytes, settings.max_model_bytes) == (4 * MIB, GIB)


@given(st.integers(MIB, 1 << 50))
def test_a_size_reads_the_same_as_number_and_as_text(size: int) -> None:
    option = next(option for option in options() if option.flag == "--max-cache-bytes")
    assert option.read(size) == option.read(str(size)) == size
    assert option.read(f"{size}KiB") == size * 1024


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"port": "http"}, "port"),
        ({"port": 65536}, "port"),
        ({"port": -1}, "port"),
        ({"port": True}, "port"),
        ({"max_networks": 0}, "max_networks"),
        ({"grace_seconds": "nan"}, "grace_seconds"),
        ({"grace_seconds": -1}, "grace_seconds"),
        ({"grace_seconds": [1]}, "grace_seconds"),
        ({"max_message_bytes": "0"}, "max_message_bytes"),
        ({"max_message_bytes": 1}, "max_message_bytes"),
        ({"max_model_bytes": "1 KiB"}, "max_model_bytes"),
        ({"max_cache_bytes": 1}, "max_cache_bytes"),
        ({"max_message_bytes": "1 TB"}, "max_message_bytes"),
        ({"max_message_bytes": 1.5}, "max_message_bytes"),
        ({"log_level": "loud"}, "log_level"),
        ({"host": 1}, "host"),
        ({"host": ""}, "host"),
        ({"devices": 1}, "devices"),
        ({"devices": ["CPU", 1]}, "devices"),
        ({"isolate_devices": 1}, "isolate_devices"),
        ({"port": 5000, "http_port": 5000}, "http_port"),
        ({"max_uploads_bytes": 1}, "max_uploads_bytes"),
        ({"tls_cert": "a.crt"}, "tls_key"),
        ({"tls_key": "a.key"}, "tls_cert"),
        ({"tls_client_ca": "ca.crt"}, "tls_cert"),
        ({"unix_socket_only": True}, "unix_socket"),
        ({"front_end": "envoy"}, "front_end"),
        ({"unix_socket_mode": "0888"}, "unix_socket_mode"),
        ({"unix_socket_mode": "07777"}, "unix_socket_mode"),
        ({"unix_socket_mode": -1}, "unix_socket_mode"),
        ({"unix_socket_mode": True}, "unix_socket_mode"),
    ],
)
def test_a_wrong_value_is_refused_and_named(arguments: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidArgument, match=field) as caught:
        load_settings(arguments, {})
    assert caught.value.field == field


def test_permissions_are_octal_as_chmod_and_toml_write_them(toml: Path) -> None:
    assert load_settings({"unix_socket_mode": "660"}, {}).unix_socket_mode == 0o660
    toml.write_text("unix_socket_mode = 0o620")
    assert load_settings({"config": str(toml)}, {}).unix_socket_mode == 0o620


def test_the_ports_may_be_equal_where_grpc_has_none() -> None:
    same = {"port": 5000, "http_port": 5000}
    assert load_settings({**same, "unix_socket": "s", "unix_socket_only": True}, {}).port == 5000


def test_brackets_around_an_ipv6_address_are_its_writing() -> None:
    settings = load_settings({"host": "[::1]", "http_host": "[::]"}, {})
    assert (settings.host, settings.http_host) == ("::1", "::")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"model_repository": "s3://bucket/models"}, "cache_dir"),
        ({"model_repository": "s3://key:word@bucket/m", "cache_dir": "c"}, "model_repository"),
        ({"model_repository": "http://host/m?key=word", "cache_dir": "c"}, "model_repository"),
        ({"model_repository": "http://host/m#word", "cache_dir": "c"}, "model_repository"),
        (
            {"model_repository": "filecache::https://k:word@h/m", "cache_dir": "c"},
            "model_repository",
        ),
        ({"model_repository": "zip://m::https://k:word@h/m", "cache_dir": "c"}, "model_repository"),
        ({"model_repository": "http://[::1/m", "cache_dir": "c"}, "model_repository"),
        ({"model_repository": "http://h:99999/m", "cache_dir": "c"}, "model_repository"),
        (
            {"model_repository": "s3://b/m", "cache_dir": "c", "ovms_config": "s3://b/config.json"},
            "ovms_config",
        ),
        ({"model_repository": "models", "ovms_config": "s3://b/config.json"}, "ovms_config"),
        ({"evict_client_networks": True}, "memory_budget"),
    ],
)
def test_an_address_of_a_store_that_cannot_be_is_refused_and_not_shown(
    arguments: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        load_settings(arguments, {})
    assert caught.value.field == field
    assert "word@" not in str(caught.value)
    assert "=word" not in str(caught.value)


def test_a_model_repository_is_a_folder_or_an_address() -> None:
    def read(text: str) -> Path | str | None:
        given = {"model_repository": text, "cache_dir": "cache"}
        return load_settings(given, {}).model_repository

    assert read("s3://bucket/models/") == "s3://bucket/models"
    assert read("http://[::1]:8000/models") == "http://[::1]:8000/models"
    assert read("models/") == Path("models")


def test_both_ports_may_be_picked_freely() -> None:
    assert load_settings({"port": 0, "http_port": 0}, {}).http_port == 0


def test_the_message_says_what_is_expected_and_where_the_value_came_from() -> None:
    with pytest.raises(InvalidArgument) as caught:
        load_settings({}, {"HEADRACE_PORT": "http"})
    assert str(caught.value) == (
        "HEADRACE_PORT in the environment cannot be 'http'; allowed: an integer from 0 to 65535"
    )


def test_an_unknown_setting_in_the_file_is_refused_with_the_closest_name(toml: Path) -> None:
    toml.write_text("max_network = 3\n")
    with pytest.raises(NotFound, match="did you mean 'max_networks'"):
        load_settings({"config": toml}, {})


def test_an_unknown_variable_is_refused_with_the_closest_name() -> None:
    with pytest.raises(NotFound, match="did you mean 'HEADRACE_LOG_LEVEL'"):
        load_settings({}, {"HEADRACE_LOGLEVEL": "debug"})


def test_other_variables_and_the_clients_own_are_left_alone() -> None:
    assert load_settings({}, {"HEADRACE_SERVER": "far:9000", "PATH": "/bin"}) == Settings()


def test_variables_that_kubernetes_makes_for_a_service_are_explained() -> None:
    with pytest.raises(InvalidArgument, match="enableServiceLinks: false"):
        load_settings({}, {"HEADRACE_PORT": "tcp://10.0.0.1:9000"})


def test_the_file_cannot_name_another_file(toml: Path) -> None:
    toml.write_text('config = "other.toml"\n')
    with pytest.raises(NotFound, match="config"):
        load_settings({"config": toml}, {})


def test_a_file_that_is_missing_or_no_toml_is_refused(toml: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot read the configuration file"):
        load_settings({"config": toml}, {})
    toml.write_bytes(b"\xff port = ")
    with pytest.raises(InvalidArgument, match="is not UTF-8"):
        load_settings({"config": toml}, {})


def test_a_file_that_would_end_the_start_in_another_way_is_refused_with_its_name(
    toml: Path,
) -> None:
    for data in (b"a = " + b"[" * 10_000, b"port = " + b"1" * 5000, b"#" * (2**20 + 1)):
        toml.write_bytes(data)
        with pytest.raises(InvalidArgument, match=str(toml)):
            load_settings({"config": toml}, {})
    toml.unlink()
    os.mkfifo(toml)
    with pytest.raises(InvalidArgument, match="not a regular file"):
        load_settings({"config": toml}, {})


def test_plugin_tables_restrict_rename_and_configure(toml: Path) -> None:
    toml.write_text(
        """
        [plugins.TEMPLATE]
        enabled = false

        [plugins.SLOW]
        device = "CPU"
        config = { NUM_STREAMS = 1, PERF_COUNT = true }

        [plugins.MINE]
        factory = "my.devices:create_plugin"

        [plugins.WEBGPU]
        library = "onnxruntime_ep_webgpu"

        [plugins.NPU]
        library = "/opt/npu/libprovider.so"
        ep = "NpuExecutionProvider"
        """
    )
    assert load_settings({"config": toml}, {}).plugins == (
        PluginSettings("TEMPLATE", enabled=False),
        PluginSettings("SLOW", device="CPU", config={"NUM_STREAMS": "1", "PERF_COUNT": "YES"}),
        PluginSettings("MINE", factory="my.devices:create_plugin"),
        PluginSettings("WEBGPU", library="onnxruntime_ep_webgpu"),
        PluginSettings("NPU", library="/opt/npu/libprovider.so", ep="NpuExecutionProvider"),
    )


@pytest.mark.parametrize(
    ("library", "key"),
    [("onnxruntime_ep_webgpu", "PROVIDER_PACKAGE"), ("/opt/lib.so", "PROVIDER_LIBRARY")],
)
def test_a_library_makes_a_device_that_the_operator_expects_to_start(
    library: str, key: str
) -> None:
    table = PluginSettings("WEBGPU", library=library, ep="A", config={"NUM_STREAMS": "2"})
    (source,) = (
        each for each in plugin_sources(Settings(plugins=(table,))) if each.device == "WEBGPU"
    )
    assert source.config == {key: library, "EXECUTION_PROVIDER": "A", "NUM_STREAMS": "2"}
    assert source.config.keys() <= {key.name for key in SCHEMA}
    assert source.named


@pytest.mark.parametrize(
    "table",
    [
        PluginSettings("CPUU", enabled=False),
        PluginSettings("CPUU", config={"NUM_STREAMS": "2"}),
        PluginSettings("MINE", device="CPUU"),
    ],
)
def test_a_table_for_a_device_that_is_not_there_is_a_mistake(table: PluginSettings) -> None:
    with pytest.raises(NotFound, match="unknown plugin 'CPUU'; did you mean 'CPU'") as caught:
        plugin_sources(Settings(plugins=(table,)))
    assert caught.value.field == f"plugins.{table.name}"


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ("[plugins.cpu]\nenabled = true\n", "plugins.cpu"),
        ("[plugins.CPU]\nenable = true\n", "did you mean 'enabled'"),
        ('[plugins.CPU]\nenabled = "no"\n', "plugins.CPU.enabled"),
        ('[plugins.CPU]\nfactory = "no colon"\n', "plugins.CPU.factory"),
        ("[plugins.CPU]\ndevice = 3\n", "plugins.CPU.device"),
        ('[plugins.CPU]\nconfig = "x"\n', "plugins.CPU.config"),
        ("[plugins.CPU]\nconfig = { A = [1] }\n", "plugins.CPU.config.A"),
        ('[plugins.A]\ndevice = "CPU"\nfactory = "a:b"\n', "not both"),
        ('[plugins.A]\ndevice = "CPU"\nlibrary = "a"\n', "give device or library, not both"),
        ('[plugins.A]\nlibrary = "relative/lib.so"\n', "plugins.A.library"),
        ('[plugins.A]\nlibrary = "../lib.so"\n', "plugins.A.library"),
        ("[plugins.A]\nlibrary = 1\n", "plugins.A.library"),
        ('[plugins.A]\nlibrary = "a"\nep = 1\n', "plugins.A.ep"),
        ('[plugins.A]\nep = "a"\n', "give library, too"),
        ("[plugins]\nCPU = 1\n", "plugins.CPU"),
        ("plugins = 1\n", "plugins"),
    ],
)
def test_a_wrong_plugin_table_is_refused_and_named(toml: Path, table: str, named: str) -> None:
    toml.write_text(table)
    with pytest.raises((InvalidArgument, NotFound), match=named):
        load_settings({"config": toml}, {})


def test_every_option_is_in_the_table_with_flag_and_default() -> None:
    table = settings_table()
    for each in options():
        assert f"| `{each.flag}` | {each.shown_default} |" in table
    assert "| `--max-message-bytes` | 64 MiB |" in table
    assert "| `--grace-seconds` | 30 |" in table


def test_the_environment_has_one_variable_for_each_option() -> None:
    variables = {each.flag: each.variable for each in options()}
    assert variables["--max-networks"] == "HEADRACE_MAX_NETWORKS"
    assert len(set(variables.values())) == len(variables)


def test_typed_values_are_read_as_their_text_is() -> None:
    for option in options():
        if option.default is not None:
            assert option.read(option.default) == option.default
            assert option.parse(option.shown_default) == option.default


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"operators": "token:ops"}, "operators"),
        ({"max_networks_per_client": "1"}, "max_networks_per_client"),
        ({"max_model_bytes_per_client": "1"}, "max_model_bytes_per_client"),
        ({"private_networks": True}, "private_networks"),
    ],
)
def test_what_belongs_to_private_networks_needs_them_and_they_need_identities(
    given: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidArgument, match=field) as refused:
        load_settings(given, {})
    assert refused.value.field == field
    load_settings({**given, "private_networks": True, "tokens": "tokens.toml"}, {})
