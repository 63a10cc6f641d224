"""The kept replies of all networks, within a bound: the least recently used go first."""

from __future__ import annotations

import itertools
import secrets
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np

from headrace.runtime.network.values import Value

_REPLY_BYTES: Final = 512
"""What a reply takes besides its values: its key, and the objects around it."""
_VALUE_BYTES: Final = 256
_THREADS: Final = 2


@dataclass(slots=True)
class KeptReply:
    """
    Attributes:
        outputs: nobody may write to them.
        used: when it was used last: the number of the use.
    """

    outputs: Mapping[str, Value]
    size: int
    used: int


class ResponseMemory:
    """The kept replies of a server. Thread-safe: `_lock` guards all of it, `KeptReplies` included,
    and no lock is taken under it.

    A reply belongs to the identity that got it. If there is no room for a new one, the identity
    that has most loses the one that it has used least recently. So a client that asks for many
    things drops what it has asked for itself, and nothing of others.

    Args:
        limit: the most bytes, of all networks together. 0 keeps nothing.

    Attributes:
        secret: what only this process knows, for digests.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.secret = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._taken = 0
        self._of: Counter[str] = Counter()  # bytes by owner
        self._networks: list[KeptReplies] = []
        self._uses = itertools.count(1)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="headrace-digest")

    @property
    def taken(self) -> int:
        """The bytes of all that is kept."""
        return self._taken

    def of_network(self, limit: int) -> KeptReplies:
        """The replies of one network.

        Args:
            limit: the most bytes.
        """
        replies = KeptReplies(self, limit)
        with self._lock:
            self._networks.append(replies)
        return replies

    def later(self, work: Callable[[], object]) -> None:
        """Does what takes longer than the caller's thread can spare. It must not raise.

        Raises:
            RuntimeError: the system has no thread, or the server stops.
        """
        self._threads.submit(work)

    def stop(self) -> None:
        """Ends the threads. No network is left."""
        self._threads.shutdown()

    def _drop_oldest(self) -> None:
        owner, _ = self._of.most_common(1)[0]
        holding = [each for each in self._networks if owner in each._by_owner]
        oldest = min(holding, key=lambda each: next(iter(each._by_owner[owner].values())).used)
        oldest._drop_oldest(owner)


class KeptReplies:
    """The kept replies of one network. Thread-safe, by the lock of the memory.

    Attributes:
        limit: the most bytes.
        bytes: those of all replies.
        evicted: how many replies made room for others.
    """

    def __init__(self, memory: ResponseMemory, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self.evicted = 0
        self._memory = memory
        self._of: Counter[str] = Counter()  # bytes by owner
        self._by_owner: dict[str, OrderedDict[bytes, KeptReply]] = {}  # the next to go first

    def get(self, owner: str, key: bytes) -> Mapping[str, Value] | None:
        """The outputs that were kept. They are the most recently used now."""
        with self._memory._lock:
            own = self._by_owner.get(owner)
            reply = None if own is None else own.get(key)
            if own is None or reply is None:
                return None
            own.move_to_end(key)
            reply.used = next(self._memory._uses)
            return reply.outputs

    def fits(self, size: int) -> bool:
        """Whether a reply of so many bytes would be kept."""
        return size <= min(self.limit, self._memory.limit)

    def put(self, owner: str, key: bytes, outputs: Mapping[str, Value], size: int) -> None:
        """Keeps outputs that fit. Others make room for them.

        Args:
            outputs: nobody writes to them any more.
        """
        memory = self._memory
        with memory._lock:
            if not self.fits(size) or self not in memory._networks:
                return
            if key in self._by_owner.get(owner, ()):
                self._remove(owner, key)
            while self.bytes + size > self.limit:
                self._drop_oldest(self._of.most_common(1)[0][0])
            while memory._taken + size > memory.limit:
                memory._drop_oldest()
            reply = KeptReply(outputs, size, next(memory._uses))
            self._by_owner.setdefault(owner, OrderedDict())[key] = reply
            self._count(owner, size)

    def resize(self, limit: int) -> None:
        """Changes the most bytes."""
        with self._memory._lock:
            self.limit = limit
            while self.bytes > limit:
                self._drop_oldest(self._of.most_common(1)[0][0])

    def close(self) -> None:
        """Drops all replies, and keeps no more."""
        memory = self._memory
        with memory._lock:
            if self in memory._networks:
                memory._networks.remove(self)
            for owner in list(self._by_owner):
                self._count(owner, -self._of[owner])
                del self._by_owner[owner]

    def _drop_oldest(self, owner: str) -> None:
        self._remove(owner, next(iter(self._by_owner[owner])))
        self.evicted += 1

    def _remove(self, owner: str, key: bytes) -> None:
        own = self._by_owner[owner]
        size = own.pop(key).size
        if not own:
            del self._by_owner[owner]
        self._count(owner, -size)

    def _count(self, owner: str, size: int) -> None:
        """Counts bytes that were taken, or given back if there are fewer than 0."""
        self.bytes += size
        self._memory._taken += size
        for counter in (self._of, self._memory._of):
            counter[owner] += size
            if not counter[owner]:
                del counter[owner]


def kept_bytes(outputs: Mapping[str, Value]) -> int:
    """About how much memory outputs take if they are kept."""
    return _REPLY_BYTES + sum(map(_value_bytes, outputs.values()))


def kept(value: Value) -> Value:
    """A copy that nobody can write to. It holds no other memory, as a view of a batch would."""
    if isinstance(value, list):
        return [kept(element) for element in value]
    if value is None:
        return None
    copy = np.array(value, order="C")
    copy.flags.writeable = False
    return copy


def _value_bytes(value: Value) -> int:
    if isinstance(value, list):
        return _VALUE_BYTES + sum(map(_value_bytes, value))
    if value is None:
        return 0
    texts = sum(map(sys.getsizeof, value.reshape(-1))) if value.dtype == object else 0
    return _VALUE_BYTES + int(value.nbytes) + texts
