"""A network on any virtual device that comes from the cache is the same, and no model is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.plugins import auto, batch, cpu, hetero, multi
from headrace.plugins.cpu.plugin import CpuPlugin
from headrace.plugins.hetero import contest
from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.cache.models import KnownModels
from headrace.runtime.cache.weights import WeightFiles
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.device.services import Services
from headrace.runtime.errors import FailedPrecondition
from headrace.runtime.intake.limits import Limits
from headrace.runtime.isolation.server.process import WorkerProcess
from headrace.runtime.loading import auto_batching
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import InputOptions, NetworkOptions
from headrace.runtime.transform.warm_up import WarmUp
from headrace.runtime.virtual.entries import facts_of
from headrace.runtime.virtual.members import targets
from headrace.testing.case import network_of
from headrace.testing.infer_request import InferRequest
from headrace.testing.services import services

_RANDOM = np.random.default_rng(0)
_MODEL = network_of(
    "t (float[N,64] x) => (float[N,64] y) { a = MatMul(x, v) b = Relu(a) y = MatMul(b, w) }",
    {name: _RANDOM.standard_normal((64, 64)).astype(np.float32) for name in "vw"},
).to_bytes()
_X = {"x": _RANDOM.standard_normal((3, 64)).astype(np.float32)}
_HALVED = {"x": InputOptions(scale=(2.0,))}
_MEASURED: tuple[str, dict[str, str]] = "HETERO:CPU,OTHER", {"PLACEMENT": "MEASURED"}
_KINDS: list[tuple[str, dict[str, str]]] = [
    _MEASURED,
    ("AUTO:CPU,OTHER", {}),
    ("AUTO:CPU,OTHER", {"PERFORMANCE_HINT": "THROUGHPUT"}),
    ("AUTO:[BATCH:CPU],OTHER", {}),
    ("BATCH:CPU", {}),
    ("BATCH:[HETERO:CPU,OTHER]", {}),
    ("HETERO:CPU,[AUTO:CPU,OTHER]", {}),
    ("HETERO:[BATCH:CPU],OTHER", {}),
    ("MULTI:[HETERO:CPU,OTHER],[BATCH:OTHER]", {}),
]
_ISOLATED = PluginSource(
    "ISOLATED", lambda: cpu.create_plugin, {"ISOLATION": "PROCESS"}, CpuPlugin.path
)
_SOURCES = [
    PluginSource("AUTO", lambda: auto.create_plugin),
    PluginSource("BATCH", lambda: batch.create_plugin),
    PluginSource("CPU", lambda: cpu.create_plugin),
    PluginSource("HETERO", lambda: hetero.create_plugin),
    PluginSource("MULTI", lambda: multi.create_plugin),
    PluginSource("OTHER", lambda: cpu.create_plugin),
]


_TWICE = """
<domain: "headrace.test", opset_import: ["" : 21]> Twice (a) => (b) { b = Add(a, a) }
"""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "_SPENT_SECONDS", 0.01)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., Services]]:
    """Starts the devices with the cache, as another server on the same folder does."""
    with ExitStack() as running:

        def start(*more: PluginSource) -> Services:
            key, root = b"k" * 32, tmp_path / "cache"
            cache = NetworkCache(root, key, 2**30)
            weights = WeightFiles(root, WeightFiles.derived_key(key), 2**30)
            return running.enter_context(services([*_SOURCES, *more], cache, weights))

        yield start


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the networks whose graphs workers have asked for."""
    numbers: list[int] = []
    give = WorkerProcess._give_model

    def noted(worker: WorkerProcess, number: int) -> None:
        numbers.append(number)
        give(worker, number)

    monkeypatch.setattr(WorkerProcess, "_give_model", noted)
    return numbers


def loaded(server: Services, device: str, **config: str) -> tuple[Any, Network]:
    """The network on a device, and the network that it was given."""
    name = DeviceName.parse(device)
    given = KnownModels(server.cache, Limits()).from_bytes(_MODEL)
    affinities = {}
    if name.type == "HETERO" and not config:
        first, *_, last = (str(each.device) for each in name.members)
        affinities = {"a": first, "b": last, "y": first}
    options = NetworkOptions(members=name.members, inputs=_HALVED, affinities=affinities)
    return server.devices.plugin(name.type).load_network(Load(given, config, options)), given


def answer(network: Any) -> Any:
    return InferRequest(network).infer(_X)["y"]


@pytest.mark.parametrize(("device", "config"), _KINDS)
def test_it_says_and_answers_what_the_first_one_does_without_being_read(
    server: Callable[..., Services], device: str, config: dict[str, str]
) -> None:
    (first, _), (second, given) = (loaded(server(), device, **config) for _ in range(2))
    assert second.loaded_from_cache
    for each in ("inputs", "outputs", "defaults"):
        assert getattr(second, each) == getattr(first, each)
    if "PERFORMANCE_HINT" not in config:  # that is measured at each load
        assert sorted(second.notes) == sorted(first.notes)
    assert second.layers() == first.layers()
    np.testing.assert_array_equal(answer(second), answer(first))
    assert not given.is_read


@pytest.mark.parametrize(("device", "config"), _KINDS)
@pytest.mark.parametrize("how", ["damaged", pytest.param("gone", marks=pytest.mark.long)])
def test_each_entry_that_is_damaged_or_gone_is_made_anew(
    server: Callable[..., Services], tmp_path: Path, device: str, config: dict[str, str], how: str
) -> None:
    wanted = answer(loaded(server(), device, **config)[0])
    for file in [*(tmp_path / "cache" / "default").glob("*.compiled")]:
        whole = file.read_bytes()
        file.unlink()
        if how == "damaged":
            file.write_bytes(whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:])
        np.testing.assert_array_equal(answer(loaded(server(), device, **config)[0]), wanted)
    assert not loaded(server(), device, **config)[1].is_read


@pytest.mark.parametrize(
    "device",
    ["ISOLATED", "BATCH:ISOLATED", "HETERO:ISOLATED,OTHER", "HETERO:OTHER,[BATCH:ISOLATED]"],
)
def test_a_worker_gets_the_graph_of_a_network_from_the_cache_when_it_needs_it(
    server: Callable[..., Services], tmp_path: Path, asked: list[int], device: str
) -> None:
    devices = server(_ISOLATED)
    wanted = answer(loaded(devices, device)[0])
    assert not asked  # it had the graph
    second, given = loaded(devices, device)
    assert second.loaded_from_cache
    np.testing.assert_array_equal(answer(second), wanted)
    assert not asked
    assert not given.is_read
    request = InferRequest(second)
    for _ in range(2):
        request.start_async(_X, profile=True)
        np.testing.assert_array_equal(request.result()["y"], wanted)
        profiled = {origin for each in request.performance_counts for origin in each.origins}
        assert {"a", "b", "y"} <= profiled
    assert len(asked) == len(set(asked)) >= 1
    for file in [*(tmp_path / "cache" / "default").glob("*.compiled")]:
        file.unlink()
        np.testing.assert_array_equal(answer(loaded(devices, device)[0]), wanted)


def test_batches_that_are_padded_stay_so(
    server: Callable[..., Services], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_it = CpuPlugin.load_network

    def load_fixed(plugin: CpuPlugin, load: Load) -> ExecutableNetwork:
        if load.network.inputs[0].fixed_shape is None:
            raise FailedPrecondition("it takes fixed sizes")
        return load_it(plugin, load)

    monkeypatch.setattr(CpuPlugin, "load_network", load_fixed)
    (first, _), (second, given) = (loaded(server(), "BATCH:CPU") for _ in range(2))
    assert second.notes == first.notes
    assert "padded to 8 rows" in "".join(second.notes)
    np.testing.assert_array_equal(answer(second), answer(first))
    assert not given.is_read


@pytest.mark.parametrize("device", ["BATCH:CPU", "HETERO:[BATCH:CPU],OTHER"])
def test_devices_of_another_version_have_their_own(
    server: Callable[..., Services], monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    loaded(server(), device)
    monkeypatch.setattr(CpuPlugin, "backend_version", "ONNX Runtime 0")
    assert loaded(server(), device)[1].is_read
    assert not loaded(server(), device)[1].is_read


def test_that_requests_cannot_run_together_is_found_out_once(
    server: Callable[..., Services],
) -> None:
    text = "t (float[N,64] x) => (float[N,64] y) { y = CumSum(x, axis) }"
    model = network_of(text, {"axis": np.array(0)}).to_bytes()

    def throughput() -> tuple[Any, Network]:
        devices = server()
        given = KnownModels(devices.cache, Limits()).from_bytes(model)
        load = Load(given, {"PERFORMANCE_HINT": "THROUGHPUT"})
        return auto_batching.load(DeviceName.parse("CPU"), load, devices.devices), given

    (first, _), (second, given) = throughput(), throughput()
    assert "requests to this network cannot run together" in first.notes[0]
    assert second.notes == first.notes
    np.testing.assert_array_equal(answer(second), answer(first))
    assert not given.is_read


@pytest.mark.parametrize(
    ("layer", "function"),
    [
        ("com.microsoft.Gelu(x)", ""),
        ("com.microsoft.Inverse(x)", ""),  # in a process of its own
        ('ai.onnx.ml.Normalizer<norm = "MAX">(x)', ""),
        ("ai.onnx.ml.LabelEncoder<keys_floats = [0.0], values_floats = [2.0]>(x)", ""),
        ("headrace.test.Twice(x)", _TWICE),
    ],
)
@pytest.mark.parametrize("device", ["CPU", "HETERO:CPU,OTHER"])
def test_a_network_whose_operators_are_not_all_of_onnx_is_not_read(
    server: Callable[..., Services], device: str, layer: str, function: str
) -> None:
    text = f"t (float[2,2] x) => (float[2,2] y) {{ y = {layer} }}"
    model = network_of(text + function).to_bytes()
    name = DeviceName.parse(device)
    options, x = NetworkOptions(members=name.members), np.array([[2, 0], [0, 4]], np.float32)
    answers = []
    for is_read in (True, False):
        devices = server()
        given = KnownModels(devices.cache, Limits()).from_bytes(model)
        loaded = devices.devices.plugin(name.type).load_network(Load(given, {}, options))
        answers.append(InferRequest(loaded).infer({"x": x})["y"])
        assert given.is_read is is_read
    first, second = answers
    np.testing.assert_array_equal(first, second)


def test_splits_are_measured_again_for_other_requests_only(server: Callable[..., Services]) -> None:
    def placement(warm_up: WarmUp | None) -> Any:
        options = NetworkOptions(members=DeviceName.parse(_MEASURED[0]).members)
        load = Load(Network.from_bytes(_MODEL), _MEASURED[1], options, warm_up=warm_up)
        return server().devices.plugin("HETERO").load_network(load).get_metric("PLACEMENT")

    first = placement(None)
    assert "null" not in first  # all were measured
    assert placement(None) == first
    assert placement(WarmUp(shapes={"x": (9, 64)})) != first


def test_splits_that_could_not_be_measured_are_not_kept(
    server: Callable[..., Services], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(contest.SplitContest, "_measure", None)
        assert "not measured" in "".join(loaded(server(), _MEASURED[0], **_MEASURED[1])[0].notes)
    made, given = loaded(server(), _MEASURED[0], **_MEASURED[1])
    assert "not measured" not in "".join(made.notes)
    assert given.is_read


@pytest.mark.parametrize("device", ["AUTO", "AUTO:-OTHER", "BATCH:AUTO"])
def test_a_list_that_names_no_device_depends_on_all(
    server: Callable[..., Services], device: str
) -> None:
    devices = server().devices
    (target,) = targets([DeviceName.parse(device)], {}, {}, devices, ())
    *_, used = facts_of(target, devices)
    assert isinstance(used, list)
    assert {"CPU", "OTHER"} < {name for name, *_ in used}
