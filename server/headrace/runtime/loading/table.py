"""The networks of a server by name and version, in any state, and the rules of their names.

Not thread-safe: the registry's lock guards it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from headrace.runtime.errors import (
    AlreadyExists,
    FailedPrecondition,
    HeadraceError,
    NotFound,
    ResourceExhausted,
    StillLoading,
)
from headrace.runtime.execution.job import Job
from headrace.runtime.loading.entry import (
    COLD,
    NetworkEntry,
    NetworkKey,
    NetworkState,
    Tenancy,
    check_network_name,
    check_version,
    owner_of,
    plain_name,
)
from headrace.runtime.loading.versions import Versions
from headrace.runtime.sequences.memory import may_take


class OwnerLimits(NamedTuple):
    """What one owner may have. 0 means no limit.

    Attributes:
        networks: versions of networks, counted as the limit of all.
        model_bytes: the bytes of their models together.
    """

    networks: int = 0
    model_bytes: int = 0


NO_LIMITS: Final = OwnerLimits()


class NetworkTable:
    """The table of a server's networks.

    Args:
        limit, of_owner: as `NetworkRegistry`.

    Attributes:
        names: the names that have versions that take requests or have failed.
        given_up: the loads that nobody wants any more and whose backends still work.
        runners: the loaded networks that run others.
        shadows: the shadows of names, as entries have them.
    """

    def __init__(self, limit: int, of_owner: OwnerLimits) -> None:
        self._limit = limit
        self.of_owner = of_owner
        self._generation = 0
        self.names: dict[str, Versions] = {}
        self.loading: dict[tuple[str, str], NetworkEntry] = {}
        self.given_up: dict[NetworkKey, NetworkEntry] = {}
        self.draining: dict[NetworkKey, NetworkEntry] = {}
        self.runners: dict[NetworkKey, NetworkEntry] = {}
        self.shadows: dict[str, Callable[[NetworkEntry, Job], object]] = {}

    def entry(
        self, name: str, version: str, device: str, record: Any, tenancy: Tenancy
    ) -> NetworkEntry:
        """A new entry. It is not in the table yet."""
        self._generation += 1
        return NetworkEntry(NetworkKey(name, version, self._generation), device, record, tenancy)

    def put(self, entry: NetworkEntry) -> list[NetworkEntry]:
        """Makes the entry a version of its name. An entry without an owner replaces all versions of
        the name. Returns the replaced entries."""
        name, version, _ = entry.key
        versions = self.versions(name)
        alone = entry.tenancy.owner is None
        old = [each for each in versions.entries.values() if alone or each.key.version == version]
        versions = Versions() if alone else versions
        versions.put(entry)
        entry.shadow = self.shadows.get(name)
        self.names[name] = versions
        return old

    def versions(self, name: str) -> Versions:
        """The versions of the name. If there are none, it is a new object that is not in the table
        yet."""
        return self.names.get(name) or Versions()

    def loading_of(self, name: str) -> list[NetworkEntry]:
        return [load for load in self.loading.values() if load.key.name == name]

    def all_of(self, name: str) -> dict[str, NetworkEntry]:
        """The name's entries by version, the lowest first. If a version is being replaced, it is
        the entry that serves. A cold one serves nobody until it is loaded."""
        there = self.versions(name).entries
        loading = {load.key.version: load for load in self.loading_of(name)}
        cold = {version for version, entry in there.items() if entry.state in COLD}
        entries = {**loading, **there, **{v: loading[v] for v in cold & loading.keys()}}
        return {version: entries[version] for version in sorted(entries, key=int)}

    def find(self, name: str, version: str) -> NetworkEntry | None:
        """The entry in any state. Without a version it is the version that serves, or the highest
        version if none serves."""
        entries = self.all_of(name)
        if version:
            return entries.get(version)
        shown = self.versions(name).shown()
        return entries[shown.key.version] if shown else next(reversed(entries.values()), None)

    def cold_behind(self, entry: NetworkEntry) -> NetworkEntry | None:
        """A network that a loaded one runs, at any depth, and that is cold; None if there is none.
        A pipeline may be loaded, and a network of its steps be listed anew, or get a version."""
        readers, seen = [entry], set[tuple[str, str]]()
        for each in readers:
            new = each.executable.runs - seen if each.executable is not None else ()
            for name, version in new:
                seen.add((name, version))
                for found in self.versions(name).chosen(version):
                    if found.state in COLD:
                        return found
                    readers.append(found)
        return None

    def all(self) -> list[NetworkEntry]:
        current = [
            entry
            for versions in self.names.values()
            for entry in versions.entries.values()
            if entry.state not in COLD or entry.key[:2] not in self.loading
        ]
        return [*current, *self.loading.values(), *self.draining.values()]

    def check_free(self, name: str, version: str, owner: object, *, replace: bool) -> None:
        """Checks that a network may take the name.

        Raises:
            AlreadyExists: the name is in use, or being loaded.
        """

        def strange(each: NetworkEntry) -> bool:
            return owner is None or each.tenancy.owner != owner

        shown = check_network_name(plain_name(name))
        check_version(version)
        if any(strange(load) or load.key.version == version for load in self.loading_of(name)):
            raise AlreadyExists(f"network {shown!r} is being loaded", field="name")
        if not replace and any(map(strange, self.versions(name).taking().values())):
            raise AlreadyExists(
                f"network {shown!r} exists; choose another name, unload it, or set replace",
                field="name",
            )

    def check_room(self, name: str, version: str | None) -> None:
        """Checks that there is room for one more network.

        Args:
            version: the version that is replaced; None for all versions of the name.

        Raises:
            ResourceExhausted: there are as many networks as the server allows.
        """

        def replaced(key: tuple[str, str]) -> bool:
            return key[0] == name and version in (None, key[1])

        there = {
            (of, version)
            for of, versions in self.names.items()
            for version, entry in versions.entries.items()
            if _counts(entry)
        }
        # A replacement needs no room of its own, unless an earlier one still drains.
        replaces = any(map(replaced, there)) and not any(
            replaced((key.name, key.version)) for key in self.draining
        )
        if replaces:
            return
        current = there | self.loading.keys()
        leaving = [(key.name, key.version) for key in (*self.draining, *self.given_up)]
        owner, most = owner_of(name), self.of_owner.networks
        count = len(current) + len(leaving)
        if owner:
            own = sum(owner_of(each) == owner for each, _ in (*current, *leaving))
            if most and own >= most:
                raise ResourceExhausted(
                    f"you have {own} networks that are loaded or being unloaded, as many as one "
                    "client may have (--max-networks-per-client); unload one"
                )
            if own and count < self._limit and not may_take(own + 1, self._limit - count - 1):
                raise ResourceExhausted(
                    f"you have {own} of at most {self._limit} networks (--max-networks), and an "
                    "eighth of them stays for others; unload one"
                )
        if count >= self._limit:
            raise ResourceExhausted(
                f"{count} networks are loaded or being unloaded, as many as the server allows; "
                f"unload one"
            )

    def check_bytes(self, entry: NetworkEntry) -> None:
        """Checks that the owner of a network that has been read may load so many bytes.

        Raises:
            ResourceExhausted: the owner has too many bytes loaded.
        """
        owner, most = owner_of(entry.key.name), self.of_owner.model_bytes
        there = {*self.all(), *self.given_up.values(), entry}
        total = sum(each.model_bytes for each in there if owner_of(each.key.name) == owner)
        if total > most:
            raise ResourceExhausted(
                f"with this one, your models take {total} bytes, and one client may have {most} "
                "(--max-model-bytes-per-client); unload one",
                field="model",
            )

    def take(
        self, name: str, but: Callable[[NetworkEntry], bool] | None = None
    ) -> list[NetworkEntry]:
        """Removes a name's versions that are ready or have failed, and returns them. The versions
        that `but` selects stay."""
        versions = self.versions(name)
        leaving = [entry for entry in versions.entries.values() if but is None or not but(entry)]
        versions.take([each.key.version for each in leaving])
        if not versions.entries:
            self.names.pop(name, None)
        return leaving

    def share(self, name: str, shares: Mapping[str, int]) -> None:
        """Sets how a name's versions share its requests, even before there are versions."""
        versions = self.versions(name)
        versions.share(shares)
        if versions.entries or shares:
            self.names[name] = versions
        else:
            self.names.pop(name, None)


def _counts(entry: NetworkEntry) -> bool:
    """Whether it is one of the networks that the server or its owner may have."""
    return entry.state is NetworkState.READY or (
        entry.state in COLD and entry.tenancy.residence.of_client
    )


def why_unusable(
    name: str, version: str, there: list[str], entry: NetworkEntry | None, names: list[str]
) -> HeadraceError:
    """The error that says why no request can go to a network.

    Args:
        there: the name's versions.
        entry: the entry under the name and the version.
        names: the names of all networks. The error names only those that the owner of `name` sees.
    """
    owner, name = owner_of(name), plain_name(name)
    if not there:
        seen = {plain_name(each) for each in names if owner_of(each) in ("", owner)}
        return NotFound.unknown("network", name[:200], seen, field="network")
    if entry is None:
        message = f"network {name!r} has no version {version[:200]!r}; it has {', '.join(there)}"
        return NotFound(message, field="version")
    if entry.state is NetworkState.FAILED:
        return FailedPrecondition(f"network {name!r} failed to load: {entry.reason}")
    return StillLoading(f"network {name!r} is still being loaded")
