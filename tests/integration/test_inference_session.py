"""`InferenceSession` does what ONNX Runtime's own does, on a server."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import headrace.client.onnxruntime as served
from headrace.client import Client, InferenceSession, errors
from headrace.client.onnxruntime.refusals import METHODS
from headrace.testing.case import parse
from tests.integration.harness import CALL_SECONDS, Server, until
from tests.support.manual import REPOSITORY

MODELS = (
    REPOSITORY / ".cache/magika/model.onnx",
    *sorted((REPOSITORY / ".cache/small-zoo").rglob("*.onnx")),
)
ADD = parse("add (float[n,2] x, float[n,2] y) => (float[n,2] z) { z = Add(x, y) }")
TWO = parse(
    """two (int64[2] x) => (int64[2] doubled, int64[2] negative) {
        doubled = Add(x, x)
        negative = Neg(x)
    }"""
)
X, Y = np.ones((3, 2), np.float32), np.arange(6, dtype=np.float32).reshape(3, 2)
FEED = {"x": X, "y": Y}


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with Server("--devices", "CPU,TEMPLATE,AUTO") as server:
        yield server.address
        with Client(server.address) as client:
            assert client.networks() == []  # every session has unloaded its network
        assert server.stop() == 0, server.log()


@pytest.fixture(autouse=True)
def _environment(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_SERVER", target)


def local(model: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    data = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def on_server(model: Any, **options: Any) -> InferenceSession:
    return InferenceSession(model, device="CPU", **options)


def ports(nodes: Any) -> list[tuple[str, str, list[Any]]]:
    return [(node.name, node.type, node.shape) for node in nodes]


def generated(session: Any) -> dict[str, Any]:
    """Inputs that fit: zeros and ones, and one for every free axis."""
    numpy_types = {"double": "float64", "float": "float32"}
    found = {}
    for node in session.get_inputs():
        kind = node.type.removeprefix("tensor(").removesuffix(")")
        shape = [size if isinstance(size, int) else 1 for size in node.shape]
        found[node.name] = np.indices(shape).sum(0).astype(numpy_types.get(kind, kind)) % 2
    return found


# -- results and descriptions --


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_real_networks_have_the_same_results_and_descriptions(path: Path) -> None:
    reference = local(path)
    with on_server(path) as session:
        assert ports(session.get_inputs()) == ports(reference.get_inputs())
        assert ports(session.get_outputs()) == ports(reference.get_outputs())
        feed = generated(reference)
        expected = reference.run(None, feed)
        for found, wanted in zip(session.run(None, feed), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
            assert found.dtype == wanted.dtype


def test_a_model_may_be_bytes_or_a_path(tmp_path: Path) -> None:
    path = tmp_path / "add.onnx"
    onnx.save(ADD, path)
    for model in (str(path), path, ADD.SerializeToString(), bytearray(ADD.SerializeToString())):
        with on_server(model) as session:
            np.testing.assert_array_equal(session.run(["z"], FEED)[0], X + Y)


def test_outputs_come_in_the_order_that_is_asked_for() -> None:
    feed = {"x": np.array([1, 2], np.int64)}
    reference = local(TWO)
    with on_server(TWO) as session:
        for names in (None, [], ["negative"], ["negative", "doubled"]):
            found, expected = session.run(names, feed), reference.run(names, feed)
            assert [each.tolist() for each in found] == [each.tolist() for each in expected]


def test_outputs_may_be_changed() -> None:
    with on_server(ADD) as session:
        (found,) = session.run(None, FEED)
        found += 1
        np.testing.assert_array_equal(session.run(None, FEED)[0], X + Y)


def test_sequences_and_strings_come_as_from_onnx_runtime() -> None:
    split = parse(
        """split (float[4] x) => (seq(float[2]) parts) {
            size = Constant<value_int = 2>()
            parts = SplitToSequence(x, size)
        }"""
    )
    text = helper.make_model(
        helper.make_graph(
            [helper.make_node("Identity", ["x"], ["y"])],
            "text",
            [helper.make_tensor_value_info("x", TensorProto.STRING, [None])],
            [helper.make_tensor_value_info("y", TensorProto.STRING, ["n"])],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    feeds: list[tuple[onnx.ModelProto, Mapping[str, Any]]] = [
        (split, {"x": np.arange(4, dtype=np.float32)}),
        (text, {"x": np.array(["a", "ö"], object)}),
    ]
    for model, feed in feeds:
        reference = local(model)
        with on_server(model) as session:
            assert ports(session.get_inputs()) == ports(reference.get_inputs())
            assert ports(session.get_outputs()) == ports(reference.get_outputs())
            found, expected = session.run(None, feed), reference.run(None, feed)
        assert [np.asarray(each).tolist() for each in found] == [
            np.asarray(each).tolist() for each in expected
        ]
        assert type(found[0]) is type(expected[0])


@pytest.mark.parametrize("name", sorted(set(TensorProto.DataType.keys()) - {"UNDEFINED"}))
def test_types_are_spelled_as_onnx_runtime_spells_them(name: str) -> None:
    number = TensorProto.DataType.Value(name)
    ends = [helper.make_tensor_value_info(end, number, [1, "n", None]) for end in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    try:
        reference = local(model)
    except Exception as error:  # noqa: BLE001 - its errors share no class
        pytest.skip(f"ONNX Runtime has no such type: {str(error)[:60]}")
    with on_server(model) as session:
        assert ports(session.get_inputs()) == ports(reference.get_inputs())
        assert ports(session.get_outputs()) == ports(reference.get_outputs())


def test_a_model_says_of_itself_what_onnx_runtime_reads() -> None:
    model = parse("add (float[n,2] x, float[n,2] y) => (float[n,2] z) { z = Add(x, y) }")
    model.producer_name, model.domain, model.doc_string = "tests", "d", "describes"
    model.model_version = 7
    model.graph.doc_string = "of the graph"
    helper.set_model_props(model, {"long": "x" * 100_000, "empty": "", "ö": "ü"})
    wanted = local(model).get_modelmeta()
    with on_server(model) as session:
        found = session.get_modelmeta()
    for name in served.ModelMetadata.__dataclass_fields__:
        assert getattr(found, name) == getattr(wanted, name), name


def test_providers_are_those_that_do_what_the_device_does() -> None:
    with on_server(ADD, providers=["CUDAExecutionProvider"]) as session:
        assert session.get_providers() == ["CPUExecutionProvider"]
        assert session.get_provider_options() == {"CPUExecutionProvider": {}}


# -- asynchronous runs --


def outcome(session: Any, feed: Mapping[str, Any], names: Any = None) -> tuple[Any, ...]:
    told, event = [], threading.Event()

    def callback(*of_run: Any) -> None:
        told.append(of_run)
        event.set()

    session.run_async(names, feed, callback, "mine")
    assert event.wait(CALL_SECONDS)
    (found,) = told
    return tuple(found)


def test_run_async_tells_results_and_the_callers_data() -> None:
    with on_server(ADD) as session:
        (found,), mine, error = outcome(session, FEED)
        np.testing.assert_array_equal(found, X + Y)
        assert (mine, error) == ("mine", "")
        assert outcome(local(ADD), FEED)[1:] == (mine, error)


def test_run_async_tells_errors() -> None:
    broken = parse(
        """broken (int64[n] x) => (int64[m] y) {
            two = Constant<value_ints = [2]>()
            y = Reshape(x, two)
        }"""
    )
    with on_server(broken) as session:
        found, mine, error = outcome(session, {"x": np.arange(3)})
        assert (found, mine) == ([], "mine")
        assert error


def test_a_callback_may_run_the_session() -> None:
    with on_server(ADD) as session:
        found, event = [], threading.Event()

        def callback(*_: Any) -> None:
            found.extend(session.run(None, FEED))
            event.set()

        session.run_async(None, FEED, callback)
        assert event.wait(CALL_SECONDS)
        np.testing.assert_array_equal(found[0], X + Y)


# -- networks and their ends --


def names_on(target: str) -> list[str]:
    with Client(target) as client:
        return [network.name for network in client.networks()]


def test_a_network_of_the_server_is_used_by_its_name(target: str) -> None:
    with Client(target) as client:
        network = client.load_network(ADD, device="CPU", name="shared")
        for name in ("shared", "shared:1"):
            with InferenceSession(name) as session:
                np.testing.assert_array_equal(session.run(None, FEED)[0], X + Y)
                assert session.get_modelmeta().graph_name == "shared"
        assert names_on(target) == ["shared"]
        network.unload()


def test_a_file_wins_over_a_network_of_its_name(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(TWO, "shared")
    with Client(target) as client:
        network = client.load_network(ADD, device="CPU", name="shared")
        with on_server("shared") as session:
            assert [node.name for node in session.get_inputs()] == ["x"]
        network.unload()


@pytest.mark.parametrize("model", ["missing.onnx", "missing", "missing:2"])
def test_what_is_neither_a_file_nor_a_network_is_said(model: str) -> None:
    with pytest.raises(errors.NotFound, match=f"there is no file '{model}', and the server says"):
        InferenceSession(model)


@pytest.mark.parametrize("model", ["folder/missing.onnx", "", "a b"])
def test_what_can_be_no_network_is_said(model: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"there is no file .* not a network's name"):
        InferenceSession(model + "\n")


def test_sessions_of_one_model_do_not_meet(target: str) -> None:
    with on_server(ADD) as one, on_server(ADD) as other:
        assert len(set(names_on(target))) == 2
        one.close()
        np.testing.assert_array_equal(other.run(None, FEED)[0], X + Y)


def test_sessions_share_a_network_whose_name_they_give(target: str) -> None:
    for _ in range(2):
        with on_server(ADD, name="common") as session:
            np.testing.assert_array_equal(session.run(None, FEED)[0], X + Y)
        assert names_on(target) == ["common"]
    with Client(target) as client:
        client.network("common").unload()


def test_a_session_that_nobody_uses_any_more_unloads_its_network(target: str) -> None:
    session = on_server(ADD)
    assert len(names_on(target)) == 1
    del session
    gc.collect()
    until(lambda: names_on(target) == [])


def test_a_program_that_closes_nothing_leaves_nothing(target: str) -> None:
    program = f"from headrace.client import InferenceSession as S; S({ADD.SerializeToString()!r})"
    for kept in ("", "s = "):
        line = program.replace("S(b", f"{kept}S(b")
        ran = subprocess.run([sys.executable, "-c", line], check=True, capture_output=True)
        assert not ran.stderr, ran.stderr
        until(lambda: names_on(target) == [])


def test_a_session_uses_a_client_and_leaves_it_open(target: str) -> None:
    with Client(target) as client:
        with on_server(ADD, target=client) as session:
            assert session.run(None, FEED)
        assert client.networks() == []


def test_a_closed_session_says_so() -> None:
    session = on_server(ADD)
    session.close()
    session.close()
    with pytest.raises(errors.FailedPrecondition, match="closed"):
        session.run(None, FEED)


def test_a_model_that_cannot_be_loaded_leaves_no_connection() -> None:
    with pytest.raises(errors.Error):
        on_server(b"no model")


def test_threads_share_a_session() -> None:
    with on_server(ADD) as session:
        wrong = []

        def run() -> None:
            for number in range(20):
                (found,) = session.run(None, {"x": X * number, "y": Y})
                if not np.array_equal(found, X * number + Y):
                    wrong.append(number)

        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


# -- errors and refusals --


def test_what_does_not_fit_is_refused_as_by_onnx_runtime() -> None:
    with on_server(ADD) as session:
        wrong: list[tuple[Any, Any]] = [
            (None, {"x": X}),
            (None, {"x": X, "y": Y.astype(np.float64)}),
            (["nothing"], FEED),
            (None, {**FEED, "more": X}),
        ]
        for names, feed in wrong:
            with pytest.raises(Exception):  # noqa: B017, PT011 - its errors share no class
                local(ADD).run(names, feed)
            with pytest.raises(errors.InvalidArgument):
                session.run(names, feed)


def test_a_run_that_is_to_terminate_does_not_begin() -> None:
    options = served.RunOptions()
    options.terminate = True
    with on_server(ADD) as session, pytest.raises(errors.Cancelled):
        session.run(None, FEED, options)


@pytest.mark.parametrize("method", METHODS)
def test_what_a_server_cannot_do_is_refused_by_its_name(method: str) -> None:
    with pytest.raises(NotImplementedError, match=f"{method} does not work on a server: "):
        getattr(InferenceSession, method)()


@pytest.mark.parametrize(
    "use",
    [
        lambda: served.OrtValue.ortvalue_from_numpy(X),
        lambda: served.IOBinding(),
        lambda: served.SessionOptions().register_custom_ops_library("x.so"),
        lambda: served.SessionOptions().add_initializer("w", None),
    ],
)
def test_objects_that_a_server_cannot_use_are_refused(use: Any) -> None:
    with pytest.raises(NotImplementedError, match="does not work on a server"):
        use()
    assert not isinstance(X, served.OrtValue)


# -- the names of ONNX Runtime --


def public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_a_session_has_all_methods_of_onnx_runtimes() -> None:
    assert public(onnxruntime.InferenceSession) <= public(InferenceSession)


def test_enumerations_have_the_same_members() -> None:
    for name in ("GraphOptimizationLevel", "ExecutionMode", "ExecutionOrder"):
        theirs, ours = getattr(onnxruntime, name), getattr(served, name)
        assert {each: int(number) for each, number in theirs.__members__.items()} == {
            each.name: int(each) for each in ours
        }


@pytest.mark.parametrize("name", ["SessionOptions", "RunOptions"])
def test_options_have_the_same_attributes_and_defaults(name: str) -> None:
    theirs, ours = getattr(onnxruntime, name)(), getattr(served, name)()
    for attribute in public(ours):
        default = getattr(theirs, attribute)
        if not callable(default):
            wanted = default if isinstance(default, str) else int(default)
            assert getattr(ours, attribute) == wanted, attribute


def test_options_may_be_set_and_are_given_back() -> None:
    options = served.SessionOptions()
    options.intra_op_num_threads = 2
    options.graph_optimization_level = served.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.add_session_config_entry("key", "value")
    with on_server(ADD, sess_options=options) as session:
        assert session.get_session_options() is options
    assert options.get_session_config_entry("key") == "value"
