"""Values and the leases on their buffers."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.runtime.network.values import Lease, Memory, Tensor, Value, host, size_bytes
from tests.support.gate import run_together
from tests.support.interleaving import frequent_switches

FLOAT = np.dtype(np.float32)
ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)
ON_DEVICE = Tensor(
    None, Memory.DEVICE, handle=object(), device_dtype=np.dtype("f4"), device_shape=(2, 3)
)


def test_a_host_tensor_is_its_array() -> None:
    tensor = Tensor(ARRAY)
    assert (tensor.dtype, tensor.shape, tensor.writable) == (FLOAT, (2, 3), True)
    assert tensor.memory is Memory.HOST
    assert host(tensor) is ARRAY


def test_a_view_of_a_message_is_not_writable() -> None:
    assert not Tensor(np.frombuffer(b"\0" * 8, np.float32)).writable


def test_a_device_tensor_knows_its_dtype_and_shape_and_has_no_host_view() -> None:
    assert (ON_DEVICE.dtype, ON_DEVICE.shape, ON_DEVICE.writable) == (FLOAT, (2, 3), True)
    with pytest.raises(TypeError, match="no host view"):
        host(ON_DEVICE)


def test_host_copies_nothing() -> None:
    value: Value = [ARRAY, Tensor(ARRAY), [], None]
    sequence = host(value)
    assert isinstance(sequence, list)
    assert sequence[0] is sequence[1] is ARRAY
    assert sequence[2:] == [[], None]
    assert host(None) is None


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (None, 0),
        (ARRAY, 24),
        (ON_DEVICE, 24),
        ([ARRAY, Tensor(ARRAY), None], 48),
        (Tensor(np.zeros((), np.int8)), 1),
        (np.zeros((0, 5)), 0),
    ],
)
def test_the_size_is_that_of_the_elements(value: Value, size: int) -> None:
    assert size_bytes(value) == size


def test_the_owner_gets_its_buffer_back_when_the_last_claim_is_released() -> None:
    back: list[str] = []
    lease = Lease(lambda: back.append("buffer"))
    assert lease.acquire() is lease
    lease.release()
    assert back == []
    lease.release()
    assert back == ["buffer"]


def test_a_lease_that_has_ended_can_be_neither_taken_nor_released() -> None:
    lease = Lease(lambda: None)
    lease.release()
    with pytest.raises(RuntimeError, match="has ended"):
        lease.acquire()
    with pytest.raises(RuntimeError, match="more often"):
        lease.release()


def test_threads_that_release_at_once_give_the_buffer_back_once() -> None:
    with frequent_switches():
        for _ in range(50):
            back: list[str] = []
            lease = Lease(lambda back=back: back.append("buffer"))  # type: ignore[misc]
            for _ in range(7):
                lease.acquire()
            run_together(*[lease.release] * 8)
            assert back == ["buffer"]
