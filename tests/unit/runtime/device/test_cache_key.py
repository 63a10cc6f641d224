"""What a compiled network depends on, and what it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir
import pytest

from headrace.runtime.cache.entry import CacheKey
from headrace.runtime.device import cache_key as network_cache_key
from headrace.runtime.device.cache_key import cache_key, processor_features
from headrace.runtime.network.extension import read_functions
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import InputOptions, NetworkOptions, OutputOptions
from headrace.testing import networks
from headrace.testing.case import parse
from headrace.testing.services import services
from tests.support.exporting_device import ExportingPlugin

_TWICE = "m (float[2] x) => (float[2] y) { y = headrace.test.twice(x) }"
_FUNCTION = '<domain: "headrace.test", opset_import: ["": 21]> twice (x) => (y) { y = Add(x, x) }'


@pytest.fixture
def plugin() -> Iterator[ExportingPlugin]:
    with services() as offered:
        yield ExportingPlugin("STORED", offered, {"NUM_STREAMS": "2"})


@pytest.fixture
def network() -> Network:
    return networks.add().network


def key_of(
    plugin: ExportingPlugin,
    network: Network,
    config: dict[str, str] | None = None,
    options: NetworkOptions = NetworkOptions(),  # noqa: B008 - frozen
    functions: list[ir.Function] | None = None,
) -> CacheKey:
    effective = plugin.schema.resolve(plugin.settings(), config or {})
    return cache_key(plugin, network, effective, options, functions or [])


def test_the_same_load_has_the_same_key(plugin: ExportingPlugin, network: Network) -> None:
    key = key_of(plugin, network)
    assert key == key_of(plugin, networks.add().network)
    assert len(key.name) == 64


def test_another_plugin_of_the_same_device_has_the_same_key(
    plugin: ExportingPlugin, network: Network
) -> None:
    with services() as offered:
        other = ExportingPlugin("STORED", offered, {"NUM_STREAMS": "2"})
        assert key_of(plugin, network) == key_of(other, network)


def test_another_network_has_another_key(plugin: ExportingPlugin, network: Network) -> None:
    assert key_of(plugin, network) != key_of(plugin, networks.mlp().network)


@pytest.mark.parametrize(
    "config",
    [
        {"DEVICE_ID": "1"},
        {"NUM_STREAMS": "1"},
        {"INFERENCE_NUM_THREADS": "3"},
        {"INFERENCE_PRECISION_HINT": "f32"},
        {"PERFORMANCE_HINT": "LATENCY"},
        {"DISABLE_TRANSFORMATIONS": "YES"},
        {"PERF_COUNT": "YES"},
    ],
)
def test_configuration_that_may_change_what_is_compiled_changes_the_key(
    plugin: ExportingPlugin, network: Network, config: dict[str, str]
) -> None:
    assert key_of(plugin, network) != key_of(plugin, network, config)


@pytest.mark.parametrize(
    "config",
    [
        {"CACHE_DIR": "team-a"},
        {"EXECUTION_TIMEOUT": "3"},
        {"EXCLUSIVE_ASYNC_REQUESTS": "YES"},
        {"DEVICE_ID": "0"},  # which it would be anyway
        {"NUM_STREAMS": "2"},
    ],
)
def test_configuration_that_changes_nothing_of_it_leaves_the_key(
    plugin: ExportingPlugin, network: Network, config: dict[str, str]
) -> None:
    assert key_of(plugin, network) == key_of(plugin, network, config)


@pytest.mark.parametrize(
    "options",
    [
        NetworkOptions(inputs={"x": InputOptions(dtype=ir.DataType.UINT8)}),
        NetworkOptions(inputs={"x": InputOptions(mean=(1.0,))}),
        NetworkOptions(outputs={"z": OutputOptions(dtype=ir.DataType.FLOAT16)}),
    ],
)
def test_preprocessing_and_types_change_the_key(
    plugin: ExportingPlugin, network: Network, options: NetworkOptions
) -> None:
    assert key_of(plugin, network) != key_of(plugin, network, options=options)


def test_affinities_do_not_for_they_are_for_a_device_that_splits(
    plugin: ExportingPlugin, network: Network
) -> None:
    options = NetworkOptions(affinities={"sum": "CPU"})
    assert key_of(plugin, network) == key_of(plugin, network, options=options)


def test_extensions_change_the_key_by_what_they_compute(
    plugin: ExportingPlugin, network: Network
) -> None:
    def functions(body: str) -> list[ir.Function]:
        return read_functions(parse(_TWICE + body).SerializeToString())

    twice, thrice = functions(_FUNCTION), functions(_FUNCTION.replace("Add(x, x)", "Mul(x, x)"))
    keys = {key_of(plugin, network, functions=each) for each in ([], twice, thrice)}
    assert len(keys) == 3
    assert key_of(plugin, network, functions=functions(_FUNCTION)) in keys


@pytest.mark.parametrize(
    "change",
    [
        lambda plugin: setattr(plugin, "backend_version", "2"),
        lambda plugin: setattr(plugin, "native_version", 2),
        lambda plugin: setattr(plugin, "architecture", "other"),
        lambda plugin: setattr(plugin, "full_name", "another processor"),
        lambda plugin: setattr(plugin, "capabilities", ("FP32", "BF16")),
        lambda plugin: setattr(plugin, "name", "OTHER"),
    ],
)
def test_whatever_the_device_is_changes_the_key(
    plugin: ExportingPlugin, network: Network, change: Callable[[ExportingPlugin], None]
) -> None:
    before = key_of(plugin, network)
    change(plugin)
    assert key_of(plugin, network) != before


@pytest.mark.parametrize(
    ("what", "answer"),
    [("usable_processors", 77), ("processor_features", "sse2 only")],
)
def test_the_processors_change_the_key(
    plugin: ExportingPlugin,
    network: Network,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    answer: object,
) -> None:
    before = key_of(plugin, network)
    monkeypatch.setattr(network_cache_key, what, lambda: answer)
    assert key_of(plugin, network) != before


def test_another_version_of_the_server_has_another_key(
    plugin: ExportingPlugin, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key_of(plugin, network)
    monkeypatch.setattr("headrace.runtime.device.cache_key.headrace_version", lambda: "99.0")
    assert key_of(plugin, network) != before


def test_the_features_of_a_processor_are_known_in_any_order(tmp_path: Path) -> None:
    def features(text: str) -> str:
        path = tmp_path / "cpuinfo"
        path.write_text(text)
        return processor_features.__wrapped__(path)

    one = features("processor : 0\nflags\t\t: sse2 avx2\n\nprocessor : 1\nflags\t\t: sse2 avx2\n")
    assert one
    assert one == features("flags : avx2 sse2\n")
    assert one != features("flags : avx2 sse2 avx512f\n")
    assert features("Features : asimd\n")
    assert features("nothing of the kind\n") == ""
    assert processor_features(tmp_path / "missing") == ""


def test_a_key_is_named_after_all_that_it_holds() -> None:
    key = CacheKey("{}")
    assert key.name != replace(key, text='{"a":1}').name
