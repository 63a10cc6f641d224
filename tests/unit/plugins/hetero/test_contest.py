"""PLACEMENT=MEASURED: several splits are measured whole, and the fastest serves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from headrace.plugins import cpu, template
from headrace.plugins.hetero import contest
from headrace.plugins.hetero.contest import SplitContest, _bytes, fastest, is_clear
from headrace.plugins.hetero.executable_network import HeteroNetwork
from headrace.plugins.hetero.plugin import HeteroPlugin
from headrace.plugins.hetero.running.others import Other
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.device.services import Services
from headrace.runtime.errors import Cancelled, InvalidModel, ResourceExhausted
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.transform.warm_up import WarmUp
from headrace.runtime.virtual import timing
from headrace.testing.case import network_of
from headrace.testing.infer_request import InferRequest
from headrace.testing.services import services as real_services
from tests.support.patience import PATIENCE_SECONDS

_DEVICES = DeviceName.parse("HETERO:TEMPLATE,CPU").members
_NETWORK = network_of(
    "g (float[4] x) => (float[4] y) { a = Abs(x)  b = Neg(a)  c = Exp(b)  y = Sqrt(c) }"
)


@pytest.fixture
def offered() -> Iterator[Services]:
    sources = [
        PluginSource("TEMPLATE", lambda: template.create_plugin),
        PluginSource("CPU", lambda: cpu.create_plugin),
    ]
    with real_services(sources) as made:
        yield made


@pytest.fixture
def load(offered: Services) -> Iterator[Callable[..., ExecutableNetwork]]:
    made: list[ExecutableNetwork] = []

    def load_it(placement: str = "MEASURED", **options: Any) -> ExecutableNetwork:
        hetero = HeteroPlugin("HETERO", offered, {})
        token = options.pop("token", CancelToken())
        given = NetworkOptions(members=_DEVICES, **options)
        config = {"PLACEMENT": placement}
        made.append(hetero.load_network(Load(_NETWORK, config, given, token=token)))
        return made[-1]

    yield load_it
    for each in made:
        each.close()


def takes(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    """Has the splits take so long, those of few subgraphs first; others take a second."""

    def in_turns(runs: Sequence[object], **_: object) -> list[list[float]]:
        return [[each] * 5 for each in [*seconds, *[1.0] * len(runs)][: len(runs)]]

    monkeypatch.setattr(timing, "in_turns", in_turns)


def candidates(network: ExecutableNetwork) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(str(network.get_metric("PLACEMENT")))["candidates"]
    return found


def devices(network: ExecutableNetwork) -> list[str]:
    return [each.device for each in network.subgraphs()]


def answers(network: ExecutableNetwork) -> None:
    x = np.array([1.0, -2.0, 0.5, 0.0], np.float32)
    expected = np.sqrt(np.exp(-np.abs(x)))
    found = InferRequest(network).infer({"x": x})["y"]
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5)


def test_by_priority_nothing_is_measured(load: Callable[..., ExecutableNetwork]) -> None:
    network = load("PRIORITY")
    assert devices(network) == ["TEMPLATE"]
    assert candidates(network) == []


def test_a_device_that_runs_it_faster_alone_gets_it(
    load: Callable[..., ExecutableNetwork], monkeypatch: pytest.MonkeyPatch
) -> None:
    takes(monkeypatch, 1.0, 0.5)
    network = load()
    assert devices(network) == ["CPU"]
    assert [each["chosen"] for each in candidates(network)][:2] == [False, True]
    assert candidates(network)[0]["split"].startswith("PRIORITY")
    assert candidates(network)[1]["layers"] == {"CPU": 4}
    assert any("CPU" in note and "500 ms" in note for note in network.notes)
    answers(network)


def test_the_greedy_split_stays_where_none_is_clearly_faster(
    load: Callable[..., ExecutableNetwork], monkeypatch: pytest.MonkeyPatch
) -> None:
    takes(monkeypatch, 1.0, 0.995)
    network = load()
    assert devices(network) == ["TEMPLATE"]
    answers(network)


def test_of_splits_that_are_nearly_as_fast_one_with_few_subgraphs_is_kept(
    offered: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes(monkeypatch, 1.005, 1.0, 2.0)
    support = template.plugin.TemplatePlugin._support
    monkeypatch.setattr(
        template.plugin.TemplatePlugin,
        "_support",
        lambda *given: lambda node: "odd" if node.op_type == "Neg" else support(*given)(node),
    )
    options = NetworkOptions(members=_DEVICES)
    hetero = HeteroPlugin("HETERO", offered, {})
    network = hetero.load_network(Load(_NETWORK, {"PLACEMENT": "MEASURED"}, options))
    assert [each["subgraphs"] for each in candidates(network)][:3] == [2, 3, 1]
    assert devices(network) == ["CPU"]
    network.close()


def noisy(seconds: float, rounds: int = 40) -> list[float]:
    """What so many turns take if the machine does something else now and then."""
    draw = Random(f"{seconds} {rounds}")
    return [seconds * (1 + draw.expovariate(20)) for _ in range(rounds)]


def test_a_split_with_more_subgraphs_is_faster_only_if_it_is_beyond_the_error() -> None:
    counts = [1, 2, 3]
    assert fastest([noisy(1.0), noisy(0.9)], counts) == 1
    assert fastest([noisy(1.0), noisy(1.1)], counts) == 0
    assert fastest([noisy(1.0), noisy(0.995), noisy(1.001)], counts) == 0
    assert fastest([noisy(1.0), noisy(0.9), noisy(0.8)], counts) == 2
    unsure = [[1.0, 1.0, 1.0], [0.9, 0.9, 1.1]]
    assert fastest(unsure, counts) == 0
    assert fastest(unsure, [1, 1]) == 1


def test_a_tensor_of_texts_has_a_size_too() -> None:
    assert _bytes(ir.val("x", ir.DataType.STRING, (2, "n", 3))) == 2 * 3 * 8


def test_rounds_end_when_it_is_clear_which_split_is_the_fastest() -> None:
    assert is_clear([noisy(1.0), noisy(0.8)], [1, 1])
    assert is_clear([noisy(1.0), noisy(1.2)], [1, 1])
    assert not is_clear([noisy(1.0, 10), noisy(1.001, 10)], [1, 1])


def test_what_really_is_measured_answers_right(load: Callable[..., ExecutableNetwork]) -> None:
    network = load()
    assert all(each["latency_seconds"] > 0 for each in candidates(network))
    assert sum(each["chosen"] for each in candidates(network)) == 1
    answers(network)


def test_it_is_measured_with_requests_like_those_of_the_warm_up(
    offered: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[object] = []

    def settle(_: ExecutableNetwork, inputs: dict[str, Any], *__: object) -> float:
        shapes.append(inputs["x"].shape)
        return 1.0

    monkeypatch.setattr(timing, "settle", settle)
    takes(monkeypatch)
    network = network_of("g (float[N] x) => (float[N] y) { y = Abs(x) }")
    for warm_up, shape in ((None, (1,)), (WarmUp(shapes={"x": (7,)}), (7,))):
        shapes.clear()
        options = NetworkOptions(members=_DEVICES)
        config = {"PLACEMENT": "MEASURED"}
        hetero = HeteroPlugin("HETERO", offered, {})
        hetero.load_network(Load(network, config, options, warm_up=warm_up)).close()
        assert {*shapes} == {shape}


def test_affinities_are_followed_and_nothing_is_measured(
    load: Callable[..., ExecutableNetwork],
) -> None:
    first = next(node.name for node in _NETWORK.nodes())
    network = load(affinities={first: "CPU"})
    assert "CPU" in devices(network)
    assert "the splits were not measured: the network has affinities" in network.notes


def test_a_split_that_does_not_load_is_left_out_and_says_why(
    load: Callable[..., ExecutableNetwork], offered: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> ExecutableNetwork:
        raise InvalidModel("too odd", field="model")

    monkeypatch.setattr(offered.devices.plugin("CPU"), "load_network", refuse)
    network = load()
    assert devices(network) == ["TEMPLATE"]
    assert "too odd" in next(each["why"] for each in candidates(network) if each["why"])


def test_each_further_split_needs_room_in_the_memory_budget(
    offered: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes(monkeypatch, 1.0, 0.5)
    monkeypatch.setattr(SplitContest, "_costs", lambda *_: None)  # no cut by what layers take
    asked: list[tuple[str, str]] = []
    there: list[bool] = []  # whether there is room, for each that asks
    lent: list[bool] = []

    @contextmanager
    def lend(name: str, device: DeviceName, _: Network) -> Iterator[Any]:
        asked.append((name, str(device)))
        if not there.pop():
            raise ResourceExhausted("no room")
        lent.append(True)
        yield lambda: None
        lent.append(False)

    hetero = HeteroPlugin("HETERO", replace(offered, lent=lend), {})
    options = NetworkOptions(members=_DEVICES)
    for room, device in ((False, "TEMPLATE"), (True, "CPU")):
        there.append(room)
        network = hetero.load_network(Load(_NETWORK, {"PLACEMENT": "MEASURED"}, options, name="m"))
        assert devices(network) == [device]
        network.close()
        if not room:
            assert candidates(network)[-1]["why"] == "no room"
    assert asked == [("m", "HETERO:TEMPLATE,CPU")] * 2
    assert lent == [True, False]


def test_a_run_that_fails_leaves_the_greedy_split(
    load: Callable[..., ExecutableNetwork], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> list[float]:
        raise RuntimeError("secret")

    monkeypatch.setattr(timing, "in_turns", fail)
    network = load()
    assert devices(network) == ["TEMPLATE"]
    assert "secret" not in str((network.notes, candidates(network)))
    answers(network)


def test_a_network_that_is_too_slow_to_be_measured_keeps_the_greedy_split(
    load: Callable[..., ExecutableNetwork], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[ExecutableNetwork] = []

    def hold(network: ExecutableNetwork, _: object, token: CancelToken) -> None:
        runs.append(network)
        ended = threading.Event()
        token.attach(ended.set)
        assert ended.wait(PATIENCE_SECONDS)
        raise Cancelled(str(token.error))

    monkeypatch.setattr(timing, "settle", hold)
    monkeypatch.setattr(contest, "_MOST_SECONDS", 0.01)
    network = load()
    assert runs == [network]
    assert any("not measured: it took more than 0.01 s" in note for note in network.notes)
    answers(network)


def test_the_other_splits_are_closed(
    load: Callable[..., ExecutableNetwork], monkeypatch: pytest.MonkeyPatch
) -> None:
    takes(monkeypatch, 1.0, 0.5)
    contests: list[SplitContest] = []
    leave = SplitContest.__exit__

    def remember(contest: SplitContest, *error: Any) -> None:
        contests.append(contest)
        leave(contest, *error)

    monkeypatch.setattr(SplitContest, "__exit__", remember)
    network = load()
    (contest,) = contests
    assert [each.network._closed for each in contest._splits if each.network is not network]
    assert all(each.network._closed for each in contest._splits if each.network is not network)
    assert not network._closed


def test_a_cancel_closes_all_splits(
    load: Callable[..., ExecutableNetwork], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = CancelToken()
    contests: list[SplitContest] = []

    def cancel(contest: SplitContest, *_: object) -> None:
        contests.append(contest)
        token.cancel(Cancelled("nobody waits"))
        raise Cancelled("nobody waits")

    monkeypatch.setattr(SplitContest, "run", cancel)
    with pytest.raises(Cancelled, match="nobody waits"):
        load(token=token)
    assert all(each.network._closed for contest in contests for each in contest._splits)


def test_a_further_device_loads_a_subgraph_if_the_memory_budget_has_room(offered: Services) -> None:
    asked: list[tuple[str, str]] = []
    kept: list[bool] = []

    @contextmanager
    def lend(name: str, device: DeviceName, _: Network) -> Iterator[Callable[[], None]]:
        asked.append((name, str(device)))
        if len(asked) == 1:
            raise ResourceExhausted("no room")
        yield lambda: kept.append(True)

    object.__setattr__(offered, "lent", lend)
    options = NetworkOptions(members=_DEVICES)
    hetero = HeteroPlugin("HETERO", offered, {})
    network = hetero.load_network(Load(_NETWORK, {}, options, name="m"))
    assert isinstance(network, HeteroNetwork)
    (subgraph,) = network._subgraphs
    found: list[str | None] = []
    for _ in range(2):  # without room, a later request tries again
        there: Future[Other | None] = Future()
        subgraph.others.after(0, there.set_result)
        other = there.result(PATIENCE_SECONDS)
        found.append(None if other is None else other.device)
    network.close()
    assert (found, kept) == ([None, "CPU"], [True])
    assert asked == [("m", "CPU")] * 2
