"""What a worker says of its device comes out as it went in."""

from __future__ import annotations

import json
from typing import Any

import onnx_ir as ir
import pytest

from headrace.plugins.cpu.config import SCHEMA
from headrace.runtime.config.key import Key
from headrace.runtime.config.schema import ConfigSchema, Range
from headrace.runtime.errors import InvalidArgument, UnsupportedLayer
from headrace.runtime.execution.job import LayerProfile
from headrace.runtime.isolation.wire import descriptions as d
from headrace.runtime.network.network import (
    Layer,
    Port,
    layer_from_json,
    layer_to_json,
    port_from_json,
    port_to_json,
)
from headrace.runtime.transform.query import QueryResult, Subgraph
from tests.support.tables import schema_table


def by_wire(facts: Any) -> Any:
    return json.loads(json.dumps(facts))


def test_a_schema_keeps_names_defaults_bounds_and_words() -> None:
    received = d.schema_from_json(by_wire(d.schema_to_json(SCHEMA)))
    assert received.names == SCHEMA.names
    assert schema_table(received) == schema_table(SCHEMA)
    for key in SCHEMA:
        other = received.key(key.name)
        assert (other.kind, other.default, other.mutable) == (key.kind, key.default, key.mutable)
        assert other.check is key.check


def test_a_received_schema_refuses_what_the_original_does() -> None:
    received = d.schema_from_json(by_wire(d.schema_to_json(SCHEMA)))
    for changes in ({"CACHE_DIR": "../up"}, {"NUM_STREAMS": "-1"}, {"PERF_COUNT": "maybe"}):
        with pytest.raises(InvalidArgument):
            received.resolve(changes)


def test_the_check_of_a_devices_own_key_stays_with_the_worker() -> None:
    own = Key("OWN", str, "a", "It begins with a.", check=lambda text: text[:1] == "a", form="a…")
    received = d.schema_from_json(by_wire(d.schema_to_json(ConfigSchema(own))))
    assert received.resolve({"OWN": "b"}).to_strings() == {"OWN": "b"}


def test_a_key_of_the_server_stays_one_and_keeps_its_folders_to_itself() -> None:
    own = Key("FILES", str, "", "Files.", scope="server", paths=True, max_length=9000)
    received = d.schema_from_json(by_wire(d.schema_to_json(ConfigSchema(own))))
    assert received.key("FILES") == own


@pytest.mark.parametrize("value", ["text", 3, 2.5, True, ["a", "b"], Range(1, 8, 2)])
def test_a_parameter_keeps_its_type(value: Any) -> None:
    received = d.parameter_from_json(by_wire(d.parameter_to_json(value)))
    assert received == value
    assert type(received) is type(value)


@pytest.mark.parametrize(
    "port",
    [
        Port("x", ir.DataType.FLOAT, (1, "n", None), layout="NCHW"),
        Port("y", ir.DataType.STRING, None, "sequence", True),
    ],
)
def test_a_port_stays_the_same(port: Port) -> None:
    assert port_from_json(by_wire(port_to_json(port))) == port


def test_layers_and_profiles_stay_the_same() -> None:
    layer = Layer("a", "Add", "", "CPU.0", ("x", "y"), ("z",), ("first", "second"))
    assert layer_from_json(by_wire(layer_to_json(layer))) == layer
    profile = LayerProfile("a", "Add", "CPU.0", "jit", 1e-5, ("first",), 2)
    assert d.profile_from_json(by_wire(d.profile_to_json(profile))) == profile


def test_a_query_stays_the_same() -> None:
    result = QueryResult(
        {"a": "CPU"},
        [UnsupportedLayer("b", "Strange", "no such operator", "CPU")],
        [Subgraph("CPU", ("a",))],
        {"x": "CPU"},
    )
    assert d.query_from_json(by_wire(d.query_to_json(result))) == result
