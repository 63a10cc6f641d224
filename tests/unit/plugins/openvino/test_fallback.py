"""OPENVINO runs the shapes that it has compiled, and CPU runs the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from headrace.plugins.batch.executable_network import BatchNetwork
from headrace.plugins.hetero.executable_network import HeteroNetwork
from headrace.plugins.openvino import executable_network
from headrace.plugins.openvino.backend.compilation import Compilation
from headrace.plugins.openvino.backend.core import Runtime
from headrace.plugins.openvino.backend.executable_network import CompiledNetwork
from headrace.plugins.openvino.executable_network import FALLBACK_REQUESTS, OpenVinoNetwork
from headrace.plugins.openvino.plugin import OpenVinoPlugin
from headrace.plugins.openvino.running import shapes
from headrace.plugins.openvino.running.held_network import HeldNetwork
from headrace.plugins.openvino.running.shapes import TRIALS, ShapeTable
from headrace.plugins.openvino.sizes import key_of
from headrace.runtime.config.device_name import DeviceName, Member
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import (
    EndedWorker,
    FailedPrecondition,
    HeadraceError,
    InvalidArgument,
    Unavailable,
    UnsupportedLayers,
)
from headrace.runtime.execution.execution_timeout import Patience
from headrace.runtime.execution.job import Job, nobody_waits
from headrace.runtime.metrics.counters import NetworkCounters
from headrace.runtime.transform.options import NetworkOptions
from headrace.testing.case import network_of, parse
from headrace.testing.infer_request import InferRequest
from tests.support.patience import PATIENCE_SECONDS

NEGATIVE = "f (float[N,M] x) => (float[N,M] y) { y = Neg(x) }"
_TRIED = ShapeTable.tried
LOOKED_UP = "f (float[N] x, int64[M] i) => (float[M] y) { y = Gather(x, i) }"


pytestmark = pytest.mark.usefixtures("openvino_is_faster")


class Rig:
    """A loaded network, the device that runs each of its requests, and how often."""

    def __init__(
        self, plugin: Plugin, monkeypatch: pytest.MonkeyPatch, text: str, config: dict[str, str]
    ) -> None:
        network = network_of(text)
        loaded = plugin.load_network(Load(network, config))
        assert isinstance(loaded, OpenVinoNetwork)
        assert isinstance(plugin, OpenVinoPlugin)
        self.network, self.plugin = loaded, plugin
        self.counters = NetworkCounters("f", "OPENVINO")
        loaded.count_as("f", self.counters)
        self.ran: list[str] = []
        self._watch(monkeypatch, type(loaded._cpu), "_infer", "CPU")
        self._watch(monkeypatch, Compilation, "run", "OPENVINO")

    def _watch(
        self, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, device: str
    ) -> None:
        watched = getattr(owner, method)

        def run(*arguments: Any, **named: Any) -> Any:
            self.ran.append(device)
            return watched(*arguments, **named)

        monkeypatch.setattr(owner, method, run)

    def infer(self, **inputs: Any) -> Any:
        """The answer of a request. What follows from it has been compiled then."""
        self.ran.clear()
        found = InferRequest(self.network).infer(inputs)["y"]
        self.plugin._compiles.wait(self.network)
        return found

    def until_it_runs(self, **inputs: Any) -> None:
        for _ in range(2 + TRIALS):
            self.infer(**inputs)

    @property
    def reasons(self) -> dict[str, float]:
        """How many requests CPU ran, by reason."""
        return {
            each.labels[-1]: each.value
            for each in self.counters.series.snapshot()
            if each.family is FALLBACK_REQUESTS and isinstance(each.value, float | int)
        }


@pytest.fixture
def rig(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made: list[Rig] = []

    def make(text: str = NEGATIVE, **config: str) -> Rig:
        made.append(Rig(plugin, monkeypatch, text, config))
        return made[-1]

    yield make
    for each in made:
        each.network.close()


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_shape_goes_from_cpu_over_trials_to_openvino(rig: Any) -> None:
    network = rig()
    devices = []
    for _ in range(3 + TRIALS):
        assert np.array_equal(network.infer(x=X), -X)
        devices.append(list(network.ran))
    both = [["CPU", "OPENVINO"]] * TRIALS
    assert devices == [["CPU"], ["CPU"], *both, ["OPENVINO"]]
    assert network.reasons == {"compiling": 2}
    assert network.network.get_metric("COMPILED_SHAPES") == ["2x3"]
    assert network.network.get_metric("FALLBACK_SHAPES") == []
    assert network.network.get_metric("FALLBACK_LAYERS") == []


def test_a_network_that_says_its_sizes_is_compiled_at_the_load(rig: Any) -> None:
    network = rig("f (float[2,3] x) => (float[2,3] y) { y = Neg(x) }")
    assert network.network.get_metric("COMPILED_SHAPES") == ["2x3"]
    assert np.array_equal(network.infer(x=X), -X)
    assert network.ran == ["CPU", "OPENVINO"]


def test_cpu_answers_other_shapes_meanwhile(rig: Any) -> None:
    network = rig()
    network.until_it_runs(x=X)
    assert network.infer(x=X.T).shape == (3, 2)
    assert network.ran == ["CPU"]


def test_no_more_shapes_are_compiled_than_asked_for(rig: Any) -> None:
    network = rig(COMPILED_SHAPES="2")
    for size in (1, 2, 3):
        network.until_it_runs(x=np.ones((size, 3), np.float32))
    assert network.network.get_metric("COMPILED_SHAPES") == ["2x3", "3x3"]
    assert [each.device for each in network.network.shapes()] == ["OPENVINO.CPU"] * 2 + ["CPU"]


def test_a_shape_that_is_answered_otherwise_stays_on_cpu(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Compilation.run
    monkeypatch.setattr(
        Compilation,
        "run",
        lambda *given, **named: {
            name: np.multiply(value, 1.01)  # type: ignore[arg-type]  # it is an array
            for name, value in run(*given, **named).items()
        },
    )
    network = rig()
    for _ in range(5):
        assert np.array_equal(network.infer(x=X), -X)
    assert network.ran == ["CPU"]
    assert network.reasons == {"compiling": 2, "differed": 2}
    assert network.network.get_metric("COMPILED_SHAPES") == []
    (told,) = network.network.get_metric("FALLBACK_SHAPES")
    assert told.startswith("2x3: differed: output 'y' differs from CPU's by 0.05")


def test_so_does_one_that_openvino_is_slower_on_and_it_says_by_how_much(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slower(table: Any, key: Any, compilation: Any, _: Any, *, equal: bool) -> str:
        return _TRIED(table, key, compilation, (0.002, 0.001), equal=equal)

    monkeypatch.setattr(ShapeTable, "tried", slower)
    network = rig()
    network.until_it_runs(x=X)
    (told,) = network.network.get_metric("FALLBACK_SHAPES")
    assert told == "2x3: slower: in the median 2 ms on OpenVINO, 1 ms on CPU"


def test_so_does_one_that_cannot_be_compiled(rig: Any) -> None:
    text = """f (float[N,2] x) => (float[A,2] y) { s = Shape<end = 1>(x)
        three = Constant<value = int64[1] {3}>() m = Sub(s, three)
        a = Constant<value = int64[1] {0}>() z = Constant<value = int64[1] {0}>()
        e = Slice(x, z, m, a) y = Concat<axis = 0>(e, x) }"""
    network = rig(text)
    x = np.ones((3, 2), np.float32)
    for _ in range(3):
        assert network.infer(x=x).shape == (3, 2)
    assert network.ran == ["CPU"]
    assert network.reasons == {"compiling": 2, "unclaimed": 1}
    (told,) = network.network.get_metric("FALLBACK_SHAPES")
    assert "without elements" in told


def test_a_request_without_elements_runs_on_cpu(rig: Any) -> None:
    network = rig()
    for _ in range(4):
        assert network.infer(x=np.ones((0, 3), np.float32)).shape == (0, 3)
    assert network.ran == ["CPU"]
    assert network.reasons == {"empty": 4}


def test_values_that_are_none_for_openvino_run_on_cpu(rig: Any) -> None:
    network = rig("f (int64[N] x) => (int64[N] y) { y = Add(x, x) }")
    network.until_it_runs(x=np.array([1, 2]))
    assert network.infer(x=np.array([2**40, 1])).tolist() == [2**41, 2]
    assert network.ran == ["OPENVINO", "CPU"]
    assert network.reasons == {"compiling": 2, "values": 1}
    assert network.infer(x=np.array([3, 4])).tolist() == [6, 8]
    assert network.ran == ["OPENVINO"]


def test_cpu_says_what_is_wrong_with_a_request(rig: Any) -> None:
    network = rig(LOOKED_UP)
    x = np.arange(4, dtype=np.float32)
    network.until_it_runs(x=x, i=np.array([3]))
    with pytest.raises(InvalidArgument, match="within the inclusive range"):
        network.infer(x=x, i=np.array([4]))
    assert network.infer(x=x, i=np.array([1])).tolist() == [1]


def test_a_shape_that_cpu_refuses_is_never_compiled(rig: Any) -> None:
    network = rig("f (float[N] x, float[M] z) => (float[K] y) { y = Add(x, z) }")
    for _ in range(4):
        with pytest.raises(InvalidArgument):
            network.infer(x=np.ones(3, np.float32), z=np.ones(4, np.float32))
    assert network.network.get_metric("FALLBACK_SHAPES") == []
    assert network.network.get_metric("COMPILED_SHAPES") == []


def test_sizes_that_a_request_gives_as_values_are_a_part_of_its_shape(rig: Any) -> None:
    network = rig("f (float[N] x, int64[2] p) => (float[A,B] y) { y = Reshape(x, p) }")
    x = np.arange(6, dtype=np.float32)
    for shape in ((2, 3), (3, 2)):
        network.until_it_runs(x=x, p=np.array(shape))
        assert network.infer(x=x, p=np.array(shape)).shape == shape
        assert network.ran == ["OPENVINO"]
    with pytest.raises(InvalidArgument):
        network.infer(x=x, p=np.array([4, 2]))


def test_without_a_fallback_requests_wait_for_the_compile(rig: Any) -> None:
    network = rig(FALLBACK="NO")
    assert np.array_equal(network.infer(x=X), -X)
    assert network.ran == ["CPU", "OPENVINO"]  # CPU checks
    assert network.reasons == {}
    with pytest.raises(FailedPrecondition, match="no elements"):
        network.infer(x=np.ones((0, 3), np.float32))


def test_then_values_that_are_none_for_openvino_are_refused(rig: Any) -> None:
    network = rig("f (int64[N] x) => (int64[N] y) { y = Add(x, x) }", FALLBACK="NO")
    network.until_it_runs(x=np.array([1, 2]))
    with pytest.raises(InvalidArgument, match="beyond"):
        network.infer(x=np.array([2**40, 1]))


def test_what_cpu_does_not_run_is_refused(plugin: Plugin) -> None:
    model = parse("f (bfloat16[N] x) => (bfloat16[N] y) { y = Add(x, x) }")
    network = network_of(model)
    assert plugin.query_network(network, {}).unsupported
    with pytest.raises(UnsupportedLayers, match="Add on bfloat16, bfloat16 is not claimed"):
        plugin.load_network(Load(network))


def test_an_unload_waits_for_the_compile(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    began, goes_on = threading.Event(), threading.Event()
    network = rig()
    compile_with = network.network._compile_with

    def slowly(*given: Any, **named: Any) -> Any:
        began.set()
        assert goes_on.wait(PATIENCE_SECONDS)
        return compile_with(*given, **named)

    monkeypatch.setattr(network.network, "_compile_with", slowly)
    for _ in range(2):
        InferRequest(network.network).infer({"x": X})
    assert began.wait(PATIENCE_SECONDS)
    closed = threading.Thread(target=network.network.close)
    closed.start()
    assert closed.is_alive()
    goes_on.set()
    closed.join(PATIENCE_SECONDS)
    assert not closed.is_alive()


def test_a_compilation_counts_as_the_memory_by_which_the_process_has_grown(
    rig: Any, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [1000, 1000 + 300, 2000, 2000 + 40]  # a compile, and its first run
    told = iter([*first, 5000, 5000 + 70, 6000, 6000 + 5])
    for module in ("compiling", "backend.executable_network"):
        measures = f"headrace.plugins.openvino.{module}.proportional_bytes"
        monkeypatch.setattr(measures, lambda: next(told))
    network = rig(COMPILED_SHAPES="1")
    before = plugin.memory_bytes("CPU")
    network.until_it_runs(x=X)
    assert plugin.memory_bytes("CPU") == before + 340
    network.until_it_runs(x=X.T)
    assert plugin.memory_bytes("CPU") == before + 75
    assert [each.memory_bytes for each in network.network.shapes()] == [75, 0]


def test_the_network_says_what_runs_the_last_shapes_and_why(rig: Any) -> None:
    network = rig()
    network.infer(x=X)
    (new,) = network.network.shapes()
    assert new[:3] == ("2x3", "CPU", "compiling: answered 1 time(s)")
    for _ in range(2):
        network.infer(x=X)
    (tried,) = network.network.shapes()
    assert tried[:3] == (
        "2x3",
        "OPENVINO.CPU",
        "trial 1 of at most 32: in the median 1e+03 ms on OpenVINO, 2e+03 ms on CPU",
    )
    network.infer(x=X.T)
    assert [each.shape for each in network.network.shapes()] == ["3x2", "2x3"]


def test_it_says_why_a_shape_stays_on_cpu(rig: Any) -> None:
    network = rig(NEVER)
    (shape,) = network.network.shapes()
    assert shape.shape == "2"
    assert shape.device == "CPU"
    assert "not exact" in shape.reason


def test_the_reasons_are_those_that_the_table_names() -> None:
    known = {shapes.COMPILING, shapes.DIFFERED, shapes.EMPTY, shapes.SLOWER, shapes.UNCLAIMED}
    assert all(each in FALLBACK_REQUESTS.help for each in known | {shapes.VALUES, shapes.DOWN})


FIXED = "f (float[2,3] x) => (float[2,3] y) { y = Neg(x) }"


class Failing:
    """Has each compile fail with an error, and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: HeadraceError | None = None
        self.count = 0
        compile_ = OpenVinoPlugin._compiled

        def compiled(*given: Any, **named: Any) -> Any:
            self.count += 1
            if self.error is not None:
                raise self.error
            return compile_(*given, **named)

        monkeypatch.setattr(OpenVinoPlugin, "_compiled", compiled)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    return Failing(monkeypatch)


def test_a_shape_whose_compile_ended_the_process_stays_on_cpu(rig: Any, failing: Failing) -> None:
    network = rig()
    failing.error = EndedWorker("this model ended the process")
    network.until_it_runs(x=X)
    assert failing.count == 1
    failing.error = None
    network.until_it_runs(x=X.T)
    assert network.network.get_metric("COMPILED_SHAPES") == ["3x2"]
    assert network.network.get_metric("FALLBACK_SHAPES") == [
        "2x3: unclaimed: this model ended the process"
    ]


def test_after_three_shapes_none_of_the_network_is_compiled(rig: Any, failing: Failing) -> None:
    network = rig()
    failing.error = EndedWorker("this model ended the process")
    for size in (1, 2, 3, 4):
        network.until_it_runs(x=np.ones((size, 3), np.float32))
    assert failing.count == 3
    assert len(network.network.get_metric("FALLBACK_SHAPES")) == 4


def test_so_does_the_shape_of_a_network_whose_load_ended_it(rig: Any, failing: Failing) -> None:
    failing.error = EndedWorker("this model ended the process")
    network = rig(FIXED)
    assert network.network.notes == ("2x3 stays on CPU: unclaimed: this model ended the process",)
    assert np.array_equal(network.infer(x=X), -X)
    assert network.ran == ["CPU"]


def test_without_a_fallback_such_a_load_is_refused_and_such_a_request(
    rig: Any, failing: Failing
) -> None:
    network = rig(FALLBACK="NO")
    failing.error = EndedWorker("this model ended the process")
    with pytest.raises(FailedPrecondition, match="ended the process"):
        network.infer(x=X)
    with pytest.raises(EndedWorker):
        rig(FIXED, FALLBACK="NO")


def test_a_shape_that_cannot_be_compiled_now_is_compiled_later(rig: Any, failing: Failing) -> None:
    network = rig()
    failing.error = Unavailable("the process is being started again")
    for _ in range(4):
        assert np.array_equal(network.infer(x=X), -X)
    assert failing.count == 2
    failing.error = None
    network.until_it_runs(x=X)
    network.infer(x=X)
    assert network.ran == ["OPENVINO"]
    assert network.reasons == {"compiling": 6}


def test_without_a_fallback_a_request_is_told_to_come_again(rig: Any, failing: Failing) -> None:
    network = rig(FALLBACK="NO")
    failing.error = Unavailable("the process is being started again")
    with pytest.raises(Unavailable, match="started again"):
        network.infer(x=X)
    failing.error = None
    assert np.array_equal(network.infer(x=X), -X)


def fail_runs(monkeypatch: pytest.MonkeyPatch, error: HeadraceError) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(Compilation, "run", fails)


def test_where_the_process_has_ended_cpu_runs_a_shape_until_it_is_compiled_again(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = rig()
    network.until_it_runs(x=X)
    with monkeypatch.context() as ended:
        fail_runs(ended, Unavailable("the process ended"))
        assert np.array_equal(network.infer(x=X), -X)
    assert network.network.get_metric("COMPILED_SHAPES") == []
    assert network.reasons == {"compiling": 2, "down": 1}
    network.until_it_runs(x=X)
    network.infer(x=X)
    assert network.ran == ["OPENVINO"]


def test_a_shape_a_request_of_which_ended_the_process_stays_on_cpu(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = rig()
    network.until_it_runs(x=X)
    with monkeypatch.context() as ended:
        fail_runs(ended, EndedWorker("this request ended the process"))
        assert np.array_equal(network.infer(x=X), -X)
    network.until_it_runs(x=X)
    assert network.ran == ["CPU"]
    assert network.network.get_metric("FALLBACK_SHAPES") == [
        "2x3: down: this request ended the process"
    ]


def test_a_trial_in_which_the_process_ends_decides_nothing(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = rig()
    for _ in range(2):
        network.infer(x=X)
    with monkeypatch.context() as ended:
        fail_runs(ended, Unavailable("the process ended"))
        assert np.array_equal(network.infer(x=X), -X)
    assert network.network.get_metric("FALLBACK_SHAPES") == []
    network.until_it_runs(x=X)
    network.infer(x=X)
    assert network.ran == ["OPENVINO"]


def test_only_a_request_that_cpu_runs_for_certain_may_run_on_the_thread_that_submits_it(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, threads = rig(), list[int]()
    cpu = type(network.network._cpu)
    compute = cpu._infer

    def noted(executable: Any, job: Job) -> None:
        threads.append(threading.get_ident())
        compute(executable, job)

    monkeypatch.setattr(cpu, "_infer", noted)

    def runs_here() -> bool:
        network.network._on_cpu.inline.allowed = True
        threads.clear()
        ended = threading.Event()
        job = Job({"x": X}, lambda _: ended.set(), output_names=("y",), may_run_inline=True)
        network.network.submit(job)
        assert ended.wait(PATIENCE_SECONDS)
        network.plugin._compiles.wait(network.network)
        return threads == [threading.get_ident()]

    assert [runs_here() for _ in range(3)] == [True, True, False]  # the third is a trial


def test_the_shapes_of_a_request_that_cpu_runs_are_looked_at_once(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, looks = rig(), list[object]()

    def noted(*arguments: Any) -> object:
        looks.append(key_of(*arguments))
        return looks[-1]

    monkeypatch.setattr(executable_network, "key_of", noted)
    network.infer(x=X)
    assert looks == [(((2, 3), b""),)]


@pytest.mark.parametrize(("fallback", "works"), [("SHAPES", True), ("NO", False)])
def test_it_works_while_its_process_is_away_unless_cpu_may_run_nothing(
    rig: Any, fallback: str, works: bool
) -> None:
    network = rig(FALLBACK=fallback).network
    assert network.works({"OPENVINO.CPU": False}) is works
    assert not network.works({"OPENVINO.CPU": False, network._cpu.place.device: False})


def test_a_run_that_goes_on_after_its_timeout_is_ended_where_it_runs(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, ended = rig(), list[tuple[str, Job]]()
    network.until_it_runs(x=X)

    def patience(device: str) -> Any:
        return lambda _: Patience(0.0, lambda job: ended.append((device, job)))

    def goes_on(_: Any, job: Job, *__: Any, **___: Any) -> Any:
        network.network.patience().end(job)
        return {"y": -X}

    monkeypatch.setattr(CompiledNetwork, "patience", patience("OPENVINO"))
    monkeypatch.setattr(type(network.network._cpu), "patience", patience("CPU"))
    monkeypatch.setattr(Compilation, "run", goes_on)
    network.infer(x=X)
    assert [device for device, _ in ended] == ["OPENVINO"]
    network.network.patience().end(Job({}, nobody_waits))
    assert [device for device, _ in ended] == ["OPENVINO", "CPU"]
    assert not network.plugin._running


UNCLAIMED = "f (float[N] x) => (int64[1,M] y) { a = Neg(x) b = Abs(a) y = NonZero(b) }"


def test_layers_that_openvino_does_not_claim_are_refused(plugin: Plugin) -> None:
    network = network_of(UNCLAIMED)
    found = plugin.query_network(network, {})
    assert [each.op_type for each in found.unsupported] == ["NonZero"]
    with pytest.raises(UnsupportedLayers, match="NonZero is not claimed"):
        plugin.load_network(Load(network))


def test_with_all_as_the_fallback_cpu_runs_such_a_network_until_its_parts_are_faster(
    rig: Any,
) -> None:
    network = rig(UNCLAIMED, FALLBACK="ALL")
    x = np.array([0, 3, 0, 4], np.float32)
    ran = []
    for _ in range(3 + TRIALS):
        assert network.infer(x=x).tolist() == [[1, 3]]
        ran.append([*network.ran])
    in_parts, both = ["OPENVINO", "CPU"], ["CPU", "OPENVINO", "CPU"]
    assert ran[0] == ["CPU"]
    assert ran[2:] == [*[both] * TRIALS, in_parts]
    assert network.reasons == {"compiling": 2}
    (told,) = network.network.get_metric("FALLBACK_LAYERS")
    assert "(NonZero): NonZero is not claimed" in told
    assert any("until 2 parts on OpenVINO and CPU" in note for note in network.network.notes)
    (shape,) = network.network.shapes()
    assert shape[:3] == (
        "4",
        "2 parts on OpenVINO and CPU",
        "in the median 1e+03 ms on 2 parts on OpenVINO and CPU, 2e+03 ms on CPU",
    )
    assert [each.op_type for each in network.network.layers()][-1] == "NonZero"


def test_and_stays_on_cpu_where_its_parts_are_slower(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slower(table: Any, key: Any, compilation: Any, _: Any, *, equal: bool) -> str:
        in_parts = isinstance(compilation, HeldNetwork) and "parts" in compilation.where
        return _TRIED(table, key, compilation, (2.0, 1.0 + 2 * (not in_parts)), equal=equal)

    monkeypatch.setattr(ShapeTable, "tried", slower)
    network = rig(UNCLAIMED, FALLBACK="ALL")
    network.until_it_runs(x=X[0])
    network.infer(x=X[0])
    assert network.ran == ["CPU"]
    (told,) = network.network.get_metric("FALLBACK_SHAPES")
    assert (
        told == "3: slower: in the median 2e+03 ms on 2 parts on OpenVINO and CPU, 1e+03 ms on CPU"
    )


def test_and_on_cpu_alone_if_openvino_would_run_no_part(rig: Any) -> None:
    network = rig("f (float[N] x) => (int64[1,M] y) { y = NonZero(x) }", FALLBACK="ALL")
    for _ in range(3):
        assert network.infer(x=np.array([0, 3], np.float32)).tolist() == [[1]]
    assert network.ran == ["CPU"]
    assert network.reasons == {"unclaimed": 3}
    (shape,) = network.network.shapes()
    assert shape == ("all", "CPU", "it has layers that OPENVINO does not claim", 0)
    assert any("CPU runs the whole network: OPENVINO" in note for note in network.network.notes)


def test_an_unload_ends_the_runs_that_settle_its_parts(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = rig(UNCLAIMED, FALLBACK="ALL")
    began = threading.Event()

    def runs_until_cancelled(_: Any, job: Job) -> None:
        cancelled = threading.Event()
        job.token.attach(cancelled.set)
        began.set()
        assert cancelled.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(HeteroNetwork, "compute", runs_until_cancelled)
    for _ in range(2):
        InferRequest(network.network).infer({"x": X[0]})
    assert began.wait(PATIENCE_SECONDS)
    network.network.close()


def test_batches_of_many_sizes_keep_no_more_compilations_than_asked_for(plugin: Plugin) -> None:
    options = NetworkOptions(members=(Member(DeviceName("OPENVINO"), 4),))
    load = Load(network_of(NEGATIVE), {"COMPILED_SHAPES": "2"}, options)
    batched = plugin.services.devices.plugin("BATCH").load_network(load)
    assert isinstance(batched, BatchNetwork)
    assert isinstance(plugin, OpenVinoPlugin)
    for rows in (1, 2, 3, 4):
        x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
        for _ in range(2 + TRIALS):
            InferRequest(batched).infer({"x": x})
            plugin._compiles.wait(batched.inner)
    on = {each.shape: each.device for each in batched.shapes()}
    batched.close()
    assert [shape for shape, device in on.items() if device == "OPENVINO.CPU"] == ["4x3", "3x3"]


def test_a_request_that_parts_cannot_run_is_answered_by_the_whole_network(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = rig(UNCLAIMED, FALLBACK="ALL")
    network.until_it_runs(x=X[0])

    def fails(*_: Any) -> None:
        raise InvalidArgument("not this one", field="inputs")

    monkeypatch.setattr(HeteroNetwork, "compute", fails)
    assert network.infer(x=X[0]).tolist() == [[1, 2]]
    assert network.ran == ["CPU"]


def test_then_a_query_says_so(plugin: Plugin) -> None:
    network = network_of(UNCLAIMED)
    found = plugin.query_network(network, {"FALLBACK": "ALL"})
    assert not found.unsupported
    assert len(found.supported_layers) == 3


def test_then_other_networks_run_as_usual(rig: Any) -> None:
    network = rig(FALLBACK="ALL")
    network.until_it_runs(x=X)
    network.infer(x=X)
    assert network.ran == ["OPENVINO"]


def test_zeros_are_no_trial(rig: Any) -> None:
    """A client may warm the network up with them, and many faults do not show in them."""
    network = rig()
    for _ in range(2 + TRIALS):
        network.infer(x=np.zeros((2, 3), np.float32))
    assert network.ran == ["CPU"]
    network.infer(x=X)
    assert network.ran == ["CPU", "OPENVINO"]


def test_a_network_may_load_whose_tensors_lack_elements_with_likely_sizes(rig: Any) -> None:
    text = """f (float[N,M] x) => (float[A,B] y) <int64[1] s = {900}, int64[1] e = {2000},
        int64[1] a = {1}> { p = Slice(x, s, e, a) y = Concat<axis = 1>(p, x) }"""
    network = rig(text)
    for _ in range(3):
        assert network.infer(x=X).shape == (2, 3)
    assert network.ran == ["CPU"]
    network.until_it_runs(x=np.ones((1, 1000), np.float32) * np.arange(1000, dtype=np.float32))
    assert network.ran[-1] == "OPENVINO"


def test_a_query_and_a_load_with_free_sizes_compile_nothing(
    plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Runtime, "convert")
    network = network_of(NEGATIVE)
    assert not plugin.query_network(network, {}).unsupported
    plugin.load_network(Load(network)).close()


def test_a_number_of_axes_that_follows_from_sizes_is_found_with_likely_ones(
    plugin: Plugin,
) -> None:
    model = parse("f (float[N,1,M] x) => (float[A,B] y) { s = Squeeze(x) y = Neg(s) }")
    model.opset_import[0].version = 13
    network = network_of(model)
    assert not plugin.query_network(network, {}).unsupported


NEVER = """f (int64[2] x) => (int64[2] y)
    { a = Mul(x, x) b = Mul(a, a) c = Mul(b, b) y = Mul(c, c) }"""


def test_a_network_whose_only_shape_does_not_compile_loads_and_says_so(rig: Any) -> None:
    network = rig(NEVER)
    (note,) = [each for each in network.network.notes if "stays on CPU" in each]
    assert "not exact" in note
    assert network.infer(x=np.array([1, 2])).tolist() == [1, 2**16]
    assert network.ran == ["CPU"]


def test_without_a_fallback_it_is_refused(plugin: Plugin) -> None:
    network = network_of(NEVER)
    with pytest.raises(UnsupportedLayers, match="not exact"):
        plugin.load_network(Load(network, {"FALLBACK": "NO"}))
