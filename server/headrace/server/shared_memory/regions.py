"""Keeps the regions that clients have registered, and counts how requests use them.

A client sees only the regions of its own user and owner. It can only register files that its user
owns, and each of them has separate names. Memory that a client hands over has a name that only this
client knows, and belongs to its identity. Requests cannot name a region after it is unregistered.
Its file is closed when the last request that uses it has ended.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar

from headrace.runtime.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
)
from headrace.server.shared_memory.bounds import Bounds
from headrace.server.shared_memory.handed import PREFIX, HandedRegion
from headrace.server.shared_memory.region import FOLDER, Region, RegionStatus, open_key
from headrace.server.shared_memory.users import Caller

T = TypeVar("T")

MAX_NAME_LENGTH: Final = 256
_THREADS = 4
_HANDED = -1
"""Stands for the user in the keys of regions that were handed over, which have an identity."""
_QUICK_BYTES = 8 << 20
"""The most bytes of a region that is closed at once. To free a gigabyte takes 0.1 s."""
_LOOKED_AT: Final = 16
"""For how many regions a registration pays that looks whether their files are still there."""


class UnknownRegion(NotFound):
    reason = "UNKNOWN_REGION"


class Regions:
    """All regions of one server. Thread-safe: gRPC and HTTP have an event loop each.

    `_lock` guards the tables and all counts. No file is opened, read or written while it is held.

    Args:
        allowed: whether clients may register regions at all.
        max_bytes: the limit of `Bounds`.
        folder: the folder of the files.
    """

    def __init__(self, *, allowed: bool, max_bytes: int, folder: str = FOLDER) -> None:
        self._allowed = allowed
        self._folder = folder
        self._lock = threading.Lock()
        self._regions: dict[tuple[int, str, str], Region] = {}  # by user, owner and name
        self._waiting: dict[Region, list[Future[None]]] = {}  # callers that wait for its end
        self._bounds = Bounds(max_bytes)
        self._paid = 0
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
        self._add(place, Region(name, key, offset, byte_size, descriptor, caller.holder))

    def hand_over(self, region: HandedRegion, identity: str) -> None:
        """Takes the memory of a client, which its requests may name from now on. Closes the region
        if it cannot be taken.

        Raises:
            ResourceExhausted: there are as many regions or bytes as allowed.
        """
        self._forget_deleted()
        self._add((_HANDED, identity, region.name), region)

    def take_back(self, name: str, identity: str) -> Future[None] | None:
        """Forgets memory that was handed over, if it is known. The future is done when no request
        uses it any more."""
        with self._lock:
            region = self._regions.pop((_HANDED, identity, name), None)
            ended = None if region is None else self._ended(region)
        self._release([] if region is None else [region])
        return ended

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
                regions = [self._regions[self._key(caller, name)]]
            else:
                whose = caller.user, caller.owner
                regions = [region for place, region in self._regions.items() if place[:2] == whose]
            return [region.status for region in regions]

    def close(self) -> None:
        """Forgets all regions. Requests that already use some may continue."""
        with self._lock:
            gone = self._pop(lambda *_: True)
        self._release(gone)
        self._threads.shutdown(wait=False)

    # -- for leases --

    def check_allowed(self) -> None:
        """
        Raises:
            FailedPrecondition: shared memory is off.
        """
        if not self._allowed:
            raise FailedPrecondition(
                "shared memory of clients is off; start the server with "
                "--allow-client-shared-memory"
            )

    def use(self, caller: Caller, name: str, field: str) -> Region:
        """The region of that name. It stays open until `release`.

        Raises:
            UnknownRegion: there is no region of that name.
            FailedPrecondition: the client is not on this machine.
        """
        if not name.startswith(PREFIX):
            self._user(caller)
        with self._lock:
            region = self._regions[self._key(caller, name, field)]
            region.uses += 1
            return region

    def release(self, regions: Iterable[Region], copied_bytes: Mapping[str, int]) -> None:
        """Gives back the regions and bytes that a request has used.

        Args:
            copied_bytes: for each holder.
        """
        with self._lock:
            for holder, size in copied_bytes.items():
                self._bounds.give_back_bytes(holder, size)
        self._release(regions)

    def take_bytes(self, holder: str, size: int, field: str) -> None:
        """
        Raises:
            ResourceExhausted: requests in flight have read as many bytes as allowed.
        """
        with self._lock:
            self._bounds.take_bytes(holder, size, field)

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
        self.check_allowed()
        if caller.user is None:
            raise FailedPrecondition(
                "shared memory with a name is for clients on the server's machine and in its "
                "network namespace, and the server finds no TCP socket of yours there; send the "
                "tensors in the message, or hand memory over beside the server's Unix socket"
            )
        return caller.user

    def _add(self, place: tuple[int, str, str], region: Region) -> None:
        try:
            with self._lock:
                self._refuse_used(place)
                self._bounds.take(region)
                region.uses = 1
                self._regions[place] = region
        except BaseException:
            region.close()
            raise

    def _key(self, caller: Caller, name: str, field: str = "name") -> tuple[int, str, str]:
        """The key of a region that exists. Call this with the lock held."""
        handed = _HANDED, caller.identity, name
        if handed in self._regions:
            return handed
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

    def _pop(self, chosen: Callable[[tuple[int, str, str], Region], bool]) -> list[Region]:
        """Takes regions out of the table. Call this with the lock held."""
        keys = [key for key, region in self._regions.items() if chosen(key, region)]
        return [self._regions.pop(key) for key in keys]

    def _forget_deleted(self) -> None:
        """Forgets regions with deleted files: nobody needs them, but they still hold memory.

        With hundreds of regions it does not look each time: that takes a millisecond of the event
        loop.
        """
        with self._lock:
            self._paid += _LOOKED_AT
            if self._paid < len(self._regions):
                return
            self._paid = 0
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
                self._bounds.give_back(region)
                waiting = self._waiting.pop(region, [])
            if region.byte_size > _QUICK_BYTES:
                with suppress(RuntimeError):  # the server stops
                    self._threads.submit(_close, region, waiting)
                    continue
            _close(region, waiting)


def _close(region: Region, waiting: Iterable[Future[None]]) -> None:
    region.close()
    for future in waiting:
        if future.set_running_or_notify_cancel():
            future.set_result(None)
