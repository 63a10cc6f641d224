"""The devices of a list that started, each with its part of the configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.plugins.multi.config import PRIORITIES
from headrace.runtime.config.device_name import Member
from headrace.runtime.config.schema import ConfigSchema
from headrace.runtime.device.services import Devices
from headrace.runtime.errors import HeadraceError, InvalidArgument, Unavailable, public_text
from headrace.runtime.execution.background import Background
from headrace.runtime.network.memory import forget_locals
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.transform.query import QueryResult
from headrace.runtime.transform.warm_up import WarmUp
from headrace.runtime.virtual.members import Target, ask, own_config, read_list, targets


@dataclass(frozen=True, slots=True)
class Failure:
    """A device that was left out, and why. This object lives as long as the network, so it must not
    keep references to the load."""

    device: str
    error: HeadraceError

    def __post_init__(self) -> None:
        forget_locals(self.error)

    @property
    def reason(self) -> str:
        """The part of the error that a caller may read."""
        return public_text(self.error)

    @staticmethod
    def said_of(device: str) -> str:
        """The beginning of the note about a device's failure."""
        return f"{device} was left out: "

    def __str__(self) -> str:
        return self.said_of(self.device) + self.reason


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device of the list that started; `count` is the number in brackets behind its name."""

    target: Target
    count: int | None = None

    @property
    def name(self) -> str:
        return self.target.name


@dataclass(frozen=True, slots=True)
class DeviceList:
    """A list of devices with a configuration.

    Attributes:
        own: the part of the configuration that the virtual device itself checks.
    """

    candidates: tuple[Candidate, ...]
    failures: tuple[Failure, ...]
    own: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Policy:
    """How a virtual device uses the devices of its list.

    Attributes:
        all_of_them, fallback: as for `Choice`.
        spill: as for `Schedule`.
        slow: devices that serve only if no other one does.
        measured: the devices of which the fastest one is to serve; fewer than two for none.
        throughput: whether the fastest one is the one with the most requests in a second.
        full_name: of the network; empty for a part of another one.
        warm_up: as in `Load`, for the measurement.
        background: where they are measured.
    """

    all_of_them: bool
    fallback: bool = True
    spill: bool = True
    slow: frozenset[str] = frozenset()
    measured: tuple[str, ...] = ()
    throughput: bool = False
    full_name: str = ""
    warm_up: WarmUp | None = None
    background: Background | None = None


def find(
    members: Sequence[Member],
    config: Mapping[str, str],
    shared: Mapping[str, str],
    devices: Devices,
    schema: ConfigSchema,
    withheld: Collection[str],
    options: NetworkOptions,
) -> DeviceList:
    """The devices of a list, in its order.

    Args:
        config, shared: as for `members.targets`.
        schema: the virtual device's.
        options: of the load; each device gets them, because each runs the whole network.

    Raises:
        NotFound: there is no such device.
    """
    candidates: list[Candidate] = []
    failures: list[Failure] = []
    kinds = {kind for member in members for kind in member.device.types()}
    for member in members:
        try:
            (target,) = targets([member.device], config, shared, devices, withheld)
        except Unavailable as error:
            failures.append(Failure(str(member.device), error))
            continue
        own = replace(options, members=target.options.members)
        if "HETERO" in kinds and "HETERO" not in member.device.types():
            own = replace(own, affinities={})  # only devices that split the network use them
        candidates.append(Candidate(replace(target, options=own), member.count))
    started = [candidate.target for candidate in candidates]
    return DeviceList(tuple(candidates), tuple(failures), own_config(schema, config, started))


def check_candidate(candidate: Candidate) -> None:
    """Refuses a configuration that is wrong whether or not the device could load the network.

    Raises:
        NotFound: the device has no such key or id.
        InvalidArgument: a bad value, or a key of the whole device.
    """
    plugin = candidate.target.plugin
    plain = {key: text for key, text in candidate.target.config.items() if "." not in key}
    plugin.schema.refuse_device_keys(plain, plugin.name)
    plugin.device_id(plugin.schema.resolve(plugin.settings(), plain))


def query(
    network: Network, candidates: Sequence[Candidate], *, strict: bool, lenient: bool
) -> QueryResult:
    """The answer of the first device that runs the whole network. If none does, the answer of the
    device that runs the most layers.

    Args:
        strict: every device has to run the network, so the answer is that of the first device that
            does not.
        lenient: skip a device that does not accept a value of the configuration.

    Raises:
        InvalidArgument: no device accepts the values of its configuration.
    """
    best: QueryResult | None = None
    refused: InvalidArgument | None = None
    for candidate in candidates:
        try:
            result = ask(candidate.target, network)
        except InvalidArgument as error:
            if not lenient or not (error.field or "").startswith("config"):
                raise
            refused = error
            continue
        if bool(result.unsupported) is strict:
            return result
        if best is None or len(result.supported_layers) > len(best.supported_layers):
            best = result
    if best is None:
        assert refused is not None, "a list has a device"
        raise refused
    return best


def read_priorities(
    text: str, available: Mapping[str, Sequence[str]] | None = None
) -> tuple[Member, ...]:
    """The devices that MULTI_DEVICE_PRIORITIES lists. Works and raises as `read_list`."""
    return read_list("MULTI", text, PRIORITIES, available)


def refuse_nested(members: Sequence[Member], owner: str, refused: Mapping[str, str]) -> None:
    """
    Args:
        refused: device type to advice on what to write instead.

    Raises:
        InvalidArgument: a device of the list is, or contains, a device of a refused type.
    """
    for member in members:
        for kind in member.device.types():
            if kind in refused:
                raise InvalidArgument(
                    f"{member.device} cannot be in a list of {owner}'s: {refused[kind]}",
                    field="device",
                )
