"""The queue's order: priority with ageing inside a flow, turns between flows, limits, removal."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.runtime.execution.fair_queue import HEAD_START, Entry, FairQueue, Flow

PRIORITIES = st.integers(-10, 10)


def drained(queue: FairQueue[str]) -> list[str]:
    """Everything in the order in which one stream would run it."""
    order = []
    while (popped := queue.pop()) is not None:
        flow, item = popped
        queue.finished(flow)
        order.append(item)
    return order


# -- inside a flow --


def test_equal_priorities_of_one_flow_are_served_in_order_of_arrival() -> None:
    queue, flow = FairQueue[str](), Flow[str](1)
    for item in "abc":
        queue.push(flow, item)
    assert drained(queue) == ["a", "b", "c"]


def test_a_higher_priority_goes_first() -> None:
    queue, flow = FairQueue[str](), Flow[str](1)
    queue.push(flow, "low", -1)
    queue.push(flow, "normal")
    queue.push(flow, "high", 1)
    assert drained(queue) == ["high", "normal", "low"]


@given(st.lists(PRIORITIES, max_size=300))
def test_an_entry_is_passed_by_fewer_later_ones_than_the_head_start(priorities: list[int]) -> None:
    queue, flow = FairQueue[str](), Flow[str](1)
    for index, priority in enumerate(priorities):
        queue.push(flow, str(index), priority)
    order = [int(item) for item in drained(queue)]
    for place, index in enumerate(order):
        passed_by = [later for later in order[:place] if later > index]
        for later in passed_by:
            assert later - index < HEAD_START * (priorities[later] - priorities[index])


def test_a_stream_of_high_priorities_does_not_starve_a_low_one() -> None:
    queue, flow = FairQueue[str](), Flow[str](1)
    queue.push(flow, "patient", -10)
    served = 0
    for _ in range(20 * HEAD_START + 1):
        queue.push(flow, "urgent", 10)
        popped = queue.pop()
        assert popped is not None
        queue.finished(flow)
        if popped[1] == "patient":
            break
        served += 1
    assert served == 20 * HEAD_START - 1


# -- between flows --


def test_flows_take_turns_however_long_their_queues_are() -> None:
    queue, long, short = FairQueue[str](), Flow[str](1), Flow[str](1)
    for _ in range(100):
        queue.push(long, "long")
    for _ in range(3):
        queue.push(short, "short")
    assert drained(queue)[:6] == ["long", "short"] * 3


def test_a_flow_that_was_idle_saves_up_no_turns() -> None:
    queue, busy, idle = FairQueue[str](), Flow[str](1), Flow[str](1)
    for _ in range(100):
        queue.push(busy, "busy")
    for _ in range(50):
        queue.pop()
        queue.finished(busy)
    for _ in range(50):
        queue.push(idle, "idle")
    assert abs(drained(queue)[:20].count("idle") - 10) <= 1


def test_a_flow_that_was_at_its_limit_saves_up_no_turns() -> None:
    queue, slow, other = FairQueue[str](), Flow[str](1), Flow[str](1)
    for _ in range(100):
        queue.push(slow, "slow")
        queue.push(other, "other")
    popped = queue.pop()
    assert popped == (slow, "slow")
    for _ in range(60):
        assert queue.pop() == (other, "other")
        queue.finished(other)
    queue.finished(slow)
    assert abs(drained(queue)[:20].count("slow") - 10) <= 1


def test_entries_that_left_unserved_cost_their_flow_no_turns() -> None:
    queue, impatient, steady = FairQueue[str](), Flow[str](1), Flow[str](1)
    for _ in range(1000):
        queue.remove(queue.push(impatient, "gave up"))
    for _ in range(10):
        queue.push(steady, "steady")
    queue.push(impatient, "stays")
    assert drained(queue).index("stays") <= 1


def test_a_flow_of_high_priority_gets_its_head_start_once_and_then_turns() -> None:
    queue, urgent, normal = FairQueue[str](), Flow[str](1), Flow[str](1)
    for _ in range(300):
        queue.push(normal, "normal")
        queue.push(urgent, "urgent", 10)
    order = drained(queue)
    ahead = 10 * HEAD_START
    assert order[:ahead] == ["urgent"] * ahead
    assert Counter(order[ahead : ahead + 100]) == {"urgent": 50, "normal": 50}


def test_a_newcomer_does_not_wait_for_the_head_start_that_others_used() -> None:
    queue, urgent, normal, new = FairQueue[str](), Flow[str](1), Flow[str](1), Flow[str](1)
    for _ in range(300):
        queue.push(normal, "normal")
        queue.push(urgent, "urgent", 10)
    for _ in range(200):
        popped = queue.pop()
        assert popped is not None
        queue.finished(popped[0])
    queue.push(new, "new")
    assert drained(queue).index("new") <= 2


@given(st.lists(st.tuples(st.integers(0, 3), PRIORITIES), max_size=400))
@settings(max_examples=50)
def test_flows_that_always_have_work_are_never_further_apart_than_the_bound(
    pushes: list[tuple[int, int]],
) -> None:
    queue: FairQueue[str] = FairQueue()
    flows = [Flow[str](1) for _ in range(4)]
    # Every flow has work throughout, of the lowest priority.
    for index, flow in enumerate(flows):
        for _ in range(1000):
            queue.push(flow, str(index), -10)
    served: Counter[str] = Counter({str(index): 0 for index in range(4)})
    for index, priority in pushes:
        queue.push(flows[index], str(index), priority)
        popped = queue.pop()
        assert popped is not None
        queue.finished(popped[0])
        served[popped[1]] += 1
        assert max(served.values()) - min(served.values()) <= 20 * HEAD_START + 1


# -- limits --


def test_a_flow_at_its_limit_lets_others_pass() -> None:
    queue, narrow, wide = FairQueue[str](), Flow[str](1), Flow[str](2)
    queue.push(narrow, "n1")
    queue.push(narrow, "n2")
    queue.push(wide, "w1", -10)
    queue.push(wide, "w2", -10)
    assert [queue.pop(), queue.pop(), queue.pop(), queue.pop()] == [
        (narrow, "n1"),
        (wide, "w1"),
        (wide, "w2"),
        None,
    ]
    assert len(queue) == 1
    queue.finished(narrow)
    assert queue.pop() == (narrow, "n2")


def test_an_empty_queue_has_nothing() -> None:
    assert FairQueue[str]().pop() is None


# -- removal --


def test_an_entry_is_removed_once_and_not_after_it_was_served() -> None:
    queue, flow = FairQueue[str](), Flow[str](1)
    waiting, served = queue.push(flow, "waiting"), queue.push(flow, "served", 1)
    assert queue.pop() == (flow, "served")
    assert queue.remove(served) is False
    assert queue.remove(waiting) is True
    assert queue.remove(waiting) is False
    assert len(queue) == 0


def test_removed_entries_hold_neither_their_items_nor_room() -> None:
    queue, flow = FairQueue[str](), Flow[str](1)
    kept = [queue.push(flow, f"kept {index}") for index in range(3)]
    for _ in range(1000):
        entry = queue.push(flow, "removed")
        queue.remove(entry)
        assert entry.item is None
    assert len(flow.heap) < 50
    assert drained(queue) == ["kept 0", "kept 1", "kept 2"]
    assert all(entry.item is None for entry in kept)


def test_drain_takes_out_everything_and_the_queue_goes_on() -> None:
    queue, one, two = FairQueue[str](), Flow[str](1), Flow[str](1)
    first = queue.push(one, "a")
    queue.push(two, "b")
    queue.remove(queue.push(two, "removed"))
    assert sorted(queue.drain()) == ["a", "b"]
    assert len(queue) == 0
    assert queue.remove(first) is False
    assert queue.pop() is None
    queue.push(one, "c")
    assert drained(queue) == ["c"]


# -- against a literal model --


@dataclass(eq=False)
class ModelFlow:
    limit: int
    running: int = 0
    arrivals: int = 0
    tag: int = 0
    waiting: list[tuple[int, int, int]] = field(default_factory=list)  # rank, sequence, advance


class Model:
    """The module's docstring, word for word, without a thought of speed."""

    def __init__(self, limits: list[int]) -> None:
        self.flows = [ModelFlow(limit) for limit in limits]
        self.virtual_time = 0
        self.sequence = 0

    def push(self, index: int, priority: int) -> int:
        flow = self.flows[index]
        self.sequence += 1
        flow.arrivals += 1
        advance = priority * HEAD_START
        flow.waiting.append((flow.arrivals - advance, self.sequence, advance))
        return self.sequence

    def pop(self) -> tuple[int, int] | None:
        able = [flow for flow in self.flows if flow.waiting and flow.running < flow.limit]
        if not able:
            return None
        for flow in able:
            flow.tag = max(flow.tag, self.virtual_time)
        self.virtual_time = min(flow.tag for flow in able)
        flow = min(able, key=lambda f: (f.tag - min(f.waiting)[2], min(f.waiting)[1]))
        first = min(flow.waiting)
        flow.waiting.remove(first)
        flow.tag += 1
        flow.running += 1
        return self.flows.index(flow), first[1]


STEPS = st.one_of(
    st.tuples(st.just("push"), st.integers(0, 2), PRIORITIES),
    st.tuples(st.just("pop"), st.just(0), st.just(0)),
    st.tuples(st.just("finish"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("remove"), st.integers(0, 50), st.just(0)),
    st.tuples(st.just("limit"), st.integers(0, 2), st.integers(0, 4)),
    st.tuples(st.just("drain"), st.just(0), st.just(0)),
)


@given(st.lists(STEPS, max_size=120), st.lists(st.integers(1, 3), min_size=3, max_size=3))
@settings(max_examples=300)
def test_the_queue_does_what_its_description_says(
    steps: list[tuple[str, int, int]], limits: list[int]
) -> None:
    queue: FairQueue[int] = FairQueue()
    flows = [Flow[int](limit) for limit in limits]
    model = Model(limits)
    entries: list[tuple[int, int, Entry[int]]] = []
    for action, number, value in steps:
        if action == "push":
            sequence = model.push(number, value)
            entries.append((number, sequence, queue.push(flows[number], sequence, value)))
        elif action == "pop":
            expected, popped = model.pop(), queue.pop()
            got = None if popped is None else (flows.index(popped[0]), popped[1])
            assert got == expected
        elif action == "finish" and model.flows[number].running:
            model.flows[number].running -= 1
            queue.finished(flows[number])
        elif action == "remove" and entries:
            index, sequence, entry = entries[number % len(entries)]
            waiting = model.flows[index].waiting
            there = [w for w in waiting if w[1] == sequence]
            assert queue.remove(entry) is bool(there)
            for each in there:
                waiting.remove(each)
        elif action == "limit":
            flows[number].limit = model.flows[number].limit = value
        elif action == "drain":
            left = sorted(w[1] for flow in model.flows for w in flow.waiting)
            assert sorted(queue.drain()) == left
            for flow in model.flows:
                flow.waiting.clear()
        assert len(queue) == sum(len(flow.waiting) for flow in model.flows)
        for lane, literal in zip(flows, model.flows, strict=True):
            assert (lane.running, lane.waiting) == (literal.running, len(literal.waiting))


@pytest.mark.parametrize("flows", [1, 8])
def test_nothing_is_lost_or_doubled(flows: int) -> None:
    queue: FairQueue[str] = FairQueue()
    lanes = [Flow[str](1) for _ in range(flows)]
    items = [f"{lane}.{index}" for lane in range(flows) for index in range(50)]
    for item in items:
        queue.push(lanes[int(item.split(".")[0])], item, hash(item) % 21 - 10)
    assert sorted(drained(queue)) == sorted(items)


# -- company --


def test_what_is_put_back_waits_in_its_old_place_and_costs_its_flow_no_turn() -> None:
    queue, one, other = FairQueue[str](), Flow[str](1), Flow[str](1)
    entries = {}
    for item in "abcd":
        entries[item] = queue.push(one, item, 1 if item == "c" else 0)
        queue.push(other, item.upper())
    taken = [queue.take(one) for _ in range(3)]
    assert taken == ["c", "a", "b"]
    for item in reversed(taken):
        queue.put_back(entries[item], item)
    assert len(queue) == 8
    order = drained(queue)
    assert [item for item in order if item.islower()] == ["c", "a", "b", "d"]
    assert order.index("D") > order.index("b")


def test_what_is_put_back_can_be_removed() -> None:
    queue, flow = FairQueue[str](), Flow[str](1)
    entry = queue.push(flow, "a")
    assert queue.take(flow) == "a"
    assert not queue.remove(entry)
    queue.put_back(entry, "a")
    assert queue.remove(entry)
    assert queue.pop() is None
