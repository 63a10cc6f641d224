"""A network on CPU that comes from the cache is the same, without its graph."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.plugins import cpu
from headrace.plugins.cpu.backend import custom_ops, packed, session
from headrace.plugins.cpu.backend.session import OnnxRuntimeSession
from headrace.plugins.cpu.guards.network import GuardedNetwork
from headrace.plugins.cpu.plugin import CpuPlugin
from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.cache.weights import WeightFiles
from headrace.runtime.device import cache_key
from headrace.runtime.device.load import Load
from headrace.runtime.device.services import Services
from headrace.runtime.errors import FailedPrecondition, InvalidArgument
from headrace.runtime.network.extension import read_functions
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions
from headrace.testing import networks
from headrace.testing.case import network_of, parse
from headrace.testing.compare import assert_same_outputs
from headrace.testing.infer_request import InferRequest
from headrace.testing.services import services

_GUARDED = """
g (float[a,b,8,8] x, float[m,b,3,3] w) => (float[c,d,e,f] y) { y = Conv(x, w) }
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def server(root: Path) -> Iterator[Callable[..., CpuPlugin]]:
    """Starts a device with the cache, as another server on the same folder does."""
    running: list[Any] = []

    def start(
        key: bytes = b"k" * 32, *, isolated: bool = False, config: Mapping[str, str] | None = None
    ) -> CpuPlugin:
        cache = NetworkCache(root, key, 2**30)
        context = services((), cache, WeightFiles(root, WeightFiles.derived_key(key), 2**30))
        offered: Services = context.__enter__()
        offered = replace(offered, isolated=isolated)
        made = cpu.create_plugin("CPU", offered, config or {})
        assert isinstance(made, CpuPlugin)
        running.append((context, made))
        return made

    yield start
    for context, made in running:
        made.close()
        context.__exit__(None, None, None)


def graph(text: str = _GUARDED, **weights: Any) -> Network:
    return network_of(text, weights)


def loaded(plugin: CpuPlugin, network: Network, **config: str) -> Any:
    return plugin.load_network(Load(network, config))


def both(server: Callable[..., CpuPlugin], make: Callable[[], Network], **config: str) -> Any:
    """The network as it was compiled, and as the next server has it."""
    first, second = loaded(server(), make(), **config), loaded(server(), make(), **config)
    assert (first.loaded_from_cache, second.loaded_from_cache) == (False, True)
    assert not second.network.is_read
    return first, second


def x(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize(
    "case",
    [networks.mlp, networks.image, networks.recurrent, networks.transformer, networks.string_join],
)
def test_its_answers_are_the_same_bits(server: Callable[..., CpuPlugin], case: Any) -> None:
    made = case()
    first, second = both(server, lambda: case().network)
    wanted = InferRequest(first).infer(made.inputs)
    found = InferRequest(second).infer(made.inputs)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)
    assert_same_outputs(found, made.expected(), 1e-4)
    assert not second.network.is_read


def test_it_says_of_itself_what_the_first_one_says(server: Callable[..., CpuPlugin]) -> None:
    first, second = both(server, graph)
    for each in ("inputs", "outputs", "defaults", "notes", "inputs_may_change", "optimized"):
        assert getattr(second, each) == getattr(first, each)
    assert second.layers() == first.layers()
    assert second.random_layers() == first.random_layers()
    assert second.network.weight_bytes == first.network.weight_bytes
    assert second.config.to_strings() == first.config.to_strings()
    assert not second.network.is_read


def test_loads_that_map_their_weights_say_so(server: Callable[..., CpuPlugin]) -> None:
    assert [each.maps_weights for each in both(server, graph)] == [True, True]
    assert not loaded(server(), graph(), CACHE_DIR="").maps_weights


def test_it_refuses_the_shapes_that_the_first_one_refuses(
    server: Callable[..., CpuPlugin],
) -> None:
    first, second = both(server, graph)
    sound = {"x": x(1, 2, 8, 8), "w": x(3, 2, 3, 3)}
    wrong = {"x": x(1, 0, 8, 8), "w": x(3, 0, 3, 3)}
    refusals = []
    for each in (first, second):
        InferRequest(each).infer(sound)
        with pytest.raises(InvalidArgument) as refused:
            InferRequest(each).infer(wrong)
        refusals.append(refused.value.message)
    assert refusals[0] == refusals[1]
    assert first.ledger is not None
    assert second.ledger.to_json() == first.ledger.to_json()


def test_its_notes_are_those_of_the_first_one(server: Callable[..., CpuPlugin]) -> None:
    text = (
        """g (float[1,16,1] s) => (float[1,n,2] y) <int64 l = {16}> { y = DFT<axis = 1>(s, l) }"""
    )
    first, second = both(server, lambda: network_of(text, opset=17))
    assert "computed in float64" in first.notes[0]
    assert second.notes == first.notes


def test_inputs_with_a_value_of_their_own_may_be_given(server: Callable[..., CpuPlugin]) -> None:
    text = "g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"
    first, second = both(server, lambda: graph(text))
    assert [port.name for port in first.defaults] == ["w"]
    assert second.defaults == first.defaults
    given = InferRequest(second).infer({"x": x(2), "w": x(2)})
    np.testing.assert_array_equal(given["y"], [0, 2])
    np.testing.assert_array_equal(InferRequest(second).infer({"x": x(2)})["y"], [1, 3])


def test_a_request_that_is_profiled_has_its_graph_made(server: Callable[..., CpuPlugin]) -> None:
    case = networks.mlp()
    first, second = both(server, lambda: networks.mlp().network, PERF_COUNT="YES")
    layers = []
    for each in (first, second):
        request = InferRequest(each)
        request.infer(case.inputs)
        layers.append([(layer.layer, layer.op_type) for layer in request.performance_counts])
    assert layers[0] == layers[1] != []
    assert second.network.is_read


def test_it_is_exported_as_the_first_one_is(server: Callable[..., CpuPlugin]) -> None:
    first, second = both(server, graph)
    assert second.export() == first.export() != b""
    again = server().load_network(Load(graph(), native=second.export()))
    assert again.restored
    assert not again.network.is_read


def test_options_that_the_device_refuses_are_refused(server: Callable[..., CpuPlugin]) -> None:
    both(server, graph)
    options = NetworkOptions(affinities={"y": "CPU"})
    with pytest.raises(InvalidArgument, match="affinities are for HETERO"):
        server().load_network(Load(graph(), options=options))


def test_a_load_with_another_configuration_has_its_own(server: Callable[..., CpuPlugin]) -> None:
    both(server, graph)
    assert not loaded(server(), graph(), DISABLE_TRANSFORMATIONS="YES").loaded_from_cache


@pytest.mark.parametrize("folder", ["default", "weights"])
def test_what_is_gone_is_made_anew(
    server: Callable[..., CpuPlugin], root: Path, folder: str
) -> None:
    both(server, graph)
    (file,) = root.glob(f"{folder}/*")
    file.unlink()
    third = loaded(server(), graph())
    assert not third.loaded_from_cache
    InferRequest(third).infer({"x": x(1, 2, 8, 8), "w": x(3, 2, 3, 3)})
    assert loaded(server(), graph()).loaded_from_cache


def test_an_entry_that_another_key_has_signed_is_not_taken(
    server: Callable[..., CpuPlugin],
) -> None:
    both(server, graph)
    assert not loaded(server(b"o" * 32), graph()).loaded_from_cache


@pytest.mark.parametrize("what", ["processor", "backend", "headrace"])
def test_another_processor_or_version_has_its_own(
    server: Callable[..., CpuPlugin], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    both(server, graph)
    other = server()
    if what == "backend":
        monkeypatch.setattr(CpuPlugin, "backend_version", "ONNX Runtime 0")
    else:
        name = "processor_features" if what == "processor" else "headrace_version"
        for module in (cache_key, packed):
            monkeypatch.setattr(module, name, lambda: "0")
    assert not loaded(other, graph()).loaded_from_cache


def test_what_an_isolated_process_made_is_not_taken_beside_others(
    server: Callable[..., CpuPlugin],
) -> None:
    """It refuses fewer layers, because nobody else's networks run there."""
    made = loaded(server(isolated=True), graph())
    assert made.export()
    assert not loaded(server(), graph()).loaded_from_cache
    assert loaded(server(), graph()).loaded_from_cache
    assert loaded(server(isolated=True), graph()).loaded_from_cache


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry["network"].pop("ledger"),
        lambda entry: entry["network"]["ledger"]["terms"].append(["eval", "y", []]),
        lambda entry: entry.update(isolated=None),
        lambda entry: entry.update(weights="0" * 64),
        lambda entry: entry["network"].update(inputs=[["x"]]),
    ],
)
def test_an_entry_that_it_does_not_understand_is_compiled_anew(
    server: Callable[..., CpuPlugin], change: Callable[[Any], object]
) -> None:
    """It would not come from this version, because the key names the version."""
    entry = json.loads(loaded(server(), graph()).export())
    change(entry)
    again = server().load_network(Load(graph(), native=json.dumps(entry).encode()))
    assert not again.restored
    assert again.notes[0].startswith("compiled anew: it")
    InferRequest(again).infer({"x": x(1, 2, 8, 8), "w": x(3, 2, 3, 3)})


def test_a_network_with_a_library_of_operators_is_not_kept(
    server: Callable[..., CpuPlugin], monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    monkeypatch.setattr(custom_ops, "register", lambda *_: None)
    monkeypatch.setattr(custom_ops, "libraries", lambda _: ("/a/library.so",))
    assert loaded(server(), graph()).export() == b""
    assert not [*root.glob("*/*.weights")]


def test_its_graph_is_not_told_after_the_device_was_given_operators(
    server: Callable[..., CpuPlugin],
) -> None:
    """It would be another graph than the one that runs."""
    loaded(server(), graph())
    plugin = server()
    second = loaded(plugin, graph())
    function = parse(
        "m (float[1] x) => (float[1] y) { y = Neg(x) }\n"
        '<domain: "mine", opset_import: ["" : 18]> f (x) => (y) { y = Neg(x) }'
    )
    plugin.add_extension(read_functions(function.SerializeToString()))
    with pytest.raises(FailedPrecondition, match="load it again"):
        _ = second.network.model
    InferRequest(second).infer({"x": x(1, 2, 8, 8), "w": x(3, 2, 3, 3)})


def test_a_closed_network_keeps_nothing(server: Callable[..., CpuPlugin]) -> None:
    _, second = both(server, graph)
    second.close()
    assert not isinstance(second.network, GuardedNetwork)


def test_copies_share_a_session_that_leaves_with_the_last_one(
    server: Callable[..., CpuPlugin], monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin, case, open_mapped = server(), networks.mlp(), session.open_mapped
    sessions: list[weakref.ref[OnnxRuntimeSession]] = []

    def opened(*how: Any) -> OnnxRuntimeSession:
        made = open_mapped(*how)
        sessions.append(weakref.ref(made))
        return made

    monkeypatch.setattr(session, "open_mapped", opened)
    copies = [loaded(plugin, networks.mlp().network) for _ in range(3)]
    (only,) = sessions
    while copies:
        InferRequest(copies[-1]).infer(case.inputs)
        copies.pop(0).close()
        assert (only() is not None) == bool(copies)


def test_random_numbers_are_drawn_for_one_network_alone(server: Callable[..., CpuPlugin]) -> None:
    text = "g (float[4] x) => (float[4] y) { y = RandomUniformLike<seed = 7.0>(x) }"
    plugin = server()
    answers = [InferRequest(loaded(plugin, graph(text))).infer({"x": x(4)}) for _ in range(3)]
    for each in answers[1:]:
        np.testing.assert_array_equal(each["y"], answers[0]["y"])
