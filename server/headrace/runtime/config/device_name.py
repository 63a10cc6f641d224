"""Device names: one grammar, parsed in one place.

    device := NAME [ "." id ] | NAME ":" item { "," item }
    item   := [ "-" ] ( NAME [ "." id ] | "[" device "]" ) [ "(" count ")" ]

NAME is upper case (lower case is accepted), an id is letters, digits, '.', '_' and '-'. Only the
virtual devices HETERO, MULTI, AUTO and BATCH take a list. A count is requests in flight for MULTI
and the batch size for BATCH; "-" is AUTO's and excludes. A member with a list of its own stands in
brackets: ``MULTI:[BATCH:CPU(8)](4),[HETERO:A,B](2)``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from headrace.runtime.errors import InvalidArgument, NotFound, did_you_mean

MAX_LENGTH = 1024
MAX_DEPTH = 4
MAX_MEMBERS = 64
MAX_COUNT = 65536

VIRTUAL_TYPES = ("HETERO", "MULTI", "AUTO", "BATCH", "PIPELINE")
_LISTED = ("HETERO", "MULTI", "AUTO", "BATCH")
_COUNTED = ("MULTI", "BATCH")

_ALSO_CALLED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"GPU": ("OPENVINO.GPU", "OPENCL", "CUDA"), "NPU": ("OPENVINO.NPU",), "TPU": ()}
)
"""Device names of other programs, each with the headrace devices that it may mean."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_COUNT = re.compile(r"[1-9][0-9]{0,4}")


@dataclass(frozen=True, slots=True)
class Member:
    """A device in the list of a virtual one."""

    device: DeviceName
    count: int | None = None  # MULTI: requests in flight; BATCH: size; None: the device's choice
    excluded: bool = False  # AUTO: never this one

    def __str__(self) -> str:
        device = f"[{self.device}]" if self.device.members else str(self.device)
        count = "" if self.count is None else f"({self.count})"
        return f"{'-' if self.excluded else ''}{device}{count}"


@dataclass(frozen=True, slots=True)
class DeviceName:
    """A parsed device name. `str` gives the canonical text, which parses to an equal name."""

    type: str
    id: str = ""  # "": none given
    members: tuple[Member, ...] = ()

    def __str__(self) -> str:
        if self.members:
            return f"{self.type}:{','.join(map(str, self.members))}"
        return f"{self.type}.{self.id}" if self.id else self.type

    @classmethod
    def parse(cls, text: str, *, field: str = "device") -> DeviceName:
        """Reads a name from the request field `field`.

        Raises:
            InvalidArgument: the text is wrong. The error shows the position and what it expected.
        """
        return _Parser(text, field).parse()

    @property
    def is_virtual(self) -> bool:
        return self.type in VIRTUAL_TYPES

    def types(self) -> Iterator[str]:
        """The type of the device and the types of all devices in its list, at any depth."""
        yield self.type
        for member in self.members:
            yield from member.device.types()

    def physical(self) -> Iterator[DeviceName]:
        """The devices without members that this device runs on, in order, at any depth."""
        if not self.members:
            yield self
        for member in self.members:
            if not member.excluded:
                yield from member.device.physical()


def unknown_device(name: str, known: Collection[str], *, field: str = "device") -> NotFound:
    """The error for a type that is not among the `known` types."""
    if name not in _ALSO_CALLED:
        return NotFound.unknown("device", name, known, field=field)
    meant = [repr(alias) for alias in _ALSO_CALLED[name] if alias.partition(".")[0] in known]
    hint = f"; did you mean {' or '.join(meant)}?" if meant else did_you_mean("", known)
    return NotFound(f"unknown device {name!r}{hint}", field=field)


def resolve(
    device: DeviceName, available: Mapping[str, Sequence[str]], *, field: str = "device"
) -> DeviceName:
    """`device` with every type in a list expanded to all its ids, each with the type's count.

    These stay as they are: a type with one id or none, BATCH's only member, and the members that
    AUTO excludes.
    An id listed beside its type appears once, where it was named.

    Args:
        available: the known types, virtual ones included, and each one's AVAILABLE_DEVICES, which
            are looked up only if they matter, because looking them up may start a backend.

    Raises:
        NotFound: on an unknown type or id; says "did you mean".
        InvalidArgument: AUTO excludes all devices that it lists.
    """
    if device.type not in available:
        raise unknown_device(device.type, available, field=field)
    ids = available[device.type] if device.id else ()
    if ids and device.id not in ids:
        raise NotFound.unknown(
            "device", str(device), [f"{device.type}.{known}" for known in ids], field=field
        )
    listed = [member.device for member in device.members]
    named = {(each.type, each.id) for each in listed if each.id}
    members: list[Member] = []
    for member in device.members:
        inner = resolve(member.device, available, field=field)
        if inner.id or inner.members or inner.is_virtual or member.excluded:
            members.append(replace(member, device=inner))
            continue
        inner_ids = available[inner.type]
        if device.type == "BATCH" or len(inner_ids) < 2:
            if not any((inner.type, known) in named for known in inner_ids):
                members.append(replace(member, device=inner))
        else:
            members += [
                replace(member, device=replace(inner, id=known))
                for known in inner_ids
                if (inner.type, known) not in named
            ]
    # A list of exclusions alone means "any other", which is not what was asked for.
    if not all(member.excluded for member in device.members) and all(
        member.excluded for member in members
    ):
        raise InvalidArgument(f"{device} excludes every device that it lists", field=field)
    return replace(device, members=tuple(members))


class _Parser:
    """A recursive-descent parser; depth is bounded before each descent."""

    def __init__(self, text: str, field: str) -> None:
        self._text = text
        self._field = field
        self._at = 0
        self._members = 0

    def parse(self) -> DeviceName:
        if len(self._text) > MAX_LENGTH:
            raise InvalidArgument(
                f"a device name of {len(self._text)} characters is longer than the {MAX_LENGTH} "
                "allowed",
                field=self._field,
            )
        device = self._device(depth=1)
        if self._at < len(self._text):
            raise self._error("the end of the name")
        return device

    def _device(self, depth: int) -> DeviceName:
        start = self._at
        device = self._simple()
        if not self._peek(":"):
            return device
        if device.id:
            raise self._error("no list: a device with an id takes none")
        if device.type not in _LISTED:
            raise self._error(
                f"no list after {device.type}{_meant(device.type)}: only "
                f"{', '.join(_LISTED)} take one"
            )
        if depth > MAX_DEPTH:
            self._at = start
            raise self._error(f"lists nested at most {MAX_DEPTH} deep")
        members: list[Member] = []
        while self._take(":" if not members else ","):
            member = self._member(device.type, depth)
            if any(member.device == other.device for other in members):
                raise self._error(f"each device once, {member.device} is listed before")
            members.append(member)
        if device.type == "BATCH" and len(members) != 1:
            raise self._error("one device for BATCH, as BATCH:CPU(8)")
        return replace(device, members=tuple(members))

    def _member(self, owner: str, depth: int) -> Member:
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise self._error(f"at most {MAX_MEMBERS} devices in all")
        if self._peek("-") and owner != "AUTO":
            raise self._error(f"no '-' in {owner}: only AUTO excludes devices")
        excluded = self._take("-")
        if self._take("["):
            device = self._device(depth + 1)
            if not self._take("]"):
                raise self._error("',' or ']'" if device.members else "':' or ']'")
        else:
            device = self._simple()
            if self._peek(":"):
                raise self._error(f"brackets around a device with a list, as [{device}:…]")
        count = None
        if self._peek("("):
            if owner not in _COUNTED or excluded:
                raise self._error(f"no count in {owner}: only MULTI and BATCH take one")
            count = self._count()
        return Member(device, count, excluded)

    def _simple(self) -> DeviceName:
        name = self._match(_NAME)
        if name is None:
            raise self._error("a device's name, as CPU")
        device_id = ""
        if self._peek(".") and name.upper() in VIRTUAL_TYPES:
            raise self._error(f"no id: {name.upper()} is not one device")
        if self._take("."):
            matched = self._match(_ID)
            if matched is None:
                raise self._error("a device's id after '.', as CPU.0")
            device_id = matched
        return DeviceName(name.upper(), device_id)

    def _count(self) -> int:
        self._take("(")
        start = self._at
        digits = self._match(_COUNT)
        if digits is None or not self._take(")") or int(digits) > MAX_COUNT:
            self._at = start
            raise self._error(f"a count from 1 to {MAX_COUNT} and ')'")
        return int(digits)

    def _match(self, pattern: re.Pattern[str]) -> str | None:
        match = pattern.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match.group()

    def _peek(self, mark: str) -> bool:
        return self._text.startswith(mark, self._at)

    def _take(self, mark: str) -> bool:
        taken = self._peek(mark)
        self._at += len(mark) if taken else 0
        return taken

    def _error(self, expected: str) -> InvalidArgument:
        seen = self._text[self._at : self._at + 24]
        return InvalidArgument(
            f"device {_short(self._text)!r}, at position {self._at + 1}: expected {expected}, "
            f"found {seen!r}"
            if seen
            else f"device {_short(self._text)!r}, at its end: expected {expected}",
            field=self._field,
        )


def _meant(name: str) -> str:
    close = difflib.get_close_matches(name, _LISTED, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"
