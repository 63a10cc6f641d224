"""A network on HETERO that comes from the cache is the same, and is not read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.plugins import cpu
from headrace.plugins.hetero.plugin import HeteroPlugin
from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.cache.weights import WeightFiles
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.errors import EndedWorker
from headrace.runtime.network.extension import read_functions
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import InputOptions, NetworkOptions
from headrace.testing.case import network_of, parse
from headrace.testing.infer_request import InferRequest
from headrace.testing.services import services

_TEXT = """t (float[N,64] x) => (float[N,64] y) {
    a = MatMul(x, v)
    b = Relu(a)
    y = MatMul(b, w)
}"""
_AFFINITIES = {"a": "CPU", "b": "OTHER", "y": "CPU"}
_HALVED = {"x": InputOptions(scale=(2.0,))}
_X = {"x": np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)}


def network(text: str = _TEXT) -> Network:
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal((64, 64)).astype(np.float32) for name in "vw"}
    return network_of(text, weights)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., HeteroPlugin]]:
    """Starts HETERO over two devices with the cache, as another server on the same folder does."""
    with ExitStack() as running:

        def start() -> HeteroPlugin:
            key, root = b"k" * 32, tmp_path / "cache"
            cache = NetworkCache(root, key, 2**30)
            weights = WeightFiles(root, WeightFiles.derived_key(key), 2**30)
            sources = [PluginSource(each, lambda: cpu.create_plugin) for each in ("CPU", "OTHER")]
            offered = running.enter_context(services(sources, cache, weights))
            return HeteroPlugin("HETERO", offered, {})

        yield start


def loaded(
    plugin: HeteroPlugin,
    config: Mapping[str, str] = {},
    text: str = _TEXT,
    given: Network | None = None,
    **options: Any,
) -> Any:
    members = DeviceName.parse("HETERO:CPU,OTHER").members
    asked = NetworkOptions(**{"members": members, "affinities": _AFFINITIES, **options})
    return plugin.load_network(Load(given or network(text), config, asked))


def test_it_says_and_answers_what_the_first_one_does_without_being_read(
    server: Callable[..., HeteroPlugin],
) -> None:
    first, second = (loaded(server(), inputs=_HALVED) for _ in range(2))
    assert (first.loaded_from_cache, second.loaded_from_cache) == (False, True)
    assert [each.executable.loaded_from_cache for each in second._subgraphs] == [True] * 3
    for each in ("inputs", "outputs", "defaults", "notes", "maps_weights"):
        assert getattr(second, each) == getattr(first, each)
    assert second.subgraphs() == first.subgraphs()
    assert second.layers() == first.layers()
    wanted, found = (InferRequest(each).infer(_X)["y"] for each in (first, second))
    np.testing.assert_array_equal(found, wanted)
    assert not second.network.is_read
    assert not any(each.executable.network.is_read for each in second._subgraphs)
    assert second.export() == first.export()


def test_without_a_cache_no_digest_is_taken(server: Callable[..., HeteroPlugin]) -> None:
    given = network()
    loaded(server(), {"CACHE_DIR": ""}, given=given)
    assert not given.known_digest


def test_its_graph_is_cut_when_a_request_is_profiled(server: Callable[..., HeteroPlugin]) -> None:
    names = []
    for each in [loaded(server(), {"PERF_COUNT": "YES"}) for _ in range(2)]:
        request = InferRequest(each)
        request.infer(_X)
        names.append([(layer.subgraph, layer.origins) for layer in request.performance_counts])
    assert names[0] == names[1] != []


def test_it_has_outputs_that_no_device_computes(server: Callable[..., HeteroPlugin]) -> None:
    text = _TEXT.replace("y) {", "y, float[2] c) <float[2] c = {1, 2}> {")
    for _ in range(2):
        found = InferRequest(loaded(server(), text=text)).infer(_X)
        np.testing.assert_array_equal(found["c"], [1, 2])


@pytest.mark.parametrize("kind", ["compiled", "weights"])
@pytest.mark.parametrize("how", ["damaged", "gone"])
def test_what_is_damaged_or_gone_is_made_anew(
    server: Callable[..., HeteroPlugin], tmp_path: Path, kind: str, how: str
) -> None:
    wanted = InferRequest(loaded(server())).infer(_X)["y"]
    for file in (tmp_path / "cache").glob(f"*/*.{kind}"):
        whole = file.read_bytes()
        file.unlink()
        if how == "damaged":
            file.write_bytes(whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:])
    np.testing.assert_array_equal(InferRequest(loaded(server())).infer(_X)["y"], wanted)
    again = loaded(server())
    assert [each.executable.loaded_from_cache for each in again._subgraphs] == [True] * 3


@pytest.mark.parametrize(
    "change",
    [
        lambda plugin: loaded(plugin, affinities={"a": "OTHER"}),
        lambda plugin: loaded(plugin, inputs=_HALVED),
        lambda plugin: loaded(plugin, {"HETERO_MERGE_ISLANDS": "NO"}),
        lambda plugin: loaded(plugin, {"OTHER.DISABLE_TRANSFORMATIONS": "YES"}),
        lambda plugin: loaded(plugin, {"PLACEMENT": "MEASURED"}),
        lambda plugin: loaded(extended(plugin)),
    ],
)
def test_another_load_is_split_anew(
    server: Callable[..., HeteroPlugin],
    change: Callable[[HeteroPlugin], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded(server())
    asked = []
    plugin, split = server(), HeteroPlugin._split

    def noted(*arguments: Any) -> Any:
        asked.append(arguments)
        return split(*arguments)

    monkeypatch.setattr(HeteroPlugin, "_split", noted)
    change(plugin)
    assert asked


@pytest.mark.parametrize("when", ["query_network", "load_network"])
def test_a_split_without_a_device_whose_worker_ended_is_made_anew_at_the_next_start(
    server: Callable[..., HeteroPlugin], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def end(*_: object) -> ExecutableNetwork:
        raise EndedWorker("this model ended the worker process", metadata={"device": "CPU"})

    plugin, kept = server(), network()
    kept.keep()
    monkeypatch.setattr(plugin.services.devices.plugin("CPU"), when, end)
    for _ in range(2):
        without = loaded(plugin, given=kept, affinities={})
        assert [each.device for each in without._subgraphs] == ["OTHER"]
    again = loaded(server(), affinities={})
    assert [each.device for each in again._subgraphs] == ["CPU"]


def extended(plugin: HeteroPlugin) -> HeteroPlugin:
    function = parse(
        "m (float[1] x) => (float[1] y) { y = Neg(x) }\n"
        '<domain: "mine", opset_import: ["" : 18]> f (x) => (y) { y = Neg(x) }'
    )
    other = plugin.services.devices.plugin("OTHER")
    other.add_extension(read_functions(function.SerializeToString()))
    return plugin
