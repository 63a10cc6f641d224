"""Keeps the regions that clients have registered, and counts how requests use them.

A client sees only the regions of its own user and owner. It can only register files that its user
owns, and each of them has separate names. Requests cannot name a region after it is unregistered.
Its file is closed when the last request that uses it has ended.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

from headrace.runtime.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from headrace.server.shared_memory.region import FOLDER, Region, open_key
from headrace.server.transport.shares import Shares

T = TypeVar("T")

MAX_REGIONS: Final = 512
MAX_NAME_LENGTH: Final = 256
_THREADS = 4


class UnknownRegion(NotFound):
    reason = "UNKNOWN_REGION"


class Caller(NamedTuple):
    """The client of a call.

    Attributes:
        user: its user on this machine; None if it is elsewhere.
        peer: its address.
        owner: tells clients of one user apart if they may not see each other's regions.
    """

    user: int | None
    peer: str
    owner: str = ""


class RegionStatus(NamedTuple):
    """A region that a client has registered."""

    name: str
    key: str
    offset: int
    byte_size: int


class Regions:
    """All regions of one server. Thread-safe: gRPC and HTTP have an event loop each.

    `_lock` guards the tables and all counts. No file is opened, read or written while it is held.

    Args:
        allowed: whether clients may register regions at all.
        max_bytes: the most bytes of all regions together. The bytes that requests in flight have
            read have the same limit. One connection gets at most half of either.
        folder: the folder of the files.
    """

    def __init__(self, *, allowed: bool, max_bytes: int, folder: str = FOLDER) -> None:
        self._allowed = allowed
        self._folder = folder
        self._lock = threading.Lock()
        self._regions: dict[tuple[int, str, str], Region] = {}  # by user, owner and name
        self._waiting: dict[Region, list[Future[None]]] = {}  # callers that wait for its end
        self._places = Shares(MAX_REGIONS)
        self._registered = Shares(max_bytes)
        self._copied = Shares(max_bytes)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="headrace-shared-memory")

    def register(self, caller: Caller, name: str, key: str, offset: int, byte_size: int) -> None:
        """Registers a part of a client's file under a name.

        Raises:
            FailedPrecondition: shared memory is off, the client is not on this machine, or the file
                is not its own.
            AlreadyExists: the name is in use.
            InvalidArgument: the name, the key, the offset or the size is wrong.
            NotFound: there is no such file.
            ResourceExhausted: there are as many regions or bytes as allowed.
        """
        user = self._user(caller)
        if not 0 < len(name) <= MAX_NAME_LENGTH:
            raise InvalidArgument(f"a name has 1 to {MAX_NAME_LENGTH} characters", field="name")
        self._forget_deleted()
        place = user, caller.owner, name
        self._refuse_used(place)
        descriptor = open_key(key, offset, byte_size, user, self._folder)
        region = Region(name, key, offset, byte_size, descriptor, _holder(caller))
        try:
            with self._lock:
                self._refuse_used(place)
                self._take_room(region)
                region.uses = 1
                self._regions[place] = region
        except BaseException:
            region.close()
            raise

    async def unregister(self, caller: Caller, name: str = "") -> None:
        """Unregisters a region at once, or all regions of the client's user.

        Returns when no request uses them any more. If this call is cancelled, it stops waiting.

        Raises:
            UnknownRegion: there is no region of that name.
        """
        if caller.user is None and not name:
            return
        with self._lock:
            if name:
                gone = [self._regions.pop(self._key(caller, name))]
            else:
                whose = caller.user, caller.owner
                gone = self._pop(lambda place, _: place[:2] == whose)
            unused = [self._ended(region) for region in gone]
        self._release(gone)
        await asyncio.gather(*map(asyncio.wrap_future, unused))

    def status(self, caller: Caller, name: str = "") -> list[RegionStatus]:
        """The region of that name, or all regions of the client's user.

        Raises:
            UnknownRegion: there is no region of that name.
        """
        with self._lock:
            if name:
                found = [self._regions[self._key(caller, name)]]
            else:
                whose = caller.user, caller.owner
                found = [each for place, each in self._regions.items() if place[:2] == whose]
            return [
                RegionStatus(each.name, each.key, each.offset, each.byte_size) for each in found
            ]

    def close(self) -> None:
        """Forgets all regions. Requests that already use some may continue."""
        with self._lock:
            gone = self._pop(lambda *_: True)
        self._release(gone)
        self._threads.shutdown(wait=False)

    # -- for leases --

    def check_use(self, caller: Caller) -> None:
        """
        Raises:
            FailedPrecondition: shared memory is off, or the client is not on this machine.
        """
        self._user(caller)

    def use(self, caller: Caller, name: str, field: str) -> Region:
        """The region of that name. It stays open until `release`.

        Raises:
            UnknownRegion: there is no region of that name.
        """
        with self._lock:
            region = self._regions[self._key(caller, name, field)]
            region.uses += 1
            return region

    def release(self, regions: Iterable[Region], caller: Caller, copied_bytes: int) -> None:
        """Gives back the regions and bytes that a request has used."""
        if copied_bytes:
            with self._lock:
                self._copied.give_back(_holder(caller), copied_bytes)
        self._release(regions)

    def take_bytes(self, caller: Caller, size: int, field: str) -> None:
        """
        Raises:
            ResourceExhausted: requests in flight have read as many bytes as allowed.
        """
        with self._lock:
            if size and not self._copied.take(_holder(caller), size):
                raise ResourceExhausted(
                    f"there is no room for {size} bytes beside what requests in flight have read "
                    "from shared memory (--max-shared-memory-bytes); wait for their replies",
                    field=field,
                )

    async def run(self, call: Callable[[], T], done: Callable[[object], None]) -> T:
        """Runs the call on a thread and returns its result.

        `done` is called when the call has ended or will not run. This may happen after `run` itself
        was cancelled.
        """
        future = self._threads.submit(call)
        future.add_done_callback(done)
        return await asyncio.wrap_future(future)

    # -- inside --

    def _user(self, caller: Caller) -> int:
        if not self._allowed:
            raise FailedPrecondition(
                "shared memory of clients is off; start the server with "
                "--allow-client-shared-memory"
            )
        if caller.user is None:
            raise FailedPrecondition(
                "shared memory is for clients on the server's machine and in its network "
                "namespace, and the server finds no socket of yours there; send the tensors in "
                "the message"
            )
        return caller.user

    def _key(self, caller: Caller, name: str, field: str = "name") -> tuple[int, str, str]:
        """The key of a region that exists. Call this with the lock held."""
        user, owner = caller.user, caller.owner
        if user is None or (user, owner, name) not in self._regions:
            known = [place[2] for place in self._regions if place[:2] == (user, owner)]
            raise UnknownRegion.unknown("shared memory region", name, known, field=field)
        return user, owner, name

    def _refuse_used(self, place: tuple[int, str, str]) -> None:
        if place in self._regions:
            raise AlreadyExists(
                f"shared memory region {place[2]!r} is registered already; unregister it first",
                field="name",
            )

    def _take_room(self, region: Region) -> None:
        if not self._places.take(region.holder):
            raise ResourceExhausted(
                f"{self._places.taken} of at most {MAX_REGIONS} shared memory regions are "
                "registered, and one connection gets no more of them than are left; unregister "
                "some"
            )
        if not self._registered.take(region.holder, region.byte_size):
            self._places.give_back(region.holder)
            raise ResourceExhausted(
                f"there is no room for {region.byte_size} bytes beside the "
                f"{self._registered.taken} of at most {self._registered.capacity} bytes of "
                "registered shared memory (--max-shared-memory-bytes), of which one connection "
                "gets no more than are left; unregister regions",
                field="byte_size",
            )

    def _pop(self, chosen: Callable[[tuple[int, str, str], Region], bool]) -> list[Region]:
        """Takes regions out of the table. Call this with the lock held."""
        keys = [key for key, region in self._regions.items() if chosen(key, region)]
        return [self._regions.pop(key) for key in keys]

    def _forget_deleted(self) -> None:
        """Forgets regions with deleted files: nobody needs them, but they still hold memory."""
        with self._lock:
            gone = self._pop(lambda _, region: region.is_deleted())
        self._release(gone)

    def _ended(self, region: Region) -> Future[None]:
        ended: Future[None] = Future()
        self._waiting.setdefault(region, []).append(ended)
        return ended

    def _release(self, regions: Iterable[Region]) -> None:
        for region in regions:
            with self._lock:
                region.uses -= 1
                if region.uses:
                    continue
                self._places.give_back(region.holder)
                self._registered.give_back(region.holder, region.byte_size)
                waiting = self._waiting.pop(region, [])
            region.close()
            for each in waiting:
                if each.set_running_or_notify_cancel():
                    each.set_result(None)


def _holder(caller: Caller) -> str:
    """The name to count bytes and places under, for each connection and for each user."""
    return f"{caller.user} {caller.peer}"
