"""Pipelines and their steps with a response cache."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.errors import FailedPrecondition, InvalidArgument
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import LoadRequest
from headrace.testing.case import parse
from tests.support.patience import PATIENCE_SECONDS
from tests.unit.plugins.pipeline.test_plugin import ABS, NEG, ONE_ROW, Served, X, named

CACHED = {"RESPONSE_CACHE": "YES"}
DRAWS = "m (float[N,2] x) => (float[N,2] y) { y = RandomNormalLike(x) }"
STEP = named("s", "net", 'x="image"', 'a="y"') + '[outputs]\na = "a"'
OWN = """
    [[step]]
    name = "s"
    model = "own.onnx"
    config = {RESPONSE_CACHE = "YES"}
    inputs = {x = "image"}
    outputs = {a = "y"}
    [outputs]
    a = "a"
"""


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.core.stop()


def counted(served: Served, name: str) -> tuple[object, object]:
    """The hits and misses of a network."""
    entry = served.core.networks.find(name)
    assert entry.executable is not None
    metric = entry.executable.get_metric
    return metric("RESPONSE_CACHE_HITS"), metric("RESPONSE_CACHE_MISSES")


def test_a_pipeline_answers_again_without_its_steps(served: Served) -> None:
    served.load("net", NEG)
    served.pipeline("p", STEP, config=CACHED)
    for _ in range(3):
        np.testing.assert_array_equal(served.infer("p", {"image": X})["a"], -X)
    assert counted(served, "p") == (2, 1)


def test_a_pipeline_gives_no_reply_of_a_network_that_was_replaced(served: Served) -> None:
    served.load("net", NEG)
    served.pipeline("p", STEP, config=CACHED)
    np.testing.assert_array_equal(served.infer("p", {"image": X})["a"], -X)
    served.load("net", ABS, replace=True)
    np.testing.assert_array_equal(served.infer("p", {"image": X})["a"], np.abs(X))
    assert counted(served, "p") == (0, 2)


def test_a_pipeline_around_another_one_gives_no_reply_of_before_either(served: Served) -> None:
    served.load("net", NEG)
    served.pipeline("inner", STEP)
    outer = named("t", "inner", 'image="page"', 'b="a"') + '[outputs]\nb = "b"'
    served.pipeline("outer", outer, config=CACHED)
    np.testing.assert_array_equal(served.infer("outer", {"page": X})["b"], -X)
    served.load("net", ABS, replace=True)
    np.testing.assert_array_equal(served.infer("outer", {"page": X})["b"], np.abs(X))


def test_versions_that_share_requests_get_their_share(served: Served) -> None:
    owner = object()
    for version, text in (("1", NEG), ("2", ABS)):
        request = LoadRequest("net", DeviceName.parse("CPU"), version=version)
        model = parse(text).SerializeToString()
        load = served.core.load_network(request, partial(Network.from_bytes, model), owner=owner)
        load.result(PATIENCE_SECONDS)
    served.pipeline("p", STEP, config=CACHED)
    served.core.set_traffic("net", {"1": 50, "2": 50})
    signs = [np.asarray(served.infer("p", {"image": X})["a"])[0, 0] for _ in range(4)]
    assert sorted(signs) == [-1, -1, 1, 1]
    served.core.set_traffic("net", {"1": 100})
    for _ in range(2):
        np.testing.assert_array_equal(served.infer("p", {"image": X})["a"], -X)
    served.core.set_traffic("net", {"2": 100})
    np.testing.assert_array_equal(served.infer("p", {"image": X})["a"], np.abs(X))
    assert counted(served, "p") == (1, 2)


def test_a_network_that_begins_to_draw_is_asked_each_time(served: Served) -> None:
    served.load("net", NEG)
    served.pipeline("p", STEP, config=CACHED)
    served.load("net", DRAWS, replace=True)
    one, other = (np.asarray(served.infer("p", {"image": X})["a"]) for _ in range(2))
    assert (one != other).any()


def test_a_pipeline_with_a_step_that_draws_is_refused(served: Served) -> None:
    served.load("net", DRAWS)
    with pytest.raises(InvalidArgument, match=r"random numbers \(s/y\)"):
        served.pipeline("p", STEP, config=CACHED)


def test_equal_rows_of_a_step_run_once_if_its_network_keeps_replies(served: Served) -> None:
    request = LoadRequest("net", DeviceName.parse("CPU"), CACHED)
    model = parse(ONE_ROW).SerializeToString()
    load = served.core.load_network(request, lambda: Network.from_bytes(model))
    load.result(PATIENCE_SECONDS)
    rows = named("s", "net", 'x="image"', 'a="y"', 'each = "image"') + '[outputs]\na = "a"'
    served.pipeline("p", rows)
    image = np.array([[1, 2], [3, 4], [1, 2], [1, 2]], np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(served.infer("p", {"image": image})["a"], -image)
    assert counted(served, "net") == (6, 2)


def test_the_model_of_a_step_may_keep_replies(served: Served) -> None:
    served.pipeline("p", OWN, {"own.onnx": NEG})
    started = [served.start("p", {"image": X}) for _ in range(2)]
    for each in started:
        np.testing.assert_array_equal(each.result()["a"], -X)
    again = served.start("p", {"image": X})
    np.testing.assert_array_equal(again.result()["a"], -X)
    assert again.job.started == 0.0


def test_each_identity_has_its_own_replies_of_a_step(served: Served) -> None:
    served.pipeline("p", OWN, {"own.onnx": NEG})
    served.infer("p", {"image": X}, owner="bob")
    eve = served.start("p", {"image": X}, owner="eve")
    eve.result()
    assert eve.job.started > 0
    bob = served.start("p", {"image": X}, owner="bob")
    bob.result()
    assert bob.job.started == 0.0


def test_pipelines_that_have_come_to_run_each_other_in_a_circle_end(served: Served) -> None:
    for name in ("b", "c"):
        served.load(name, NEG)
    for name, ran in (("a", "b"), ("b", "c"), ("c", "a")):
        around = named("s", ran, 'x="x"', 'y="y"') + '[outputs]\ny = "y"'
        served.pipeline(name, around, config=CACHED, replace=True)
    with pytest.raises(FailedPrecondition, match="run each other"):
        served.infer("a", {"x": X})


def test_a_network_is_asked_once_however_often_pipelines_run_it(served: Served) -> None:
    served.load("n0", NEG)
    for depth in range(1, 8):
        steps = [
            named(
                f"s{each}",
                f"n{depth - 1}",
                f'x="{"x" if not each else f"t{each}"}"',
                f't{each + 1}="y"',
            )
            for each in range(16)
        ]
        text = "".join(steps) + '[outputs]\ny = "t1"'
        served.pipeline(f"n{depth}", text, config=CACHED)
    executable = served.core.networks.find("n7").executable
    assert executable is not None
    sources = executable.sources()
    assert sources is not None
    assert len(sources) == 7
    assert executable.random_layers() == ()


def test_a_pipeline_that_keeps_replies_is_seen_to_run_itself(served: Served) -> None:
    served.load("net", NEG)
    served.pipeline("p", STEP, config=CACHED)
    around = named("t", "p", 'image="x"', 'y="a"') + '[outputs]\ny = "y"'
    with pytest.raises(InvalidArgument, match="would run itself"):
        served.pipeline("net", around, replace=True)


def test_a_pipeline_that_keeps_replies_is_ready_as_its_networks_are(served: Served) -> None:
    served.load("net", NEG)
    entry = served.pipeline("p", STEP, config=CACHED)
    assert entry.executable is not None
    assert (entry.executable.runs, entry.executable.unready()) == (frozenset({("net", "")}), "")
    served.core.unload_network("net").result(PATIENCE_SECONDS)
    assert "step 's'" in entry.executable.unready()
