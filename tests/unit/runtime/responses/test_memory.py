"""The bound on kept replies, and which of them go first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.network.values import Value
from headrace.runtime.responses.memory import KeptReplies, ResponseMemory, kept, kept_bytes


@pytest.fixture
def memory() -> Iterator[ResponseMemory]:
    memory = ResponseMemory(100)
    yield memory
    memory.stop()


def put(replies: KeptReplies, key: str, size: int, owner: str = "") -> None:
    replies.put(owner, key.encode(), {"name": None}, size)


def has(replies: KeptReplies, key: str, owner: str = "") -> bool:
    return replies.get(owner, key.encode()) is not None


def there(replies: KeptReplies, owner: str = "") -> list[str]:
    """The keys of an owner, the least recently used first. Does not use them."""
    return [key.decode() for key in replies._by_owner.get(owner, ())]


def test_the_least_recently_used_reply_makes_room(memory: ResponseMemory) -> None:
    replies = memory.of_network(100)
    put(replies, "a", 40)
    put(replies, "b", 40)
    assert has(replies, "a")
    put(replies, "c", 40)
    assert there(replies) == ["a", "c"]
    assert (replies.bytes, memory.taken, replies.evicted) == (80, 80, 1)


def test_a_network_has_its_own_bound(memory: ResponseMemory) -> None:
    small, other = memory.of_network(50), memory.of_network(100)
    put(other, "x", 40)
    put(small, "a", 30)
    put(small, "b", 30)
    assert (there(small), there(other)) == (["b"], ["x"])


def test_networks_together_stay_within_the_bound_of_the_server(memory: ResponseMemory) -> None:
    one, other = memory.of_network(100), memory.of_network(100)
    put(one, "a", 50)
    put(other, "b", 40)
    assert has(one, "a")
    put(other, "c", 20)
    assert (there(one), there(other)) == (["a"], ["c"])
    assert (one.evicted, other.evicted) == (0, 1)
    assert memory.taken == 70


def test_what_is_larger_than_a_bound_is_not_kept(memory: ResponseMemory) -> None:
    small, large = memory.of_network(50), memory.of_network(1000)
    put(small, "a", 50)
    for replies, size in ((small, 51), (large, 101)):
        assert not replies.fits(size)
        put(replies, "x", size)
    assert (there(small), there(large)) == (["a"], [])


def test_a_reply_that_is_kept_twice_takes_its_bytes_once(memory: ResponseMemory) -> None:
    replies = memory.of_network(100)
    put(replies, "a", 60)
    put(replies, "a", 70)
    assert (there(replies), replies.bytes, memory.taken, replies.evicted) == (["a"], 70, 70, 0)


def test_identities_have_replies_of_their_own(memory: ResponseMemory) -> None:
    replies = memory.of_network(100)
    put(replies, "a", 10, "eve")
    assert has(replies, "a", "eve")
    assert not has(replies, "a", "bob")


def test_who_asks_for_most_makes_room_for_others(memory: ResponseMemory) -> None:
    replies = memory.of_network(100)
    put(replies, "mine", 10, "bob")
    for each in range(50):
        put(replies, f"{each}", 10, "eve")
    assert there(replies, "bob") == ["mine"]
    assert there(replies, "eve") == [str(each) for each in range(41, 50)]
    put(replies, "more", 20, "bob")
    assert there(replies, "bob") == ["mine", "more"]


def test_who_has_nothing_gets_room_from_who_has_less_than_the_new_reply(
    memory: ResponseMemory,
) -> None:
    replies = memory.of_network(100)
    put(replies, "old", 50, "bob")
    put(replies, "new", 60, "eve")
    assert (there(replies, "bob"), there(replies, "eve")) == ([], ["new"])


def test_an_unload_gives_the_bytes_back(memory: ResponseMemory) -> None:
    one, other = memory.of_network(100), memory.of_network(100)
    put(one, "a", 30, "bob")
    put(one, "b", 30, "eve")
    put(other, "c", 30, "eve")
    one.close()
    assert (memory.taken, one.bytes, there(other, "eve")) == (30, 0, ["c"])
    put(one, "late", 30)
    assert memory.taken == 30
    put(other, "d", 70, "eve")
    assert (there(other, "eve"), memory.taken) == (["c", "d"], 100)


def test_a_lower_bound_holds_at_once(memory: ResponseMemory) -> None:
    replies = memory.of_network(100)
    put(replies, "a", 40)
    put(replies, "b", 40)
    replies.resize(50)
    assert (there(replies), memory.taken) == (["b"], 40)
    replies.resize(0)
    assert (there(replies), memory.taken, replies.fits(1)) == ([], 0, False)


@given(
    st.lists(
        st.tuples(st.sampled_from("pg"), st.integers(0, 1), st.integers(0, 5), st.integers(1, 60)),
        max_size=60,
    )
)
def test_replies_of_one_identity_go_in_the_order_of_their_use(
    steps: list[tuple[str, int, int, int]],
) -> None:
    memory = ResponseMemory(100)
    networks = [memory.of_network(70), memory.of_network(100)]
    limits = (70, 100)
    model: OrderedDict[tuple[int, str], int] = OrderedDict()

    def total(network: int | None = None) -> int:
        return sum(size for key, size in model.items() if network in (None, key[0]))

    for action, network, number, size in steps:
        key = (network, str(number))
        if action == "g":
            assert has(networks[network], key[1]) == (key in model)
            if key in model:
                model.move_to_end(key)
        else:
            put(networks[network], key[1], size)
            model.pop(key, None)
            while total(network) + size > limits[network]:
                del model[next(each for each in model if each[0] == network)]
            while total() + size > 100:
                model.popitem(last=False)
            model[key] = size
        assert memory.taken == total()
        for at, each in enumerate(networks):
            assert there(each) == [name for where, name in model if where == at]
            assert each.bytes == total(at)
    memory.stop()


def test_what_is_kept_is_a_copy_that_nobody_can_write_to() -> None:
    whole = np.zeros((100, 4), np.float32)
    texts = np.array(["a"], object)
    given: list[Value] = [whole[3:4], [whole], None, texts]
    view, sequence, nothing, text = map(kept, given)
    whole[:] = 1
    texts[0] = "b"
    assert isinstance(view, np.ndarray)
    assert isinstance(sequence, list)
    assert isinstance(text, np.ndarray)
    assert not view.any()
    assert view.base is None
    assert (nothing, text[0]) == (None, "a")
    for each in (view, sequence[0], text):
        assert isinstance(each, np.ndarray)
        assert not each.flags.writeable


def test_a_reply_takes_more_than_its_numbers() -> None:
    assert kept_bytes({}) > 0
    assert kept_bytes({"y": np.zeros(1000, np.float32)}) >= 4000
    assert kept_bytes({"y": np.array(["a" * 1000, "b" * 1000], object)}) >= 2000
    assert kept_bytes({"y": [np.zeros(1000, np.float32)] * 2, "z": None}) >= 8000
