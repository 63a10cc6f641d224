"""Pipelines on a server's core, beside the same networks called one by one."""

from __future__ import annotations

import threading
import time
import tomllib
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.plugins import batch, cpu, pipeline
from headrace.plugins.pipeline.running import request
from headrace.plugins.pipeline.running.step import NamedNetwork
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.functions import FunctionsPlugin
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.device.services import Services
from headrace.runtime.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    HeadraceError,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    UnsupportedLayers,
)
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.trace import Span, Trace
from headrace.runtime.intake.limits import Limits
from headrace.runtime.loading.registry import NetworkEntry
from headrace.runtime.metrics import families
from headrace.runtime.network.network import Network
from headrace.runtime.network.values import Value
from headrace.runtime.pipelines.description import read_pipeline
from headrace.runtime.pipelines.model import network_of
from headrace.runtime.transform.options import (
    InputOptions,
    LoadRequest,
    NetworkOptions,
    Presentation,
)
from headrace.runtime.transform.query import QueryResult
from headrace.runtime.virtual.subgraph_counters import EXECUTION_SECONDS
from headrace.testing.case import parse
from headrace.testing.counted import number, numbers
from headrace.testing.occupied import occupied
from tests.support.gate import Gate
from tests.support.patience import PATIENCE_SECONDS
from tests.unit.runtime.pipelines.test_order import step

NEG = "m (float[N,2] x) => (float[N,2] y) { y = Neg(x) }"
ABS = "m (float[N,2] x) => (float[N,2] y) { y = Abs(x) }"
SUM = "m (float[N,2] a, float[N,2] b) => (float[N,2] y) { y = Add(a, b) }"
PLUS = "m (float[N,2] a, float[1,2] b) => (float[N,2] y) { y = Add(a, b) }"
ONE_SUM = "m (float[1,2] a, float[1,2] b) => (float[1,2] y) { y = Add(a, b) }"
ONE_ROW = "m (float[1,2] x) => (float[1,2] y) { y = Neg(x) }"
MANY = """m (float[N,2] x) => (bool y) {
    rows = Shape<start = 0, end = 1>(x)
    two = Constant<value = int64[1] {2}>()
    more = Greater(rows, two)
    y = Squeeze(more)
}"""
FLAT = "m (float[2] x) => (float y) { y = ReduceSum<keepdims = 0>(x) }"
ENDLESS = """m (float[N,2] x) => (float[N,2] y) {
    n = Constant<value_int = 9223372036854775807>()
    t = Constant<value = bool {1}>()
    y = Loop(n, t, x) <body = b (int64 i, bool go, float[N,2] v) => (bool on, float[N,2] w) {
        on = Identity(go) w = Neg(v)
    }>
}"""
TEXTS = {
    "neg": NEG,
    "abs": ABS,
    "sum": SUM,
    "plus": PLUS,
    "row": ONE_ROW,
    "many": MANY,
    "flat": FLAT,
    "endless": ENDLESS,
}
X = np.array([[1, -2], [3, 4], [-5, 6]], np.float32)


functions: dict[str, Callable[..., Any]] = {}
"""What the layers First, Second and Third of the device OURS do. A test sets them."""


@plugin_api(1)
def create_functions(name: str, services: Services, config: Mapping[str, str]) -> FunctionsPlugin:
    def call(function: str, *inputs: Any) -> Any:
        return functions[function](*inputs)

    made = {each: partial(call, each) for each in ("First", "Second", "Third")}
    return FunctionsPlugin(name, services, config, "headrace.test", made)


class Served:
    """A core, and shorter words for what a server does with it."""

    def __init__(self) -> None:
        self.core = Core(
            [
                PluginSource("CPU", lambda: cpu.create_plugin),
                PluginSource("BATCH", lambda: batch.create_plugin),
                PluginSource("PIPELINE", lambda: pipeline.create_plugin),
                PluginSource("OURS", lambda: create_functions),
            ],
            blob_key=b"key",
        )

    def load(
        self,
        name: str,
        text: str,
        labels: Mapping[str, tuple[str, ...]] | None = None,
        device: str = "CPU",
        config: Mapping[str, str] | None = None,
        **more: Any,
    ) -> NetworkEntry:
        presentation = Presentation(labels=labels or {})
        request = LoadRequest(
            name, DeviceName.parse(device), config or {}, presentation=presentation
        )
        model = parse(text).SerializeToString()
        load = self.core.load_network(request, lambda: Network.from_bytes(model), **more)
        return load.result(PATIENCE_SECONDS)

    def pipeline(
        self,
        name: str,
        text: str,
        models: Mapping[str, str] | None = None,
        config: Mapping[str, str] | None = None,
        options: NetworkOptions | None = None,
        *,
        replace: bool = False,
    ) -> NetworkEntry:
        request = LoadRequest(
            name, DeviceName.parse("PIPELINE"), config or {}, options or NetworkOptions()
        )
        load = self.core.load_network(request, lambda: described(text, models), replace=replace)
        return load.result(PATIENCE_SECONDS)

    def start(self, name: str, inputs: Mapping[str, Value], **conditions: Any) -> _Started:
        entry = self.core.networks.acquire(name)
        started = _Started(inputs, conditions)
        self.core.networks.submit(entry, started.job)
        return started

    def infer(self, name: str, inputs: Mapping[str, Value], **conditions: Any) -> dict[str, Value]:
        return self.start(name, inputs, **conditions).result()


class _Started:
    def __init__(self, inputs: Mapping[str, Value], conditions: Mapping[str, Any]) -> None:
        self._ended = threading.Event()
        self.job = Job(inputs, lambda _: self._ended.set(), **conditions)

    def result(self) -> dict[str, Value]:
        assert self._ended.wait(PATIENCE_SECONDS)
        if self.job.error is not None:
            raise self.job.take_error()
        return self.job.outputs


def described(text: str, models: Mapping[str, str] | None = None) -> Network:
    serialised = {name: parse(each).SerializeToString() for name, each in (models or {}).items()}
    return network_of(read_pipeline(tomllib.loads(text)), serialised, Limits())


def named(name: str, network: str, inputs: str, outputs: str, more: str = "") -> str:
    return step(name, inputs, outputs, more).replace('"net"', f'"{network}"')


def ours(name: str, function: str, takes: str, makes: str) -> str:
    """A step that runs a function of the device OURS."""
    return f"""
        [[step]]
        name = "{name}"
        model = "{function}.onnx"
        device = "OURS"
        inputs = {{x = "{takes}"}}
        outputs = {{{makes} = "y"}}
    """


MODELS = {
    f"{each}.onnx": f"m (float[N,2] x) => (float[N,2] y) {{ y = headrace.test.{each}(x) }}"
    for each in ("First", "Second", "Third")
}


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    """A core with the networks of `TEXTS`."""
    made = Served()
    for name, text in TEXTS.items():
        made.load(name, text)
    yield made
    made.core.stop()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.core.stop()


def refused(served: Served, text: str, **more: Any) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        served.pipeline("refused", text, **more)
    return caught.value


# -- what it computes --


def test_a_step_gets_what_the_step_before_it_made(shared: Served) -> None:
    steps = named("p", "abs", 'x="image"', 'a="y"') + named("q", "neg", 'x="a"', 'b="y"')
    entry = shared.pipeline("two", steps + '[outputs]\nresult = "b"')
    assert [port.name for port in entry.executable.inputs] == ["image"]  # type: ignore[union-attr]
    np.testing.assert_array_equal(shared.infer("two", {"image": X})["result"], -np.abs(X))


def test_a_step_may_have_a_model_and_a_device_of_its_own(shared: Served) -> None:
    text = """
        [[step]]
        name = "p"
        model = "own.onnx"
        device = "BATCH:CPU(4)"
        inputs = {x = "image"}
        outputs = {a = "y"}
        [outputs]
        a = "a"
    """
    entry = shared.pipeline("own", text, {"own.onnx": ABS})
    assert entry.executable is not None
    assert entry.executable.get_metric("EXECUTION_DEVICES") == ["CPU.0"]
    assert [entry.executable.works({"CPU.0": up}) for up in (True, False)] == [True, False]
    np.testing.assert_array_equal(shared.infer("own", {"image": X})["a"], np.abs(X))


class RandomStep(NamedTuple):
    """A step that runs `neg`, `abs`, `sum`, `plus` with a constant, or `row` for each row.

    Attributes:
        when: the condition; empty for none.
    """

    network: str
    takes: tuple[str, ...]
    makes: str
    when: str

    @property
    def text(self) -> str:
        inputs = [f'{port}="{tensor}"' for port, tensor in zip("ab", self.takes, strict=False)]
        if self.network == "plus":
            inputs.append('b={value=[[1.0, -2.0]], dtype="FP32"}')
        elif self.network != "sum":
            inputs = [f'x="{self.takes[0]}"']
        more = [f'each="{self.takes[0]}"'] if self.network == "row" else []
        more += [f'when="{self.when}"'] if self.when else []
        name = f"step_{self.makes}"
        return named(name, self.network, ", ".join(inputs), f'{self.makes}="y"', "\n".join(more))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[RandomStep], list[str]]:
    """The steps of a random pipeline, and its outputs."""
    tensors = ["in0", "in1"]
    steps: list[RandomStep] = []
    for at in range(draw(st.integers(1, 7))):
        network = draw(st.sampled_from(["neg", "abs", "sum", "plus", "row"]))
        count = 2 if network == "sum" else 1
        takes = draw(st.lists(st.sampled_from(tensors), min_size=count, max_size=count))
        when = draw(st.sampled_from(["", "", "", "on", "off"]))
        steps.append(RandomStep(network, tuple(takes), f"t{at}", when))
        tensors.append(f"t{at}")
    outputs = st.lists(st.sampled_from(tensors[2:]), min_size=1, max_size=3, unique=True)
    return steps, draw(outputs)


def one_by_one(served: Served, random: RandomStep, values: Mapping[str, Any]) -> Any:
    """What a step makes, found with calls of its network."""
    first, *others = (values[name] for name in random.takes)
    if random.when == "off":
        return np.zeros((0, 2), np.float32)
    if random.network == "row":
        rows = [served.infer("row", {"x": row[np.newaxis]})["y"] for row in first]
        return np.concatenate([np.zeros((0, 2), np.float32), *rows])
    if random.network == "sum":
        return served.infer("sum", {"a": first, "b": others[0]})["y"]
    if random.network == "plus":
        return served.infer("plus", {"a": first, "b": np.array([[1, -2]], np.float32)})["y"]
    return served.infer(random.network, {"x": first})["y"]


@settings(max_examples=60, deadline=None, suppress_health_check=[*HealthCheck])
@given(graph=graphs(), rows=st.integers(0, 4), order=st.randoms(use_true_random=False))
def test_a_random_pipeline_gives_what_its_networks_give_one_by_one(
    shared: Served, graph: tuple[list[RandomStep], list[str]], rows: int, order: Random
) -> None:
    steps, outputs = graph
    texts = [each.text for each in steps]
    order.shuffle(texts)
    table = "[outputs]\n" + "\n".join(f'{name} = "{name}"' for name in outputs)
    executable = shared.pipeline("random", "".join(texts) + table, replace=True).executable
    assert executable is not None
    made = np.random.default_rng(rows)
    values: dict[str, Any] = {
        "in0": made.normal(size=(rows, 2)).astype(np.float32),
        "in1": made.normal(size=(rows, 2)).astype(np.float32),
        "on": np.array([True]),
        "off": np.array([False]),
    }
    given_inputs = {port.name: values[port.name] for port in executable.inputs}
    needed = set(outputs)
    for each in reversed(steps):
        needed |= {*each.takes} if each.makes in needed else set()
    try:
        for each in steps:
            if each.makes in needed:
                values[each.makes] = one_by_one(shared, each, values)
    except InvalidArgument:  # a sum of different numbers of rows
        with pytest.raises((FailedPrecondition, InvalidArgument), match="step"):
            shared.infer("random", given_inputs, output_names=tuple(outputs))
        return
    found = shared.infer("random", given_inputs, output_names=tuple(outputs))
    assert list(found) == outputs
    for name in outputs:
        np.testing.assert_array_equal(found[name], values[name])


EACH = named("p", "row", 'x="rows"', 'a="y"', 'each="rows"') + '[outputs]\na = "a"'


@pytest.mark.parametrize("count", [0, 1, 3, 100])
def test_each_row_is_a_run_and_the_results_are_in_order(shared: Served, count: int) -> None:
    shared.pipeline("rows", EACH, replace=True)
    rows = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
    np.testing.assert_array_equal(shared.infer("rows", {"rows": rows})["a"], -rows)


def test_results_without_a_row_of_their_own_are_stacked(shared: Served) -> None:
    text = named("p", "flat", 'x="rows"', 'a="y"', 'each="rows"') + '[outputs]\na = "a"'
    shared.pipeline("stacked", text)
    np.testing.assert_array_equal(shared.infer("stacked", {"rows": X})["a"], X.sum(1))


PLACES = (
    named("p", "sum", 'a="places", b="rows"', 'c="y"', "each = {places = [-1, 2], rows = [-1]}")
    + '[outputs]\nc = "c"'
)


@pytest.mark.parametrize("count", [1, 40])
def test_a_network_runs_at_each_place_of_several_axes(shared: Served, count: int) -> None:
    shared.pipeline("places", PLACES, replace=True)
    places = np.arange(12 * count, dtype=np.float32).reshape(count, 2, 3, 2)
    rows = np.arange(6 * count, dtype=np.float32).reshape(count, 3, 2)
    found = shared.infer("places", {"places": places, "rows": rows})
    np.testing.assert_array_equal(found["c"], places + rows[:, None])


def test_other_numbers_of_rows_than_the_axes_say_are_refused(shared: Served) -> None:
    shared.pipeline("places", PLACES, replace=True)
    places = np.zeros((3, 2, 1, 2), np.float32)
    with pytest.raises(InvalidArgument, match="'a' has \\[3, 2\\], 'b' has 4") as caught:
        shared.infer("places", {"places": places, "rows": places[0].repeat(2, axis=0)})
    assert caught.value.field == "inputs['rows'].shape"


def test_a_row_that_lacks_an_output_fails_the_request(
    shared: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.pipeline("rows", EACH, replace=True)
    monkeypatch.setattr(NamedNetwork, "submit", lambda _, job: job.complete())
    with pytest.raises(Internal, match=r"step 'p', row 0 on CPU.0: the device gave \[\]"):
        shared.infer("rows", {"rows": X})


def test_a_want_of_memory_for_the_rows_results_fails_the_request(
    shared: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gathered(*_: Any, **__: Any) -> Value:
        raise MemoryError

    shared.pipeline("rows", EACH, replace=True)
    monkeypatch.setattr(request, "gathered", gathered)
    with pytest.raises(ResourceExhausted, match="out of memory"):
        shared.infer("rows", {"rows": X})


PARTS = """m (float[N,2] x, int64[P] sizes) => (seq(float[M,2]) y) {
    y = SplitToSequence <axis = 0> (x, sizes)
}"""


@pytest.mark.parametrize("sizes", [[1, 2], [3], [0, 3, 0]])
def test_elements_of_a_sequence_are_runs_of_any_shape_and_the_results_a_sequence(
    shared: Served, sizes: list[int]
) -> None:
    parts = """
        [[step]]
        name = "p"
        model = "parts.onnx"
        inputs = {x = "image", sizes = "sizes"}
        outputs = {parts = "y"}
    """
    steps = parts + named("q", "neg", 'x="parts"', 'b="y"', 'each="parts"')
    entry = shared.pipeline(
        "parts", steps + '[outputs]\nb = "b"', {"parts.onnx": PARTS}, replace=True
    )
    assert [port.kind for port in entry.executable.outputs] == ["sequence"]  # type: ignore[union-attr]
    found = shared.infer("parts", {"image": X, "sizes": np.array(sizes)})["b"]
    assert isinstance(found, list)
    ends = np.cumsum([0, *sizes])
    assert len(found) == len(sizes)
    for part, begin, end in zip(found, ends, ends[1:], strict=False):
        np.testing.assert_array_equal(part, -X[begin:end])


def test_no_element_gives_an_empty_sequence(shared: Served) -> None:
    made = "m () => (seq(float[M,2]) y) { y = SequenceEmpty <dtype = 1> () }"
    parts = """
        [[step]]
        name = "p"
        model = "none.onnx"
        inputs = {}
        outputs = {parts = "y"}
    """
    steps = parts + named("q", "neg", 'x="parts"', 'b="y"', 'each="parts"')
    shared.pipeline("none", steps + '[outputs]\nb = "b"', {"none.onnx": made})
    assert shared.infer("none", {})["b"] == []


def test_more_rows_than_a_request_may_have_are_refused(shared: Served) -> None:
    shared.pipeline("rows", EACH, replace=True)
    with pytest.raises(InvalidArgument, match="at most 10000") as caught:
        shared.infer("rows", {"rows": np.zeros((10_001, 2), np.float32)})
    assert caught.value.field == "inputs['rows'].shape"


def test_a_request_needs_no_more_runs_than_a_bound_however_pipelines_are_nested(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "MAX_PARTS", 30)
    served.load("neg", NEG)
    within = "neg", "x", "y"
    for name in ("p", "q", "r"):  # of 3, of 3 + 3 * 3, and of 3 + 3 * 12 runs
        network, x, y = within
        ends = pairwise(["i", "a", "b", "o"])
        steps = [
            named(f"s{made}", network, f'{x}="{took}"', f'{made}="{y}"') for took, made in ends
        ]
        served.pipeline(name, "".join(steps) + '[outputs]\no = "o"')
        within = name, "i", "o"
    np.testing.assert_array_equal(served.infer("q", {"i": X})["o"], -X)
    with pytest.raises(FailedPrecondition, match="needs more than 30 runs of networks"):
        served.infer("r", {"i": X})


def test_pipelines_that_run_each_other_many_times_ask_each_network_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = served.load("neg", NEG)
    asked: list[Any] = []

    def execution_devices(network: Any) -> list[str]:
        asked.append(network)
        return ["CPU.0"]

    monkeypatch.setattr(type(entry.executable), "_execution_devices", execution_devices)
    within = "neg", "x", "y"
    for level in range(8):
        network, x, y = within
        ends = pairwise(["i", *(f"t{at}" for at in range(40)), "o"])
        steps = [
            named(f"s{made}", network, f'{x}="{took}"', f'{made}="{y}"') for took, made in ends
        ]
        outer = served.pipeline(f"p{level}", "".join(steps) + '[outputs]\no = "o"')
        within = f"p{level}", "i", "o"
    assert outer.executable is not None
    assert outer.executable.get_metric("EXECUTION_DEVICES") == ["CPU.0"]
    assert len(asked) == 1
    assert outer.executable.unready() == ""
    assert len(outer.executable.layers()) == 41 + 41 * 41
    served.core.unload_network("neg").result(PATIENCE_SECONDS)
    assert "step 'st0': unknown network 'neg'" in outer.executable.unready()


WHEN = (
    named("p", "abs", 'x="image"', 'a="y"', 'when="found"')
    + named("q", "row", 'x="a"', 'b="y"', 'each="a"')
    + '[outputs]\na = "a"\nb = "b"'
)


@pytest.mark.parametrize(("found", "rows"), [(True, 3), (False, 0)])
def test_a_step_without_its_condition_gives_no_rows(shared: Served, found: bool, rows: int) -> None:
    shared.pipeline("when", WHEN, replace=True)
    outputs = shared.infer("when", {"image": X, "found": np.array([found])})
    for name, expected in (("a", np.abs(X)), ("b", -np.abs(X))):
        np.testing.assert_array_equal(outputs[name], expected[:rows])


def test_a_condition_of_two_values_is_the_caller_s_fault(shared: Served) -> None:
    shared.pipeline("when", WHEN, replace=True)
    with pytest.raises(InvalidArgument, match="one boolean") as caught:
        shared.infer("when", {"image": X, "found": np.array([True, False])})
    assert caught.value.field == "inputs['found']"


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_a_condition_may_have_any_axes_of_one_element(
    shared: Served, shape: tuple[int, ...]
) -> None:
    shared.pipeline("when", WHEN, replace=True)
    outputs = shared.infer("when", {"image": X, "found": np.ones(shape, np.bool_)})
    np.testing.assert_array_equal(outputs["b"], -np.abs(X))


@pytest.mark.parametrize("shape", [(0,), (1, 0), (2, 0)])
def test_a_condition_without_elements_is_neither_true_nor_false(
    shared: Served, shape: tuple[int, ...]
) -> None:
    shared.pipeline("when", WHEN, replace=True)
    with pytest.raises(InvalidArgument, match="one boolean") as caught:
        shared.infer("when", {"image": X, "found": np.ones(shape, np.bool_)})
    assert caught.value.field == "inputs['found']"


def test_a_condition_on_a_shape_decides_for_each_request(shared: Served) -> None:
    steps = named("size", "many", 'x="image"', 'large="y"')
    steps += named("p", "neg", 'x="image"', 'a="y"', 'when="large"')
    shared.pipeline("large", steps + '[outputs]\na = "a"', replace=True)
    for rows, made in ((3, 3), (2, 0), (0, 0)):
        found = shared.infer("large", {"image": X[:rows]})["a"]
        np.testing.assert_array_equal(found, -X[:made])


# -- networks by name --


def test_an_output_has_the_labels_of_the_network_that_makes_it(served: Served) -> None:
    served.load("neg", NEG, {"y": ("cat", "dog")})
    text = named("a", "neg", 'x = "x"', 'y = "y"') + '[outputs]\nscores = "y"'
    entry = served.pipeline("p", text)
    assert entry.executable is not None
    assert entry.executable.outputs[0].classes == ("cat", "dog")


def test_a_replaced_network_serves_the_next_request(served: Served) -> None:
    served.load("net", NEG)
    served.pipeline("p", step("s", 'x="image"', 'a="y"') + '[outputs]\na = "a"')
    np.testing.assert_array_equal(served.infer("p", {"image": X})["a"], -X)
    served.load("net", ABS, replace=True)
    np.testing.assert_array_equal(served.infer("p", {"image": X})["a"], np.abs(X))
    served.load("net", FLAT, replace=True)
    with pytest.raises(FailedPrecondition, match=r"step 's'.*load the pipeline again"):
        served.infer("p", {"image": X})


def test_an_unloaded_network_fails_the_step_and_is_not_held(served: Served) -> None:
    served.load("net", NEG)
    served.pipeline("p", step("s", 'x="image"', 'a="y"') + '[outputs]\na = "a"')
    served.core.unload_network("net").result(PATIENCE_SECONDS)
    with pytest.raises(FailedPrecondition, match=r"step 's'.*unknown network 'net'"):
        served.infer("p", {"image": X})
    served.load("net", NEG)
    np.testing.assert_array_equal(served.infer("p", {"image": X})["a"], -X)


def test_a_network_that_is_not_there_is_named_at_load(shared: Served) -> None:
    error = refused(shared, named("s", "nag", 'x="i"', 'a="y"') + '[outputs]\na = "a"')
    assert isinstance(error, NotFound)
    assert error.message.startswith("step 's': unknown network 'nag'; did you mean 'neg'?")
    assert error.metadata["step_network"] == "nag"
    assert error.field == "pipeline.toml: network"  # and the step stands in the message alone


def test_a_pipeline_cannot_run_itself(served: Served) -> None:
    served.load("net", NEG)
    text = '[outputs]\na = "a"'
    served.pipeline("p", named("s", "net", 'image="image"', 'a="y"').replace("image=", "x=") + text)
    served.pipeline("q", named("s", "p", 'image="image"', 'a="a"') + text)
    with pytest.raises(InvalidArgument, match="would run itself, by way of 'q'"):
        served.pipeline("p", named("s", "q", 'image="image"', 'a="a"') + text, replace=True)
    np.testing.assert_array_equal(served.infer("q", {"image": X})["a"], -X)


def test_pipelines_that_have_come_to_run_each_other_in_a_circle_fail_and_do_not_wait(
    served: Served,
) -> None:
    def runs(network: str) -> str:
        return named("s", network, 'x="x"', 'a="y"') + '[outputs]\ny = "a"'

    one_at_once = {"PIPELINE_WINDOW": "1"}
    served.load("second", NEG)
    served.load("third", NEG)
    served.pipeline("first", runs("second"), config=one_at_once)
    served.pipeline("second", runs("third"), config=one_at_once, replace=True)
    served.pipeline("third", runs("first"), config=one_at_once, replace=True)
    with pytest.raises(FailedPrecondition, match="more than 8 pipelines run each other"):
        served.infer("first", {"x": X})


def test_requests_are_counted_for_the_pipeline_its_steps_and_their_networks(
    served: Served,
) -> None:
    served.load("net", NEG)
    served.pipeline("p", step("s", 'x="image"', 'a="y"') + '[outputs]\na = "a"')
    for _ in range(3):
        served.infer("p", {"image": X})
    counted = served.core.counters.snapshot()
    assert numbers(counted, families.NETWORK_ACCEPTED) == {
        ("net", "1", "CPU.0"): 3,
        ("p", "1", "PIPELINE"): 3,
    }
    times = [each.labels for each in counted if each.family.name == EXECUTION_SECONDS.name]
    assert times == [("p", "1", "1", "CPU.0")]
    executable = served.core.networks.find("net").executable
    assert executable is not None
    assert executable.statistics.totals().rows == 9
    assert number(counted, families.DEVICE_ACCEPTED, "CPU.0", "part") == 3


# -- between steps --


def test_requests_form_batches_between_their_steps(served: Served) -> None:
    for device in ("CPU", "OURS"):
        served.core.set_config(DeviceName.parse(device), {"NUM_STREAMS": "1"})
    busy = served.load("busy", ABS).executable
    config = {"AUTO_BATCH_TIMEOUT": "1000000"}
    batched = served.load("batched", NEG, device="BATCH:CPU(2)", config=config).executable
    assert busy is not None
    assert batched is not None
    functions["First"] = np.abs
    served.load("first", MODELS["First.onnx"], device="OURS")
    steps = named("p", "first", 'x="image"', 'a="y"') + named("q", "batched", 'x="a"', 'b="y"')
    served.pipeline("p", steps + '[outputs]\nb = "b"')
    with occupied(busy):
        # The first one waits for CPU. So the others wait for each other.
        started = [served.start("p", {"image": X[at : at + 1]}) for at in range(3)]
        served.infer("first", {"x": X})  # when it has run, the only stream has left the others
    for at, each in enumerate(started):
        np.testing.assert_array_equal(each.result()["b"], -np.abs(X[at : at + 1]))
    assert sorted(batched.statistics.totals().runs) == [1, 2]


def test_a_tensor_between_steps_is_gone_when_its_last_reader_has_ended(served: Served) -> None:
    made: list[weakref.ref[Any]] = []

    def first(x: Any) -> Any:
        tensor = x + 1
        made.append(weakref.ref(tensor))
        return tensor

    def third(x: Any) -> Any:
        assert made[0]() is None
        return x

    functions.update(First=first, Second=lambda x: 2 * x, Third=third)
    # The only stream begins a step when it has left what submitted that step, with its variables.
    served.core.set_config(DeviceName.parse("OURS"), {"NUM_STREAMS": "1"})
    steps = ours("first", "First", "image", "a")
    steps += ours("second", "Second", "a", "b") + ours("third", "Third", "b", "c")
    served.pipeline("p", steps + '[outputs]\nc = "c"', MODELS)
    np.testing.assert_array_equal(served.infer("p", {"image": X})["c"], 2 * (X + 1))


def test_a_tensor_is_the_same_memory_for_the_step_that_reads_it(served: Served) -> None:
    made: list[Any] = []
    read: list[Any] = []

    def first(x: Any) -> Any:
        made.append(x + 1)
        return made[0]

    def second(x: Any) -> Any:
        read.append(x)
        return -x

    functions.update(First=first, Second=second)
    steps = ours("first", "First", "image", "a") + ours("second", "Second", "a", "b")
    served.pipeline("p", steps + '[outputs]\nb = "b"', MODELS)
    np.testing.assert_array_equal(served.infer("p", {"image": X})["b"], -(X + 1))
    assert np.shares_memory(made[0], read[0])


def test_a_step_has_the_priority_of_its_request(served: Served) -> None:
    begun: list[float] = []

    def second(x: Any) -> Any:
        begun.append(float(x[0, 0]))
        return x

    functions["Second"] = second
    for device in ("CPU", "OURS"):
        served.core.set_config(DeviceName.parse(device), {"NUM_STREAMS": "1"})
    served.load("net", NEG)
    last = served.load("last", MODELS["Second.onnx"], device="OURS").executable
    assert last is not None
    steps = named("p", "net", 'x="image"', 'a="y"') + named("q", "last", 'x="a"', 'b="y"')
    served.pipeline("p", steps + '[outputs]\nb = "b"')
    with occupied(last):
        started = [
            served.start("p", {"image": np.full((1, 2), priority, np.float32)}, priority=priority)
            for priority in (0, 5, 9)
        ]
        served.infer("net", {"x": X})  # when it has run, the only stream has left the others
    for each in started:
        each.result()
    assert begun == [-9, -5, 0]


def test_independent_steps_run_at_the_same_time(served: Served) -> None:
    both = threading.Barrier(2)

    def meets(x: Any) -> Any:
        both.wait(PATIENCE_SECONDS)
        return x

    functions.update(First=meets, Second=meets)
    served.core.set_config(DeviceName.parse("OURS"), {"NUM_STREAMS": "2"})
    steps = ours("first", "First", "image", "a") + ours("second", "Second", "image", "b")
    served.pipeline("p", steps + '[outputs]\na = "a"\nb = "b"', MODELS)
    served.infer("p", {"image": X}, output_names=("a", "b"))


def test_a_pipeline_finds_its_owner_s_network_and_then_a_shared_one(served: Served) -> None:
    served.load("net@alice", ABS)
    text = step("s", 'x="image"', 'a="y"') + '[outputs]\na = "a"'
    for name in ("p@bob", "p"):
        with pytest.raises(NotFound, match="unknown network 'net'"):
            served.pipeline(name, text)
    served.load("net", NEG)
    for name, expected in (("p@alice", np.abs(X)), ("p@bob", -X), ("p", -X)):
        served.pipeline(name, text, replace=True)
        np.testing.assert_array_equal(served.infer(name, {"image": X})["a"], expected)


def test_a_network_that_keeps_states_is_no_step(served: Served) -> None:
    served.load("sums", ONE_SUM, config={"STATES": "b=y"})
    error = refused(served, named("s", "sums", 'a="i"', 'o="y"') + '[outputs]\no = "o"')
    assert isinstance(error, FailedPrecondition)
    assert "step 's': network 'sums' keeps states" in error.message


# -- what ends a request --


def test_a_step_that_fails_ends_the_request_when_the_others_have_ended(served: Served) -> None:
    gate = Gate()

    def stays(x: Any) -> Any:
        gate()
        return x

    def fails(_: Any) -> Any:
        gate.await_arrivals()
        raise ValueError("no such page")

    functions.update(First=stays, Second=fails)
    served.core.set_config(DeviceName.parse("OURS"), {"NUM_STREAMS": "2"})
    steps = ours("first", "First", "image", "a") + ours("second", "Second", "image", "b")
    served.pipeline("p", steps + '[outputs]\na = "a"\nb = "b"', MODELS)
    started = served.start("p", {"image": X}, output_names=("a", "b"))
    gate.await_arrivals()
    assert started.job.outcome is None
    gate.open()
    with pytest.raises(FailedPrecondition, match=r"step 'second' on OURS.0: .*no such page"):
        started.result()


@pytest.mark.parametrize("more", ["", 'each="image"'])
def test_a_cancel_and_a_deadline_end_every_step(shared: Served, more: str) -> None:
    steps = named("p", "endless", 'x="image"', 'a="y"', more)
    steps += named("q", "neg", 'x="a"', 'b="y"')
    shared.pipeline("stuck", steps + '[outputs]\nb = "b"', replace=True)
    with pytest.raises(DeadlineExceeded):
        shared.infer("stuck", {"image": X}, deadline=time.monotonic() + 0.05)
    started = shared.start("stuck", {"image": X})
    started.job.token.cancel(Cancelled("enough"))
    with pytest.raises(Cancelled):
        started.result()
    np.testing.assert_array_equal(shared.infer("neg", {"x": X})["y"], -X)  # the streams are free


@pytest.mark.parametrize("more", ["", 'each = "image"'])
def test_a_cancel_reaches_the_steps_that_run_and_begins_no_other(served: Served, more: str) -> None:
    gate = Gate()
    begun: list[str] = []

    def first(x: Any) -> Any:
        gate()
        return x

    def second(x: Any) -> Any:
        begun.append("second")
        return x

    functions.update(First=first, Second=second)
    served.core.set_config(DeviceName.parse("OURS"), {"NUM_STREAMS": "1"})
    steps = ours("first", "First", "image", "a") + more
    steps += ours("second", "Second", "a", "b")
    served.pipeline("p", steps + '[outputs]\nb = "b"', MODELS)
    started = served.start("p", {"image": X})
    gate.await_arrivals()  # the step runs now
    started.job.token.cancel(Cancelled("enough"))
    gate.open()
    with pytest.raises(Cancelled, match="enough"):
        started.result()
    assert begun == []


def test_values_that_a_network_does_not_take_are_blamed_on_whoever_gave_them(
    shared: Served,
) -> None:
    given = named("p", "neg", 'x="image"', 'a="y"')
    shared.pipeline("given", given + '[outputs]\na = "a"')
    with pytest.raises(InvalidArgument) as caught:
        shared.infer("given", {"image": X[:, :1]})
    assert caught.value.field == "inputs['image'].shape"
    made = given + named("q", "row", 'x="a"', 'b="y"')
    shared.pipeline("made", made + '[outputs]\nb = "b"')
    with pytest.raises(FailedPrecondition, match=r"step 'q' on CPU.0: input 'x' takes") as other:
        shared.infer("made", {"image": X})
    assert other.value.metadata["step"] == "q"


def test_a_traced_request_has_a_span_for_each_step_and_row(shared: Served) -> None:
    shared.pipeline("rows", EACH, replace=True)
    spans: list[Span] = []
    trace = Trace(1, spans.extend)
    shared.infer("rows", {"rows": X}, span=Span(trace, "request", 0, time.monotonic()))
    trace.end()
    steps = [span for span in spans if span.name == "step p CPU.0"]
    assert sorted(span.facts["headrace.row"] for span in steps) == [0, 1, 2]


# -- what a load and a query say --


def test_a_device_that_lacks_a_layer_is_refused_with_the_step(shared: Served) -> None:
    text = """
        [[step]]
        name = "p"
        model = "own.onnx"
        inputs = {x = "image"}
        outputs = {a = "y"}
        [outputs]
        a = "a"
    """
    unknown = "m (float[N,2] x) => (float[N,2] y) { y = headrace.test.Nothing(x) }"
    with pytest.raises(UnsupportedLayers, match="step 'p': CPU does not support"):
        shared.pipeline("lacking", text, {"own.onnx": unknown})
    query = shared.core.query_network(
        DeviceName.parse("PIPELINE"),
        {},
        NetworkOptions(),
        lambda: described(text, {"own.onnx": unknown}),
    ).result(PATIENCE_SECONDS)
    assert [each.layer for each in query.unsupported] == ["p/y", "p"]


def test_a_query_names_the_device_of_each_step_and_of_its_layers(shared: Served) -> None:
    steps = named("p", "abs", 'x="image"', 'a="y"') + named("q", "nag", 'x="a"', 'b="y"')
    query = shared.core.query_network(
        DeviceName.parse("PIPELINE"),
        {},
        NetworkOptions(),
        lambda: described(steps + '[outputs]\nb = "b"'),
        graph=True,
    ).result(PATIENCE_SECONDS)
    assert query.supported_layers == {"p": "CPU.0", "p/y": "CPU.0"}
    assert [(each.layer, each.op_type) for each in query.unsupported] == [("q", "nag")]
    assert query.graph is not None


OWN = """
    [[step]]
    name = "p"
    model = "own.onnx"
    config = {NUM_STREAMS = 1}
    inputs = {x = "image"}
    outputs = {a = "y"}
"""


def queried(served: Served, text: str, models: Mapping[str, str]) -> QueryResult:
    network = partial(described, text, models)
    device = DeviceName.parse("PIPELINE")
    asked = served.core.query_network(device, {}, NetworkOptions(), network, graph=True)
    return asked.result(PATIENCE_SECONDS)


def test_a_query_tells_devices_and_types_as_a_load_would(shared: Served) -> None:
    text = OWN + named("q", "abs", 'x="a"', 'b="y"') + '[outputs]\nb = "b"'
    query = queried(shared, text, {"own.onnx": NEG})
    assert [(each.step, each.device) for each in query.subgraphs] == [
        ("p", "CPU.0"),
        ("q", "CPU.0"),
    ]
    assert set(query.supported_layers.values()) == {"CPU.0"}
    assert query.graph is not None
    ports = (*query.graph.inputs, *query.graph.tensors)
    assert [(each.name, each.dtype.name, each.shape) for each in ports] == [
        ("image", "FLOAT", (None, 2)),
        ("a", "FLOAT", (None, 2)),
        ("b", "FLOAT", (None, 2)),
    ]


def test_a_query_notes_what_cannot_fit(shared: Served) -> None:
    text = OWN + named("q", "abs", 'x="a"', 'b="y"') + '[outputs]\nb = "b"'
    query = queried(shared, text, {"own.onnx": NEG.replace("N,2] y", "N,3] y")})
    assert query.notes == (
        "pipeline.toml: step 'q': the tensor 'a' does not fit its input 'x': it is float[?, 3], "
        "and float[?, 2] is needed",
    )


def test_options_that_change_a_network_are_for_the_networks_of_the_steps(shared: Served) -> None:
    text = named("p", "neg", 'x="image"', 'a="y"') + '[outputs]\na = "a"'
    options = NetworkOptions(inputs={"image": InputOptions(layout="NC")})
    error = refused(shared, text, options=options)
    assert isinstance(error, InvalidArgument)
    assert error.field == "inputs"


def test_an_export_is_loaded_again_as_it_was(served: Served) -> None:
    served.load("net", NEG)
    served.pipeline("p", step("s", 'x="image"', 'a="y"') + '[outputs]\na = "a"')
    blob = b"".join(served.core.export_network("p"))
    served.core.import_network("copy", "", {}, blob, replace=False).result(PATIENCE_SECONDS)
    np.testing.assert_array_equal(served.infer("copy", {"image": X})["a"], -X)


def test_no_more_requests_run_at_once_than_the_window_says(shared: Served) -> None:
    text = named("p", "endless", 'x="image"', 'a="y"') + '[outputs]\na = "a"'
    shared.pipeline("narrow", text, config={"PIPELINE_WINDOW": "1"})
    first, second = (shared.start("narrow", {"image": X}) for _ in range(2))
    assert second.job.started == 0.0
    second.job.token.cancel(Cancelled("enough"))
    with pytest.raises(Cancelled):
        second.result()
    first.job.token.cancel(Cancelled("enough"))
    with pytest.raises(Cancelled):
        first.result()
