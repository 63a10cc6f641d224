from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.config.key import MAX_VALUE_LENGTH
from headrace.runtime.config.schema import (
    MAX_KEYS,
    ConfigSchema,
    Key,
)
from headrace.runtime.config.standard_keys import (
    CACHE_DIR,
    EXECUTION_TIMEOUT,
    INFERENCE_PRECISION_HINT,
    NUM_STREAMS,
    PERF_COUNT,
    PERFORMANCE_HINT,
    QUEUE_CAPACITY,
    STANDARD_KEYS,
)
from headrace.runtime.errors import InvalidArgument, NotFound
from tests.support.tables import schema_table

SCHEMA = ConfigSchema(*STANDARD_KEYS)
LIBRARIES = Key("LIBRARIES", str, "", "Files.", scope="server", paths=True)


def test_an_empty_configuration_has_every_default() -> None:
    config = SCHEMA.resolve()
    assert config[QUEUE_CAPACITY] == 1024
    assert config[EXECUTION_TIMEOUT] == 600.0
    assert config.explicit == frozenset()


def test_later_layers_win_over_earlier_ones_over_defaults() -> None:
    config = SCHEMA.resolve(
        {"NUM_STREAMS": "2", "PERF_COUNT": "YES"}, {"NUM_STREAMS": "3", "QUEUE_CAPACITY": "7"}
    )
    assert config[NUM_STREAMS] == 3
    assert config[PERF_COUNT] is True
    assert config.explicit == {"NUM_STREAMS", "PERF_COUNT", "QUEUE_CAPACITY"}
    assert config.explicit_strings() == {
        "NUM_STREAMS": "3",
        "PERF_COUNT": "YES",
        "QUEUE_CAPACITY": "7",
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("YES", True),
        ("yes", True),
        ("True", True),
        ("1", True),
        ("NO", False),
        ("no", False),
        ("false", False),
        ("0", False),
    ],
)
def test_booleans_are_yes_and_no_in_any_case(text: str, value: bool) -> None:
    assert PERF_COUNT.parse(text) is value


@pytest.mark.parametrize("text", ["AUTO", "auto", "0"])
def test_auto_and_zero_streams_are_the_same(text: str) -> None:
    assert SCHEMA.resolve({"NUM_STREAMS": text})[NUM_STREAMS] == 0
    assert SCHEMA.resolve({"NUM_STREAMS": text}).to_strings()["NUM_STREAMS"] == "AUTO"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("PERF_COUNT", "maybe"),
        ("PERF_COUNT", ""),
        ("NUM_STREAMS", "-1"),
        ("NUM_STREAMS", "1.5"),
        ("NUM_STREAMS", "1_0"),
        ("NUM_STREAMS", "٣"),
        ("NUM_STREAMS", "99999999999999999999"),
        ("QUEUE_CAPACITY", "0"),
        ("QUEUE_CAPACITY", "AUTO"),
        ("EXECUTION_TIMEOUT", "NaN"),
        ("EXECUTION_TIMEOUT", "inf"),
        ("EXECUTION_TIMEOUT", "-1"),
        ("EXECUTION_TIMEOUT", "1e999"),
        ("PERFORMANCE_HINT", "FAST"),
        ("INFERENCE_PRECISION_HINT", "int8"),
        ("CACHE_DIR", "../elsewhere"),
        ("CACHE_DIR", "a/b"),
        ("CACHE_DIR", ".."),
        ("CACHE_DIR", "a\0b"),
        ("DEVICE_ID", "0\n"),
    ],
)
def test_a_bad_value_is_refused_naming_the_key_and_what_is_allowed(key: str, text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        SCHEMA.resolve({key: text})
    assert caught.value.field == f"config['{key}']"
    assert SCHEMA.key(key).allowed in caught.value.message


def test_the_allowed_values_are_said_in_words() -> None:
    assert PERF_COUNT.allowed == "YES or NO"
    assert NUM_STREAMS.allowed == "an integer from 1 to 1024 or AUTO (0)"
    assert PERFORMANCE_HINT.allowed == "LATENCY, THROUGHPUT or empty"
    assert EXECUTION_TIMEOUT.allowed == "a finite number from 0 to 1000000 (seconds)"


def test_keys_of_the_whole_device_are_refused_for_one_network() -> None:
    with pytest.raises(InvalidArgument, match="SetConfig on CPU") as caught:
        SCHEMA.refuse_device_keys({"NUM_STREAMS": "1", "CPU_BIND_THREAD": "YES"}, "CPU")
    assert caught.value.field == "config['CPU_BIND_THREAD']"
    SCHEMA.refuse_device_keys({"NUM_STREAMS": "1", "NO_SUCH_KEY": "1"}, "CPU")


def test_keys_of_the_server_are_refused_wherever_a_client_gives_them() -> None:
    schema = ConfigSchema(*STANDARD_KEYS, LIBRARIES)
    for name in ("LIBRARIES", "ISOLATION"):
        for refuse in (schema.refuse_server_keys, schema.refuse_device_keys):
            with pytest.raises(InvalidArgument, match=r"\[plugins.CPU.config\]") as caught:
                refuse({"NUM_STREAMS": "2", name: ""}, "CPU")
            assert caught.value.field == f"config['{name}']"
        with pytest.raises(InvalidArgument, match="configuration file"):
            schema.resolve().changed({name: ""})


@pytest.mark.parametrize("text", ["ops.so", "/a/ops.so:", "/a/ops.so:b.so", ":"])
def test_paths_are_absolute(text: str) -> None:
    assert LIBRARIES.parse("/a/ops.so:/b/more.so") == "/a/ops.so:/b/more.so"
    with pytest.raises(InvalidArgument, match="absolute paths with ':'"):
        LIBRARIES.parse(text)


def test_clients_see_the_names_of_files_and_not_their_folders() -> None:
    schema = ConfigSchema(PERF_COUNT, LIBRARIES)
    config = schema.resolve({"LIBRARIES": "/a/ops.so:/b/more.so"})
    assert config[LIBRARIES] == "/a/ops.so:/b/more.so"
    assert config.get_parameter("LIBRARIES") == "ops.so:more.so"
    assert config.shown_strings() == {"PERF_COUNT": "NO", "LIBRARIES": "ops.so:more.so"}
    assert schema.resolve(config.explicit_strings()) == config
    assert schema.resolve().shown_strings()["LIBRARIES"] == ""


def test_choices_match_in_any_case_and_read_back_in_the_canonical_one() -> None:
    config = SCHEMA.resolve({"PERFORMANCE_HINT": "latency", "INFERENCE_PRECISION_HINT": "BF16"})
    assert config[PERFORMANCE_HINT] == "LATENCY"
    assert config[INFERENCE_PRECISION_HINT] == "bf16"
    assert SCHEMA.resolve({"PERFORMANCE_HINT": "UNDEFINED"})[PERFORMANCE_HINT] == ""


def test_an_unknown_key_says_what_was_meant() -> None:
    with pytest.raises(NotFound, match="did you mean 'NUM_STREAMS'") as caught:
        SCHEMA.resolve({"NUM_STREAM": "2"})
    assert caught.value.field == "config['NUM_STREAM']"


def test_a_query_passes_over_unknown_keys_but_not_bad_values() -> None:
    assert SCHEMA.resolve({"NO_SUCH": "2"}, ignore_unknown=True) == SCHEMA.resolve()
    with pytest.raises(InvalidArgument):
        SCHEMA.resolve({"PERF_COUNT": "2"}, ignore_unknown=True)


def test_an_overlong_value_or_name_is_refused_without_being_echoed() -> None:
    long = "x" * (MAX_VALUE_LENGTH + 1)
    with pytest.raises(InvalidArgument) as bad_value:
        SCHEMA.resolve({"DEVICE_ID": long})
    assert len(bad_value.value.message) < 300
    with pytest.raises(NotFound) as bad_name:
        SCHEMA.resolve({long: "1"})
    assert len(bad_name.value.message) < 300


def test_the_number_of_keys_is_bounded() -> None:
    with pytest.raises(InvalidArgument, match="configuration keys"):
        SCHEMA.resolve({f"K{k}": "1" for k in range(MAX_KEYS + 1)}, ignore_unknown=True)


def test_equal_values_make_equal_configurations_however_they_were_given() -> None:
    given_ = SCHEMA.resolve({"PERF_COUNT": "NO"})
    assert given_ == SCHEMA.resolve()
    assert hash(given_) == hash(SCHEMA.resolve())
    assert given_ != SCHEMA.resolve({"PERF_COUNT": "YES"})


def test_a_parameter_is_typed_and_an_unknown_one_is_not_found() -> None:
    config = SCHEMA.resolve({"NUM_STREAMS": "2"})
    assert config.get_parameter("NUM_STREAMS") == 2
    assert config.get_parameter("PERF_COUNT") is False
    with pytest.raises(NotFound) as caught:
        config.get_parameter("NUM_STREAM")
    assert caught.value.field == "name"


def test_a_key_that_the_device_does_not_know_has_its_default() -> None:
    assert ConfigSchema(PERF_COUNT).resolve().get(QUEUE_CAPACITY) == 1024
    assert SCHEMA.resolve({"QUEUE_CAPACITY": "7"}).get(QUEUE_CAPACITY) == 7


def test_a_loaded_network_changes_only_keys_that_are_mutable() -> None:
    config = SCHEMA.resolve({"NUM_STREAMS": "2"})
    changed = config.changed({"EXECUTION_TIMEOUT": "0.5"})
    assert changed[EXECUTION_TIMEOUT] == 0.5
    assert changed[NUM_STREAMS] == 2
    assert changed.explicit == {"NUM_STREAMS", "EXECUTION_TIMEOUT"}
    with pytest.raises(InvalidArgument, match="EXECUTION_TIMEOUT") as caught:
        config.changed({"NUM_STREAMS": "3"})
    assert caught.value.field == "config['NUM_STREAMS']"
    with pytest.raises(NotFound):
        config.changed({"NO_SUCH": "3"})


def test_a_device_may_redeclare_a_standard_key_with_another_default() -> None:
    schema = ConfigSchema(*STANDARD_KEYS, replace(PERF_COUNT, default=True))
    assert schema.resolve()[PERF_COUNT] is True
    assert schema.names == SCHEMA.names


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "lower", "kind": int, "default": 0},
        {"name": "A.B", "kind": int, "default": 0},
        {"name": "A", "kind": str, "default": "x", "check": str.isdigit},
    ],
)
def test_a_declaration_that_contradicts_itself_is_a_programming_error(
    arguments: dict[str, Any],
) -> None:
    with pytest.raises(ValueError, match=r"key's name|form"):
        Key(**arguments, description="")


def test_a_default_that_is_not_allowed_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        Key("A", int, 0, "", minimum=1)


def test_the_manual_names_every_key() -> None:
    table = schema_table(SCHEMA)
    assert len(table.splitlines()) == 2 + len(STANDARD_KEYS)
    for key in STANDARD_KEYS:
        assert f"| `{key.name}` |" in table
        assert key.description in table
    assert "| device |" in next(row for row in table.splitlines() if "QUEUE_CAPACITY" in row)
    assert "| configuration file |" in next(row for row in table.splitlines() if "ISOLATION" in row)
    assert "| device, load, loaded network |" in next(
        row for row in table.splitlines() if "EXECUTION_TIMEOUT" in row
    )


@given(st.floats(min_value=0, max_value=1e6))
def test_every_number_survives_formatting_and_parsing(value: float) -> None:
    assert EXECUTION_TIMEOUT.parse(EXECUTION_TIMEOUT.format(value)) == value


@given(st.sampled_from(STANDARD_KEYS), st.text(max_size=40))
def test_any_text_is_either_refused_or_canonicalised_once_and_for_all(
    key: Key[Any], text: str
) -> None:
    try:
        value = key.parse(text)
    except InvalidArgument:
        return
    assert isinstance(value, key.kind)
    assert not isinstance(value, float) or math.isfinite(value)
    canonical = key.format(value)
    assert key.parse(canonical) == value
    assert key.format(key.parse(canonical)) == canonical


@given(st.from_regex(r"\A[A-Za-z0-9._/\\-]{1,20}\Z"))
def test_a_cache_folder_never_leaves_the_cache_directory(text: str) -> None:
    try:
        value = CACHE_DIR.parse(text)
    except InvalidArgument:
        return
    assert not value.startswith(".")
    assert "/" not in value
    assert "\\" not in value
