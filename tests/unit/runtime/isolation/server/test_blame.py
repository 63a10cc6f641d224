"""Which model the end of a worker is blamed on."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.runtime.errors import EndedWorker, FailedPrecondition, ResourceExhausted
from headrace.runtime.intake import onnx_bytes
from headrace.runtime.isolation.server import blame
from headrace.runtime.isolation.server.blame import (
    ENDS,
    REFUSED_SECONDS,
    RUN,
    WITHIN_SECONDS,
    Blame,
    End,
    Work,
)
from headrace.runtime.network.network import Network
from headrace.runtime.network.type_inference import infer_types
from headrace.runtime.system.asker import Asker
from headrace.testing.case import network_of, parse

OPERATORS = {"a": "Relu", "b": "Abs", "c": "Neg"}


def network(name: str) -> Network:
    """A model of a structure of its own."""
    operator = OPERATORS.get(name, "Exp")
    model = parse(f"{name} (float[n] x) => (float[n] y) {{ y = {operator}(x) }}")
    return network_of(model)


def work(name: str, verb: str = "loaded", place: str = "0") -> Work:
    return Work(network(name), place, verb)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def end(*works: Work, how: str = "SIGSEGV") -> End:
    return End(how, how != "SIGKILL", works)


def is_blamed(blamed: Blame, each: Work) -> bool:
    try:
        blamed.check(each)
    except EndedWorker:
        return True
    return False


def test_a_load_that_crashed_the_worker_alone_is_blamed_with_signal_time_and_remedy() -> None:
    blamed = Blame("CPU", Clock())
    blamed.judge(end(work("a")))
    with pytest.raises(EndedWorker) as caught:
        blamed.check(work("a", "queried"))
    assert caught.value.message == (
        "this model ended the worker process of device CPU (SIGSEGV), at 1970-01-01 00:00:00 UTC "
        "while it was loaded; the device refuses the model until the server is restarted"
    )
    assert (caught.value.status, caught.value.field) == ("FAILED_PRECONDITION", "model")
    assert not is_blamed(blamed, work("b"))
    assert not is_blamed(blamed, work("a", place="GPU.1"))


def test_a_model_is_known_again_under_other_names() -> None:
    blamed = Blame("CPU", Clock())
    named = """{} (float[{}] {}) => (float[{}] {}) {{
        [{}] c = Constant<value = float {} {{1}}>()
        [{}] {} = Add({}, c) }}"""
    names = ("g", "n", "x", "n", "y", "l1", "k", "l2", "y", "x")
    first, other = parse(named.format(*names)), parse(named.replace("1}}", "2}}").format(*names))
    renamed = parse(named.format("h", "m", "a", "m", "b", "l3", "other", "l4", "b", "a"))
    renamed.doc_string = renamed.producer_name = "somebody's"
    other = parse(
        named.replace("{{1}}", "{{2}}").format(
            "g",
            "n",
            "x",
            "n",
            "y",
            "l1",
            "k",
            "l2",
            "y",
            "x",
        )
    )
    for each, known in ((first, True), (renamed, True), (other, False)):
        one = Work(network_of(each), "0", "loaded")
        if each is first:
            blamed.judge(end(one))
        assert is_blamed(blamed, one) is known


def test_telling_models_apart_changes_no_model() -> None:
    network = Network.from_bytes(
        parse(
            "g (float[n] x) => (float[n] y) { y = Add(x, c) }", {"c": np.ones(1, np.float32)}
        ).SerializeToString()
    )
    before = b"".join(onnx_bytes.serialize(network.model))
    Work(network, "0", "loaded").model()
    assert b"".join(onnx_bytes.serialize(network.model)) == before


def test_a_stranger_whose_models_end_workers_is_refused_for_a_while() -> None:
    clock = Clock()
    blamed = Blame("CPU", clock)
    eve, bob = Asker("eve", trusted=False), Asker("bob", trusted=False)
    for name in "abc":
        blamed.judge(end(Work(network(name), "0", "loaded", eve)))
    fresh = network("d")
    with pytest.raises(ResourceExhausted, match="your models have ended 3 worker processes"):
        blamed.check(Work(fresh, "0", "queried", eve))
    blamed.check(Work(fresh, "0", "queried", bob))
    blamed.check(Work(fresh, "0", "loaded", eve._replace(trusted=True)))  # as the repository's
    clock.now = REFUSED_SECONDS
    blamed.check(Work(fresh, "0", "queried", eve))


def test_whoever_may_unload_others_networks_is_not_refused() -> None:
    blamed = Blame("CPU", Clock())
    for name in "abc":
        blamed.judge(end(work(name)))
    blamed.check(work("d"))


def test_a_model_is_read_once_however_many_of_its_requests_were_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[Work] = []
    model = Work.model

    def kept(work: Work) -> str:
        read.append(work)
        return model(work)

    monkeypatch.setattr(Work, "model", kept)
    blamed, running = Blame("CPU", Clock()), work("a", RUN)
    blamed.judge(end(*[running] * 1000))
    assert read == [running]


def test_a_model_whose_file_has_changed_is_blamed_by_the_digest_that_it_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def changed(_: Network) -> Network:
        raise FailedPrecondition("the model's file was written to since it was loaded")

    blamed, first, other = Blame("CPU", Clock()), work("a"), work("b")
    assert first.network.digest != other.network.digest
    monkeypatch.setattr(Network, "clone", changed)
    blamed.judge(end(first))
    assert is_blamed(blamed, first)
    assert not is_blamed(blamed, other)


def test_of_several_models_at_work_none_is_blamed_and_the_loaded_ones_are_suspected() -> None:
    blamed = Blame("CPU", Clock())
    for _ in range(2 * ENDS):
        blamed.judge(end(work("a"), work("b", "queried"), work("c", RUN)))
    assert not any(is_blamed(blamed, work(name)) for name in "abc")
    assert [blamed.suspects(work(name)) for name in "abc"] == [True, True, False]
    blamed.acquit(work("a"))
    assert [blamed.suspects(work(name)) for name in "abc"] == [False, True, False]


def test_one_model_is_at_work_however_often_it_is_loaded_and_run() -> None:
    blamed = Blame("CPU", Clock())
    blamed.judge(end(work("a"), work("a", "queried"), work("a", RUN)))
    assert blamed.suspects(work("a"))
    assert not is_blamed(blamed, work("a"))  # it may have been the request
    blamed.judge(end(work("a"), work("a", "queried")))
    assert is_blamed(blamed, work("a"))


@pytest.mark.parametrize(("verb", "how"), [(RUN, "SIGSEGV"), ("loaded", "SIGKILL")])
def test_what_proves_little_is_blamed_the_third_time_within_an_hour(verb: str, how: str) -> None:
    clock = Clock()
    blamed = Blame("CPU", clock)
    for late in (0, 0, WITHIN_SECONDS):
        clock.now += late + 1
        blamed.judge(end(work("a", verb), how=how))
        assert not is_blamed(blamed, work("a"))
    clock.now += 1
    blamed.judge(end(work("a", verb), how=how))
    assert not is_blamed(blamed, work("a"))
    blamed.judge(end(work("a", verb), how=how))
    with pytest.raises(EndedWorker, match="ended 3 worker processes"):
        blamed.check(work("a"))


def test_a_model_is_known_again_when_a_virtual_device_has_inferred_its_types() -> None:
    blamed = Blame("CPU", Clock())
    blamed.judge(end(work("a")))
    model = "a (float[n] x) => (float[n] y) { t = Relu(x) y = Relu(t) }"
    plain = network_of(model)
    inferred = plain.clone()
    infer_types(inferred.model)
    inferred.model.graph[0].metadata_props["affinity"] = "CPU"
    assert inferred.to_bytes() != plain.to_bytes()
    assert Work(inferred, "0", "loaded").model() == Work(plain, "0", "loaded").model()


def test_a_worker_that_is_killed_while_idle_or_running_is_nobodys_fault() -> None:
    blamed = Blame("CPU", Clock())
    for _ in range(2 * ENDS):
        blamed.judge(end(how="SIGKILL"))
        blamed.judge(end(work("a", RUN), how="SIGKILL"))
    assert not is_blamed(blamed, work("a"))


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blame, "REMEMBERED", 2)
    blamed = Blame("CPU", Clock())
    for name in "abc":
        blamed.judge(end(work(name)))
    assert [is_blamed(blamed, work(name)) for name in "abc"] == [False, True, True]
