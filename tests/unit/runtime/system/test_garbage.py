"""When Python's garbage collector looks at all objects."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

import pytest

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.plugin_source import installed_plugins
from headrace.runtime.network.network import Network
from headrace.runtime.system import garbage
from headrace.runtime.transform.options import LoadRequest, NetworkOptions
from headrace.testing.case import network_of
from headrace.testing.occupied import eventually
from tests.support.model_zoo import model, node, value
from tests.support.patience import PATIENCE_SECONDS

LAYERS = 800  # some 24,000 objects on CPU
MANY = LAYERS * 20  # objects, as 40,000 are to 2000 layers
LONG = pytest.mark.long
DEVICES = ("CPU", pytest.param("HETERO:TEMPLATE,CPU", marks=LONG))  # the second runs on TEMPLATE


class Ring:
    """Refers to itself."""

    def __init__(self) -> None:
        self.ring = self


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """The looks at all objects since looks are seldom. True is one that began during a task."""
    monkeypatch.setattr(garbage, "_looks", garbage._Looks())
    monkeypatch.setattr(garbage, "_MANY", MANY)
    began: list[bool] = []

    def note(phase: str, facts: Mapping[str, int]) -> None:
        if phase == "start" and facts["generation"] == 2:
            began.append(garbage._looks._tasks > 0)

    thresholds = gc.get_threshold()
    garbage.look_seldom()
    gc.callbacks.append(note)
    yield began
    gc.callbacks.remove(note)
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.fixture
def core() -> Iterator[Core]:
    wanted = ("CPU", "TEMPLATE", "HETERO", "AUTO", "BATCH")
    built = Core([installed_plugins()[name] for name in wanted], blob_key=b"key")
    yield built
    built.stop()


def chain(*operators: str) -> Network:
    names = ["x", *(f"v{at}" for at in range(LAYERS - 1)), "y"]
    kinds = itertools.cycle(operators or ["Elu"])  # rows stay apart
    nodes = [
        node(next(kinds), [names[at]], [names[at + 1]], name=f"layer{at}") for at in range(LAYERS)
    ]
    return network_of(model(nodes, [value("x", ("N", 4))], [value("y", ("N", 4))]))


def load(core: Core, name: str, device: str) -> None:
    request = LoadRequest(name, DeviceName.parse(device), {})
    core.load_network(request, chain).result(PATIENCE_SECONDS)


@pytest.mark.usefixtures("looks")
@pytest.mark.parametrize("device", DEVICES)
def test_a_look_does_not_pass_over_the_networks_that_are_loaded(core: Core, device: str) -> None:
    there = len(gc.get_objects())
    for name in ("first", "second"):
        load(core, name, device)
        assert len(gc.get_objects()) - there <= MANY


@pytest.mark.usefixtures("looks")
@pytest.mark.parametrize(
    "device",
    [
        "HETERO:TEMPLATE,CPU",
        pytest.param("AUTO:CPU", marks=LONG),
        pytest.param("BATCH:CPU(4)", marks=LONG),
    ],
)
def test_a_network_that_is_unloaded_leaves_no_objects(core: Core, device: str) -> None:
    load(core, "m", device)  # what is made once
    core.unload_network("m").result(PATIENCE_SECONDS)
    there = gc.get_freeze_count() + len(gc.get_objects())
    for _ in range(2):
        load(core, "m", device)
        core.unload_network("m").result(PATIENCE_SECONDS)
    eventually(
        lambda: gc.get_freeze_count() + len(gc.get_objects()) - there < LAYERS,
        "the objects to be gone",
    )


@pytest.mark.usefixtures("looks")
@pytest.mark.parametrize(
    "operators", [("Identity", "Sigmoid"), pytest.param(("Relu",), marks=LONG)]
)
def test_layers_that_a_transformation_removed_are_freed_with_their_network(
    core: Core, operators: Sequence[str]
) -> None:
    def ask() -> int:
        device = DeviceName.parse("TEMPLATE")
        read = partial(chain, *operators)
        core.query_network(device, {}, NetworkOptions(), read).result(PATIENCE_SECONDS)
        return gc.get_freeze_count() + len(gc.get_objects())

    there = ask()
    ask()
    assert ask() - there < LAYERS


@pytest.mark.parametrize("device", DEVICES)
def test_no_look_begins_during_a_load_a_query_or_an_unload(
    core: Core, device: str, looks: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "_USUALLY", 1)  # as often as Python itself ever looks
    name = DeviceName.parse(device)
    load(core, "m", device)
    core.query_network(name, {}, NetworkOptions(), chain).result(PATIENCE_SECONDS)
    core.unload_network("m").result(PATIENCE_SECONDS)
    assert not any(looks)


def test_python_looks_as_before_once_the_task_is_over(looks: list[bool]) -> None:
    before = gc.get_threshold()
    with garbage.undisturbed(), garbage.undisturbed():
        assert gc.get_threshold()[2] > before[2]
    assert gc.get_threshold() == before
    assert not looks


def test_a_process_that_did_not_ask_for_it_excludes_nothing(core: Core) -> None:
    before = gc.get_freeze_count(), gc.get_threshold()
    load(core, "m", "CPU")
    assert (gc.get_freeze_count(), gc.get_threshold()) == before


@pytest.fixture
def few(looks: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """A few blocks are many."""
    for name in ("_MANY", "_LEFT"):
        monkeypatch.setattr(garbage, name, 1000)


@pytest.mark.usefixtures("few")
def test_rings_that_were_excluded_are_found_when_they_are_many(looks: list[bool]) -> None:
    alive: list[weakref.ref[Ring]] = []
    for _ in range(1000):
        with garbage.undisturbed():
            rings = [Ring() for _ in range(2000)]
        alive = [each for each in alive if each() is not None] + [weakref.ref(rings[0])]
        del rings
        garbage.look_if_much_is_left()
        if looks:
            break
    assert looks == [False]
    assert not any(each() for each in alive)


@pytest.mark.long
@pytest.mark.usefixtures("few")
def test_the_objects_of_networks_that_are_loaded_are_not_taken_for_rings(
    looks: list[bool],
) -> None:
    networks = []
    base = sys.getallocatedblocks()
    layers = 40_000 // garbage._A_LAYER  # a ring is two blocks
    while sys.getallocatedblocks() < 3 * base:
        with garbage.undisturbed():
            networks.append([Ring() for _ in range(20_000)])
        garbage.count_loaded(layers)
        garbage.look_if_much_is_left()
    for rings in networks:
        for ring in rings:
            del ring.ring  # as a graph is freed
        rings.clear()
        garbage.count_loaded(-layers)
        garbage.look_if_much_is_left()
    assert not looks


@pytest.mark.long
@pytest.mark.usefixtures("looks")
def test_a_load_does_not_hide_what_other_threads_leave_meanwhile(core: Core) -> None:
    """A network whose load takes long accounts for no more than itself."""
    reading, go_on = threading.Event(), threading.Event()

    def read() -> Network:
        reading.set()
        assert go_on.wait(PATIENCE_SECONDS)
        return chain()

    loading = core.load_network(LoadRequest("slow", DeviceName.parse("CPU"), {}), read)
    assert reading.wait(PATIENCE_SECONDS)
    with garbage.undisturbed():
        rings = [Ring() for _ in range(sys.getallocatedblocks() // 3)]
    alive = weakref.ref(rings[0])
    del rings
    go_on.set()
    loading.result(PATIENCE_SECONDS)
    eventually(lambda: garbage._looks._tasks == 0, "the end of all tasks")
    garbage.look_if_much_is_left()
    assert alive() is None


@pytest.mark.long
@pytest.mark.usefixtures("few")
def test_what_another_load_has_made_so_far_is_not_taken_for_rings(looks: list[bool]) -> None:
    with garbage.undisturbed():
        with garbage.undisturbed():
            made = [Ring() for _ in range(sys.getallocatedblocks() // 3)]
        with garbage.undisturbed():
            garbage.look_if_much_is_left()
        assert not looks
    garbage.look_if_much_is_left()
    assert looks
    assert made


@pytest.mark.usefixtures("looks")
def test_a_look_at_all_finds_what_was_excluded() -> None:
    ring = Ring()
    alive = weakref.ref(ring)
    gc.freeze()
    del ring
    gc.collect()
    assert alive() is not None
    garbage.look_at_all()
    assert alive() is None


@pytest.mark.parametrize("before", [True, False])
def test_no_look_begins_during_an_import_and_all_is_as_before_afterwards(before: bool) -> None:
    (gc.enable if before else gc.disable)()
    try:
        with suppress(ImportError), garbage.without_looks():
            during = gc.isenabled()
            raise ImportError
        assert (during, gc.isenabled()) == (False, before)
    finally:
        gc.enable()
