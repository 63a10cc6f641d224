"""Requests that are given to another version or device too, and how the answers are compared."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import onnx
import pytest

from headrace.plugins import pipeline, template
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.errors import (
    AlreadyExists,
    FailedPrecondition,
    HeadraceError,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from headrace.runtime.execution.job import Job
from headrace.runtime.loading.entry import Residence
from headrace.runtime.loading.registry import NetworkEntry, NetworkState
from headrace.runtime.loading.shadows import comparison, queue
from headrace.runtime.loading.shadows.queue import SpareTime, bytes_held
from headrace.runtime.loading.shadows.requests import is_chosen
from headrace.runtime.loading.shadows.shadow import NO_SHADOW, Shadow
from headrace.runtime.loading.table import OwnerLimits
from headrace.runtime.metrics.families import SHADOW_DIFFERENCE, SHADOW_REQUESTS
from headrace.runtime.network.network import Network
from headrace.runtime.pipelines.model import network_of
from headrace.runtime.system.asker import NOBODY, Asker, current_asker
from headrace.runtime.transform.options import LoadRequest
from headrace.server.repository.pipelines import parse_pipeline
from headrace.testing import networks
from headrace.testing.case import parse
from headrace.testing.counted import histogram, numbers
from headrace.testing.occupied import eventually
from tests.support.hook_plugin import Copies, HookPlugin
from tests.support.patience import PATIENCE_SECONDS

ADDS = "m (float[2] x) => (float[2] y) { y = Add(x, w) }"
DRAWS = "m (float[2] x) => (float[2] y) { y = RandomNormalLike(x) }"
X = np.array([1, 2], np.float32)
ALL = 100


class Hooked(HookPlugin):
    """Answers when `opened` is set. Loads nothing while `refuses` is True or somebody holds
    `compiling`."""

    opened = threading.Event()
    compiling = threading.Lock()
    refuses = False
    askers: ClassVar[list[Asker]] = []

    def _compile(self, *arguments: Any) -> Copies:
        with self.compiling:
            pass
        if self.refuses:
            raise FailedPrecondition("it is full")
        self.askers.append(current_asker())
        made = super()._compile(*arguments)
        infer = made._infer

        def when_opened(job: Job) -> None:
            self.opened.wait()
            infer(job)

        made._infer = when_opened  # type: ignore[method-assign]
        return made


class Served:
    """A core, and shorter words for what a server does with it."""

    def __init__(self, **limits: Any) -> None:
        self.core = Core(
            [
                PluginSource("TEMPLATE", lambda: template.create_plugin),
                PluginSource("PIPELINE", lambda: pipeline.create_plugin),
                PluginSource("HOOK", lambda: plugin_api(1)(Hooked)),
            ],
            blob_key=b"key",
            **limits,
        )
        self.owner = object()

    def load(
        self,
        version: str = "1",
        weights: tuple[float, float] = (3, 4),
        *,
        name: str = "m",
        text: str = ADDS,
        device: str = "TEMPLATE",
        **config: str,
    ) -> NetworkEntry:
        model: onnx.ModelProto = parse(text, {"w": np.array(weights, np.float32)})
        request = LoadRequest(name, DeviceName.parse(device), config, version=version)
        read = partial(Network.from_bytes, model.SerializeToString())
        load = self.core.load_network(request, read, owner=self.owner)
        return load.result(PATIENCE_SECONDS)

    def shadow(self, version: str = "", device: str = "", percent: int = ALL) -> None:
        load = self.core.set_shadow("m", Shadow(version, device, percent))
        if load is not None:
            load.result(PATIENCE_SECONDS)

    def infer(self, times: int = 1, name: str = "m", **more: Any) -> None:
        """Sends requests to version 1, one after the other."""
        for _ in range(times):
            ended = threading.Event()
            job = Job({"x": X}, lambda _, ended=ended: ended.set())  # type: ignore[misc]
            for key, value in more.items():
                setattr(job, key, value)
            entry = self.core.networks.acquire(name, "1")
            self.core.networks.submit(entry, job)
            assert ended.wait(PATIENCE_SECONDS)
            assert job.error is None

    def counts(self, of: str = "m") -> Mapping[tuple[str, ...], float]:
        counted = numbers(self.core.shadows.snapshot(), SHADOW_REQUESTS, of)
        return {labels: count for labels, count in counted.items() if count}

    def become(self, of: str = "m", **counts: int) -> None:
        """Waits until the shadow's requests have these outcomes, and no others."""
        wanted = {(outcome,): count for outcome, count in counts.items()}
        eventually(lambda: self.counts(of) == wanted, f"they were to be {counts}")

    def loaded(self) -> dict[str, str]:
        return {entry.key.name: entry.device for entry in self.core.networks.entries()}


@pytest.fixture
def served() -> Iterator[Served]:
    Hooked.opened.set()
    made = Served()
    yield made
    Hooked.opened.set()
    made.core.stop()


def test_a_version_with_one_changed_weight_is_found_within_200_requests_at_5_per_cent(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.load("1")
    served.load("2", (3, 4.5))
    served.shadow("2", percent=5)
    with caplog.at_level(logging.WARNING):
        served.infer(200)
        served.become(differs=10)
    (told,) = (each.getMessage() for each in caplog.records)
    assert "output 'y' differs from version 1's by 0.5, and its largest number is 6" in told


def test_a_version_that_is_the_same_answers_equally(served: Served) -> None:
    served.load("1")
    served.load("2")
    served.shadow("2", percent=5)
    served.infer(100)
    served.become(equal=5)
    observed = histogram(served.core.shadows.snapshot(), SHADOW_DIFFERENCE, "m")
    assert (observed.count, observed.sum) == (5, 0)


def test_a_version_that_differs_by_rounding_is_close(served: Served) -> None:
    served.load("1")
    served.load("2", (3, 4.0001))
    served.shadow("2")
    served.infer()
    served.become(close=1)
    observed = histogram(served.core.shadows.snapshot(), SHADOW_DIFFERENCE, "m")
    assert observed.sum == pytest.approx(0.0001 / 6, rel=0.1)


def test_a_version_that_cannot_answer_is_counted_and_told(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.load("1")
    served.load("2", text=ADDS.replace("x", "other"))
    served.shadow("2")
    with caplog.at_level(logging.WARNING):
        served.infer(2)
        served.become(failed=2)
    assert len(caplog.records) == 1


def test_requests_to_the_shadow_itself_are_compared_with_nothing(served: Served) -> None:
    served.load("1")
    served.load("2")
    served.shadow("1")
    served.infer(3)
    assert served.counts() == {}


def test_callers_do_not_wait_for_a_shadow_and_what_does_not_fit_is_dropped(
    served: Served,
) -> None:
    served.load("1")
    served.load("2", device="HOOK")
    Hooked.opened.clear()
    served.shadow("2")
    served.infer(20)  # which all have their answers
    served.become(dropped=4)


def test_what_waits_is_bounded_for_all_networks_together_and_shared_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparison, "_RUN_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(queue, "_MOST_BYTES", 17 * queue._LEAST_BYTES - 1)  # room for 16
    made = Served()
    try:
        Hooked.opened.clear()
        for name in ("m@a", "n@a", "n@b"):
            made.load("1", name=name)
            made.load("2", name=name, device="HOOK")
            made.core.set_shadow(name, Shadow("2", percent=ALL))
        made.infer(8, "m@a")
        made.infer(8, "n@a")  # an eighth stays for others
        made.become("n@a", dropped=2)
        made.infer(3, "n@b")
        made.become("n@b", dropped=1)
        Hooked.opened.set()
        made.become("m@a", differs=8)
        made.become("n@a", dropped=2, differs=6)
        made.become("n@b", dropped=1, differs=2)
        made.infer(1, "n@a")
        made.become("n@a", dropped=2, differs=7)
    finally:
        Hooked.opened.set()
        made.core.stop()


def test_a_shadow_whose_run_does_not_end_keeps_no_other_one_waiting(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "_RUN_SECONDS", 0.1)
    monkeypatch.setattr(comparison, "_PATIENCE_SECONDS", 0.1)
    Hooked.opened.clear()
    for name, device in (("m@a", "HOOK"), ("m@b", "TEMPLATE")):
        served.load("1", name=name)
        served.load("2", name=name, device=device)
        served.core.set_shadow(name, Shadow("2", percent=ALL))
    served.infer(1, "m@a")
    served.become("m@a", failed=1)
    served.infer(1, "m@a")  # waits: its tenant has used much time
    served.infer(1, "m@b")
    served.become("m@b", equal=1)
    assert served.counts("m@a") == {("failed",): 1}
    served.core.shadows._queue._spare_time._due.clear()
    served.become("m@a", failed=1, dropped=1)
    Hooked.opened.set()
    eventually(lambda: not served.core.networks.find("m@a", "2").references, "the end of the run")


def test_a_shadow_that_cannot_be_asked_is_given_back_and_asked_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.load("1")
    served.load("2")
    served.shadow("2")
    entry = served.core.networks.find("m", "2")
    assert entry.executable is not None
    with monkeypatch.context() as broken:
        submit = mock.Mock(side_effect=RuntimeError("a bug"))
        broken.setattr(entry.executable.behind, "submit", submit)
        served.infer()
        eventually(lambda: submit.called and not entry.references, "the end of the request")
    served.infer()
    served.become("m", equal=1)


def test_a_network_on_another_device_is_loaded_there_until_the_shadow_ends(
    served: Served,
) -> None:
    served.load("1")
    served.shadow(device="HOOK")
    assert served.loaded() == {"m": "TEMPLATE", "m.shadow": "HOOK"}
    served.infer()
    served.become(differs=1)  # HOOK returns the input
    served.shadow(percent=0)
    eventually(lambda: served.loaded() == {"m": "TEMPLATE"}, "it was to be unloaded")
    served.infer()
    assert served.counts() == {("differs",): 1}


def test_it_leaves_with_its_network(served: Served) -> None:
    served.load("1")
    served.shadow(device="HOOK")
    served.core.unload_network("m").result(PATIENCE_SECONDS)
    eventually(lambda: served.loaded() == {}, "it was to be unloaded")
    assert (served.core.shadows.get("m"), served.counts()) == (NO_SHADOW, {})


def test_a_network_that_takes_the_place_of_another_is_loaded_on_the_shadows_device_too(
    served: Served,
) -> None:
    served.load("1")
    served.shadow(device="HOOK")
    before = served.core.networks.find("m.shadow")
    served.load("1", (0, 0))  # HOOK returns the input, so the answers are the same now
    served.infer()
    served.become(dropped=1)
    new = lambda: served.core.networks.find("m.shadow") is not before  # noqa: E731
    eventually(new, "it was to be loaded again")
    served.infer()
    served.become(dropped=1, equal=1)


def test_a_strangers_network_is_a_strangers_on_the_shadows_device_too() -> None:
    eve = Asker("eve", trusted=False, owner="eve")
    now = [eve]
    served = Served(asker=lambda: now[0])
    try:
        Hooked.askers.clear()
        served.load("1")
        now[0] = NOBODY
        served.shadow(device="HOOK")
        before = served.core.networks.find("m.shadow")
        now[0] = eve
        served.load("1")
        served.infer()
        new = lambda: served.core.networks.find("m.shadow") is not before  # noqa: E731
        eventually(new, "it was to be loaded again")
    finally:
        served.core.stop()
    assert Hooked.askers == [eve, eve]


def test_a_network_that_another_client_has_is_not_replaced(served: Served) -> None:
    served.load("1")
    served.load("1", name="m.shadow")
    served.owner = object()
    with pytest.raises(AlreadyExists, match=r"'m\.shadow' exists"):
        served.shadow(device="HOOK")
    assert served.core.shadows.get("m") == NO_SHADOW


def test_a_device_that_cannot_load_the_network_gets_no_requests(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.load("1")
    monkeypatch.setattr(Hooked, "refuses", True)
    with pytest.raises(FailedPrecondition, match="it is full"):
        served.shadow(device="HOOK")
    eventually(lambda: served.core.shadows.get("m") == NO_SHADOW, "it was to end")
    assert served.loaded() == {"m": "TEMPLATE"}
    with pytest.raises(NotFound):
        served.shadow(device="NONE")
    assert served.core.shadows.get("m") == NO_SHADOW


def test_a_shadow_runs_on_if_the_next_ones_device_is_not_there(served: Served) -> None:
    served.load()
    served.load("2")
    served.shadow("2")
    with pytest.raises(NotFound, match="NOSUCH"):
        served.shadow(device="NOSUCH")
    assert served.core.shadows.get("m") == Shadow("2", percent=ALL)


class Kept:
    """A store that keeps shadows, and nothing else."""

    shared = False

    def __init__(self) -> None:
        self.shadows: list[Shadow] = []

    def save_shadow(self, _: str, shadow: Shadow) -> None:
        self.shadows.append(shadow)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: nullcontext("")


def test_a_restart_keeps_no_shadow_whose_load_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, wanted = Kept(), Shadow(device="HOOK", percent=ALL)
    served = Served(store=store)
    try:
        served.load("1")
        served.shadow(device="HOOK")
        assert store.shadows[-1] == wanted
        served.shadow(percent=0)
        assert store.shadows[-1] == NO_SHADOW
        monkeypatch.setattr(Hooked, "refuses", True)
        with pytest.raises(FailedPrecondition, match="it is full"):
            served.shadow(device="HOOK")
        eventually(lambda: store.shadows[-1] == NO_SHADOW, "the shadow was to be forgotten")
    finally:
        served.core.stop()


def test_a_stop_while_a_shadow_is_being_loaded_keeps_it_for_the_next_start() -> None:
    store = Kept()
    served = Served(store=store)
    try:
        served.load("1")
        with Hooked.compiling:
            load = served.core.set_shadow("m", Shadow(device="HOOK"))
            assert load is not None
            served.core.shadows.stop()
            served.core.cancel_load(load)
        assert load.exception(PATIENCE_SECONDS) is not None
    finally:
        served.core.stop()
    assert store.shadows == [Shadow(device="HOOK")]


def test_a_network_on_a_shadows_device_counts_as_one_of_its_owners() -> None:
    served = Served(of_owner=OwnerLimits(networks=2))
    try:
        served.load(name="m@alice")
        served.core.set_shadow("m@alice", Shadow(device="HOOK"))
        eventually(lambda: "m.shadow@alice" in served.loaded(), "it was to be loaded")
        with pytest.raises(ResourceExhausted, match="you have 2 networks"):
            served.load(name="other@alice")
    finally:
        served.core.stop()


def test_without_room_for_a_second_network_there_is_no_shadow_on_a_device() -> None:
    served = Served(max_networks=1)
    try:
        served.load("1")
        with pytest.raises(ResourceExhausted):
            served.shadow(device="HOOK")
        assert served.core.shadows.get("m") == NO_SHADOW
    finally:
        served.core.stop()


def test_a_version_that_was_unloaded_gives_no_answer(served: Served) -> None:
    served.load("1")
    served.load("2")
    served.shadow("2")
    served.core.unload_network("m", "2").result(PATIENCE_SECONDS)
    served.infer()
    served.become(failed=1)


def test_a_version_that_is_not_in_memory_is_not_loaded_for_a_shadow(served: Served) -> None:
    served.load("1")
    request = LoadRequest("m", DeviceName.parse("TEMPLATE"), version="2")
    known = served.core.know_network(
        request, lambda: networks.add().network, owner=served.owner, residence=Residence()
    )
    served.shadow("2")
    served.infer()
    served.become(dropped=1)
    assert known.state is NetworkState.KNOWN


def test_a_shadow_of_a_shadow_sees_what_callers_ask_that_and_not_what_it_compares(
    served: Served,
) -> None:
    served.load("1")
    served.shadow(device="HOOK")
    load = served.core.set_shadow("m.shadow", Shadow(device="TEMPLATE", percent=ALL))
    assert load is not None
    load.result(PATIENCE_SECONDS)
    served.infer()
    served.become(differs=1)
    counted = numbers(served.core.shadows.snapshot(), SHADOW_REQUESTS, "m.shadow")
    assert sum(counted.values()) == 0
    served.infer(name="m.shadow")
    eventually(
        lambda: (
            numbers(served.core.shadows.snapshot(), SHADOW_REQUESTS, "m.shadow")[("differs",)] == 1
        ),
        "the caller's request was to be compared",
    )


@pytest.mark.parametrize("period", [2, 7, 20, 50])
def test_callers_who_ask_the_same_inputs_in_turn_have_all_of_them_compared(period: int) -> None:
    chosen = {turn % period for turn in range(1, 100 * period) if is_chosen(turn, 5)}
    assert len(chosen) == period


@pytest.mark.parametrize("percent", [1, 5, 10, 50, 99, 100])
def test_a_shadow_gets_its_share_of_any_number_of_requests(percent: int) -> None:
    for number in (20, 100, 200, 10_000):
        chosen = sum(is_chosen(turn, percent) for turn in range(1, number + 1))
        assert abs(chosen - number * percent / 100) < 2


def test_a_value_holds_the_whole_message_that_it_lies_in() -> None:
    message = bytes(1000)
    first, second = (np.frombuffer(message, np.uint8, 4, offset) for offset in (0, 8))
    assert bytes_held([first, second]) == 1000
    assert bytes_held([np.frombuffer(memoryview(message)[4:8], np.uint8)]) == 1000
    assert bytes_held([np.zeros((10, 10), np.float32)[3], None]) == 400
    assert bytes_held([[np.zeros(2), np.zeros(3)], np.array([b"abc", b"de"], object)]) == 45


def test_a_value_of_too_many_parts_holds_too_much() -> None:
    part = np.zeros(1)
    assert bytes_held([[part] * 5000]) > 1 << 26
    assert bytes_held([np.array([b""] * 5000, object)]) > 1 << 26


def test_no_kept_reply_is_compared_and_none_is_kept(served: Served) -> None:
    served.load("1")
    cached = served.load("2", RESPONSE_CACHE="YES")
    served.shadow("2")
    served.infer(2)
    served.become(equal=2)
    assert cached.executable is not None
    metric = cached.executable.get_metric
    assert (metric("RESPONSE_CACHE_HITS"), metric("RESPONSE_CACHE_MISSES")) == (0, 0)


def test_inputs_in_memory_that_a_client_may_change_are_not_compared(served: Served) -> None:
    served.load("1")
    served.load("2")
    served.shadow("2")
    served.infer(room={})
    served.become(dropped=1)


def test_the_requests_of_a_pipelines_steps_are_its_own(served: Served) -> None:
    served.load("1")
    served.load("2")
    served.core.set_traffic("m", {"1": 100})
    served.shadow("2")
    text = """
        [[step]]
        name = "s"
        network = "m"
        inputs = {x = "x"}
        outputs = {y = "y"}
        [outputs]
        y = "y"
    """
    described = network_of(parse_pipeline(text.encode()), {}, served.core.limits)
    request = LoadRequest("p", DeviceName.parse("PIPELINE"))
    served.core.load_network(request, lambda: described).result(PATIENCE_SECONDS)
    served.infer(name="p")
    assert served.counts() == {}
    with pytest.raises(FailedPrecondition, match="pipeline"):
        served.core.set_shadow("p", Shadow(device="HOOK"))


def test_a_network_that_draws_numbers_cannot_be_compared(served: Served) -> None:
    served.load("1")
    served.load("2", text=DRAWS)
    with pytest.raises(FailedPrecondition, match="random numbers"):
        served.shadow("2")


@pytest.mark.parametrize(
    ("shadow", "kind", "field"),
    [
        (Shadow(), InvalidArgument, "version"),
        (Shadow("1", "HOOK"), InvalidArgument, "version"),
        (Shadow("one"), InvalidArgument, "version"),
        (Shadow("1", percent=101), InvalidArgument, "percent"),
        (Shadow("1", percent=-1), InvalidArgument, "percent"),
        (Shadow("7"), NotFound, "version"),
        (Shadow(device="!"), InvalidArgument, "device"),
    ],
)
def test_a_shadow_that_cannot_be_is_refused(
    served: Served, shadow: Shadow, kind: type[HeadraceError], field: str
) -> None:
    served.load("1")
    with pytest.raises(kind) as caught:
        served.core.set_shadow("m", shadow)
    assert caught.value.field == field
    assert served.core.shadows.get("m") == NO_SHADOW


def test_shadows_run_while_the_server_is_quiet() -> None:
    spare = SpareTime()
    spare.used(0.0, 1.0)
    assert not spare.is_here(2.0, 5, 4)  # one is in flight
    assert not spare.is_here(3.0, 5, 5)
    assert not spare.is_here(3.01, 6, 6)  # another one has come and gone
    assert not spare.is_here(3.02, 6, 6)
    assert spare.is_here(3.03, 6, 6)


def test_on_a_server_that_is_never_quiet_shadows_get_one_part_of_400_of_the_time() -> None:
    spare = SpareTime()
    assert spare.is_here(0.0, 5, 4)
    spare.used(0.0, 0.5)
    assert not spare.is_here(200.0, 50_000, 49_999)
    assert spare.is_here(200.5, 51_000, 50_999)


def test_a_tenant_that_has_used_its_time_keeps_no_other_one_waiting() -> None:
    spare = queue.SpareTime()
    spare.used(0.0, 10.0, "eve")
    assert not spare.is_here(4009.0, 9, 8, "eve")
    assert spare.is_here(11.0, 9, 8, "bob")
    for number in range(9):  # of so many, all together get one part in a hundred
        spare.used(10.0, 10.1, f"tenant {number}")
    assert not spare.is_here(109.0, 9, 8, "tenant 8")
    assert spare.is_here(111.0, 9, 8, "tenant 8")


def test_the_server_stops_while_a_shadow_runs(served: Served) -> None:
    served.load("1")
    served.load("2", device="HOOK")
    Hooked.opened.clear()
    served.shadow("2")
    served.infer(3)
    stopping = threading.Thread(target=served.core.shadows.stop)
    stopping.start()
    Hooked.opened.set()
    stopping.join(PATIENCE_SECONDS)
    assert not stopping.is_alive()
