"""Networks by name and version: loading, ready, draining or failed, with counted references.

A name is an alias for the version that serves, or for several versions that share its requests. If
a version is loaded again, the old one serves during the load. The switch happens in one step, under
the lock. The old one is closed when its last request has ended. Parts of other networks have no
name and are never here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import AlreadyExists, FailedPrecondition, HeadraceError, NotLoaded
from headrace.runtime.execution.job import Job
from headrace.runtime.loading.cold_loads import ColdLoads, ColdNetwork
from headrace.runtime.loading.entry import (
    COLD,
    FIRST_VERSION,
    SERVING,
    UNOWNED,
    NetworkEntry,
    NetworkKey,
    NetworkState,
    Tenancy,
    check_network_name,
    owner_of,
    plain_name,
)
from headrace.runtime.loading.table import NO_LIMITS, NetworkTable, OwnerLimits, why_unusable
from headrace.runtime.loading.versions import WHOLE

__all__ = ["NetworkEntry", "NetworkKey", "NetworkRegistry", "NetworkState", "check_network_name"]


class NetworkRegistry:
    """The networks of a server. Thread-safe: `_lock` guards the table and its entries. Callbacks
    run outside the lock.

    Attributes:
        cold: the loads of networks that are known and not loaded.

    Args:
        limit: the most versions of networks at once that are loaded, being loaded or draining. A
            version that is being replaced adds one, because old and new exist side by side. A load
            that was given up counts until its backend returns.
        of_owner: the limits of each owner.
    """

    def __init__(self, limit: int, of_owner: OwnerLimits = NO_LIMITS) -> None:
        self._lock = threading.Lock()
        self._table = NetworkTable(limit, of_owner)
        self.cold = ColdLoads()

    # -- lists --

    def find(self, name: str, version: str = "") -> NetworkEntry:
        """A network in any state. Without a version it is the version that serves, or the highest
        version if none serves.

        Raises:
            NotFound: no network has the name, or no network of that name has the version.
        """
        with self._lock:
            entry = self._table.find(name, version)
        if entry is None:
            raise self._unusable(name, version)
        return entry

    def first(self, names: Sequence[str]) -> str:
        """The first name that a network has, in any state. If no network has one, `names[0]`."""
        return next(filter(self.has, names), names[0])

    def has(self, name: str) -> bool:
        """Whether a network has the name, in any state."""
        with self._lock:
            return name in self._table.names or bool(self._table.loading_of(name))

    def versions(self, name: str) -> list[NetworkEntry]:
        """The versions of a name in any state, the lowest first. If a version is being replaced, it
        is the entry that serves."""
        with self._lock:
            return list(self._table.all_of(name).values())

    def loads(self, name: str) -> list[NetworkEntry]:
        """The versions of a name that are being loaded, whether or not they replace others."""
        with self._lock:
            return self._table.loading_of(name)

    def shares(self, name: str) -> dict[str, int]:
        """The shares that `share` set last."""
        with self._lock:
            return dict(self._table.versions(name).shares)

    def serving(self, name: str) -> dict[str, int]:
        """The per cent of the requests for each version that gets any."""
        with self._lock:
            return dict(self._table.versions(name).serving)

    def entries(self) -> list[NetworkEntry]:
        """All networks: first the current ones, then those being loaded, then those that drain."""
        with self._lock:
            return self._table.all()

    def runners(self) -> list[NetworkEntry]:
        """The loaded networks that run others."""
        with self._lock:
            return [*self._table.runners.values()]

    def failed(self) -> list[tuple[str, str]]:
        """The networks of which no version serves, and the versions that failed beside one that
        serves. A pair has a name and a version, which is empty for the whole network."""
        failed: list[tuple[str, str]] = []
        with self._lock:
            for name, versions in self._table.names.items():
                taking = versions.taking()
                if versions.entries and not taking:
                    failed.append((name, ""))
                elif len(taking) < len(versions.entries):
                    ended = NetworkState.FAILED
                    failed += (
                        (name, version)
                        for version, entry in versions.entries.items()
                        if entry.state is ended
                    )
        return sorted(failed)

    # -- loading --

    def reserve(
        self,
        name: str,
        device: str,
        record: Any,
        *,
        version: str = FIRST_VERSION,
        tenancy: Tenancy = UNOWNED,
        replace: bool = False,
        cold: bool = False,
    ) -> NetworkEntry:
        """Reserves the name for a load, and returns the entry of the load.

        Args:
            tenancy: versions of one owner may be added and replaced without `replace`.
            cold: whether the version is to be loaded only if it is known or evicted, and the one
                that `tenancy.again` loads.

        Raises:
            AlreadyExists: the name is in use, or being loaded.
            ResourceExhausted: there are as many networks as the server allows.
            NotFound, FailedPrecondition: the version that was known or evicted is gone.
        """
        table = self._table
        with self._lock:
            table.check_free(name, version, tenancy.owner, replace=replace)
            there = table.versions(name).entries.get(version)
            known = there if there is not None and there.state in COLD else None
            if cold and (known is None or known.tenancy.again is not tenancy.again):
                if there is not None and there.state in SERVING:
                    shown = plain_name(name)
                    raise AlreadyExists(f"network {shown!r} is there already", field="name")
                raise self._why_unusable(name, version)
            if not (cold and tenancy.residence.of_client):  # else it has its place already
                table.check_room(name, None if tenancy.owner is None else version)
            entry = table.entry(name, version, device, record, tenancy)
            if known is not None:
                entry.memory_bytes, entry.maps_weights = known.memory_bytes, known.maps_weights
                entry.uses, entry.last_used = known.uses, known.last_used
            table.loading[name, version] = entry
            return entry

    def count_bytes(self, entry: NetworkEntry, measure: Callable[[], int]) -> None:
        """Counts the bytes of a model for its owner, if their number is limited.

        Args:
            measure: returns the bytes of the entry's model. It may take long.

        Raises:
            ResourceExhausted: the owner has too many bytes loaded.
        """
        if self._table.of_owner.model_bytes and owner_of(entry.key.name):
            entry.model_bytes = measure()
            with self._lock:
                self._table.check_bytes(entry)

    def list_failed(
        self,
        name: str,
        device: str,
        record: Any,
        reason: str,
        *,
        version: str = FIRST_VERSION,
        owner: object = None,
    ) -> None:
        """Lists a network whose load could not even begin, whatever the limit.

        Raises:
            AlreadyExists: the name is in use, or being loaded.
        """
        table = self._table
        with self._lock:
            table.check_free(name, version, owner, replace=False)
            there = table.versions(name).entries.get(version)
            if there is not None and (owner is None or there.state in SERVING):
                raise AlreadyExists(f"network {plain_name(name)!r} exists", field="name")
            entry = table.entry(name, version, device, record, Tenancy(owner))
            entry.state = NetworkState.FAILED
            entry.reason = reason
            table.put(entry)

    def know(
        self,
        name: str,
        device: str,
        record: Any,
        *,
        version: str = FIRST_VERSION,
        tenancy: Tenancy,
        on_replaced_drained: Callable[[NetworkEntry], object],
    ) -> NetworkEntry:
        """Lists a network that its first request loads. It takes the place of an earlier load.

        Raises:
            AlreadyExists: the name is in use, or being loaded.
        """
        table = self._table
        with self._lock:
            table.check_free(name, version, tenancy.owner, replace=False)
            entry = table.entry(name, version, device, record, tenancy)
            entry.state = NetworkState.KNOWN
            drained = self._drain(table.put(entry), on_replaced_drained)
        self._drained(drained)
        return entry

    def evict(
        self,
        entry: NetworkEntry,
        record_of_cold: Callable[[Any], Any],
        on_drained: Callable[[NetworkEntry], object],
        sequences: Collection[str] = (),
    ) -> bool:
        """Takes a loaded network out of memory, once its last request has ended. Its next request
        loads it. Returns False if it is not loaded any more, cannot be loaded again, or has an open
        sequence of others than `sequences`.

        Args:
            record_of_cold: makes the record of the network that is not loaded from that of the
                loaded one.
            on_drained: gets the loaded one.
            sequences: the identities whose sequences may end.
        """
        name, version, _ = entry.key
        table = self._table
        with self._lock:
            if entry.state is not NetworkState.READY or entry.tenancy.again is None:
                return False
            assert entry.executable is not None
            owners = entry.executable.sequence_owners
            about_to = entry.executable.states and entry.references and not owners
            if about_to or not owners.issubset(sequences):
                return False
            record = record_of_cold(entry.record)
            cold = table.entry(name, version, entry.device, record, entry.tenancy)
            cold.state = NetworkState.EVICTED
            cold.memory_bytes, cold.maps_weights = entry.memory_bytes, entry.maps_weights
            cold.uses, cold.last_used = entry.uses, entry.last_used
            cold.load_seconds, cold.stage_seconds = entry.load_seconds, entry.stage_seconds
            if entry.tenancy.residence.of_client:
                cold.model_bytes, entry.model_bytes = entry.model_bytes, 0
            drained = self._drain(table.put(cold), on_drained)
        self._drained(drained)
        return True

    def publish(
        self,
        entry: NetworkEntry,
        executable: ExecutableNetwork,
        on_replaced_drained: Callable[[NetworkEntry], object],
    ) -> None:
        """Makes the entry a version of its name. An entry without an owner replaces all versions of
        the name. The replaced entries drain and are then passed to `on_replaced_drained`."""
        with self._lock:
            del self._table.loading[entry.key.name, entry.key.version]
            entry.executable = executable
            entry.state = NetworkState.READY
            entry.count_use(time.monotonic(), 0)
            if executable.runs:
                self._table.runners[entry.key] = entry
            drained = self._drain(self._table.put(entry), on_replaced_drained)
        self._drained(drained)

    def change_record(self, entry: NetworkEntry, change: Callable[[Any], Any]) -> None:
        """Changes what is kept with a network that is in use, also if it leaves memory now."""
        with self._lock:
            entry.record = change(entry.record)
            there = self._table.versions(entry.key.name).entries.get(entry.key.version)
            again = entry.tenancy.again
            if there and there is not entry and there.tenancy.again is again is not None:
                there.record = change(there.record)

    def give_up(self, entry: NetworkEntry, error: HeadraceError) -> bool:
        """Marks a network that is being loaded as no longer wanted, and frees its name. Returns
        False if it is not being loaded any more."""
        table, place = self._table, (entry.key.name, entry.key.version)
        with self._lock:
            if entry.state is not NetworkState.LOADING:
                return False
            entry.given_up = entry.given_up or error
            if table.loading.get(place) is entry:
                table.given_up[entry.key] = table.loading.pop(place)
            return True

    def fail(self, entry: NetworkEntry, reason: str, *, keep: bool) -> None:
        """Marks a load as failed. With `keep`, and if no other network has the name, the entry
        stays in the list with its reason."""
        name, version, _ = entry.key
        table = self._table
        with self._lock:
            if table.given_up.pop(entry.key, None) is None:
                del table.loading[name, version]
            entry.state = NetworkState.FAILED
            entry.reason = reason
            entry.model_bytes = 0
            others = [
                each
                for each in table.versions(name).taking().values()
                if each.state not in COLD or each.key.version != version
            ]
            owner = entry.tenancy.owner
            beside = owner is not None and all(
                other.tenancy.owner == owner and other.key.version != version for other in others
            )
            if keep and (beside or not others):
                table.put(entry)

    # -- use --

    def acquire(self, name: str, version: str = "", sequence: str = "") -> NetworkEntry:
        """Takes a reference to a ready network. The caller must give it back with `release`.

        Args:
            version: a version of the name. Empty for the version that serves, or, if several share
                the requests, the version whose turn it is.
            sequence: the sequence that the request belongs to. Without a version, the version on
                which the sequence is open gets the request.

        Raises:
            NotFound: no network has the name, or no network of that name has the version.
            Unavailable: the network is being loaded.
            NotLoaded: the network is known, or one that it runs. Who can wait has `cold` load that.
            FailedPrecondition: the network failed to load.
        """
        with self._lock:
            versions = self._table.names.get(name)
            if versions is not None:
                held = versions.holding(sequence) if sequence and not version else None
                entry = held or (versions.entries.get(version) if version else versions.next())
                if entry is not None and entry.executable is not None and entry.executable.runs:
                    entry = self._table.cold_behind(entry) or entry
                if entry is not None and entry.state is NetworkState.READY:
                    entry.references += 1
                    return entry
                if entry is not None and entry.state in COLD:
                    missing = plain_name(entry.key.name)
                    raise NotLoaded(
                        f"network {missing!r} is not loaded; its next request loads it",
                        ColdNetwork(entry, self.cold),
                    )
        raise self._unusable(name, version)

    def release(self, entry: NetworkEntry, job: object = None) -> None:
        """Gives back a reference. It can also be an observer of a job, which has used the
        network."""
        with self._lock:
            entry.references -= 1
            if job is not None:
                entry.count_use(time.monotonic())
            drained = entry.state is NetworkState.DRAINING and entry.references == 0
        if drained:
            self._drained([entry])

    def submit(self, entry: NetworkEntry, job: Job) -> None:
        """Submits a job to an acquired network. It gives the reference back when the job has ended,
        or at once if the job is refused. Raises as `ExecutableNetwork.submit`."""
        assert entry.executable is not None
        job.network, job.version, job.generation = entry.key

        give_back = partial(self.release, entry)
        job.observe(give_back)
        try:
            if entry.shadow is not None:
                entry.shadow(entry, job)
            entry.executable.submit(job)
        except BaseException as error:
            if isinstance(error, HeadraceError):
                error.network = job.network
            job.forget(give_back)
            self.release(entry)
            raise

    def share(self, name: str, shares: Mapping[str, int], *, ahead: bool = False) -> None:
        """Sets how the versions of a name share its requests from now on. Without shares the
        highest version serves.

        Args:
            shares: as `check_shares` returns them.
            ahead: whether the shares are for versions that will be loaded later.

        Raises:
            NotFound: no network has the name, or the name does not have a version in `shares`.
            Unavailable, FailedPrecondition: such a version is being loaded, or failed to load. Or
                there is no version that gets what the shares leave over.
        """
        whole = sum(shares.values()) == WHOLE
        with self._lock:
            taking = self._table.versions(name).taking()
            missing = [version for version in shares if version not in taking]
            rest = whole or not shares or taking.keys() - shares.keys()
            if ahead or (taking and not missing and rest):
                self._table.share(name, shares)
                return
        if missing or not taking:
            raise self._unusable(name, missing[0] if missing else "")
        raise FailedPrecondition(
            f"the shares add up to {sum(shares.values())}, and {plain_name(name)!r} has no other "
            f"version to get the rest; have them add up to {WHOLE}",
            field="traffic",
        )

    def shadow(self, name: str, shadow: Callable[[NetworkEntry, Job], object] | None) -> None:
        """Has `shadow` see each request to a version of the name from now on, before it is
        submitted. There need be no version yet. None ends that."""
        with self._lock:
            if shadow is None:
                self._table.shadows.pop(name, None)
            else:
                self._table.shadows[name] = shadow
            for entry in self._table.versions(name).entries.values():
                entry.shadow = shadow

    # -- end --

    def retire(
        self,
        name: str,
        on_drained: Callable[[NetworkEntry], object],
        *,
        but: Callable[[NetworkEntry], bool] | None = None,
    ) -> list[NetworkEntry]:
        """Removes the versions of a name at once. It calls `on_drained` with each version when no
        reference to it is left.

        Args:
            but: says which versions stay.

        Raises:
            NotFound: no network has the name. Not raised if some may stay.
            Unavailable: the network is still being loaded. Not raised if some may stay.
        """
        with self._lock:
            leaving = self._table.take(name, but)
            drained = self._drain(leaving, on_drained)
        self._drained(drained)
        if not leaving and but is None:
            raise self._unusable(name, "")
        return leaving

    # -- inside --

    def _unusable(self, name: str, version: str) -> HeadraceError:
        with self._lock:
            return self._why_unusable(name, version)

    def _why_unusable(self, name: str, version: str) -> HeadraceError:
        """The caller holds the lock."""
        versions, entry = self._table.all_of(name), self._table.find(name, version)
        return why_unusable(name, version, list(versions), entry, list(self._table.names))

    def _drain(
        self, leaving: Collection[NetworkEntry], then: Callable[[NetworkEntry], object]
    ) -> list[NetworkEntry]:
        """Starts to drain entries, and returns those that have no requests left. The caller holds
        the lock."""
        for entry in leaving:
            entry.state = NetworkState.DRAINING
            entry.on_drained = partial(then, entry)
            self._table.draining[entry.key] = entry
            self._table.runners.pop(entry.key, None)
        return [entry for entry in leaving if entry.references == 0]

    def _drained(self, entries: Collection[NetworkEntry]) -> None:
        for entry in entries:
            with self._lock:
                then, entry.on_drained = entry.on_drained, None
                self._table.draining.pop(entry.key, None)
            if then is not None:
                then()
