"""How calls begin and end, as bytes: who calls what until when, and the status."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from headrace.server.processes.frames import MAX_CONTROL_BYTES, Broken

_BEGIN = struct.Struct("<dHI")
_SIZE = struct.Struct("<I")
_KNOWN_CALLERS = 1024
_KNOWN_BYTES = 4096
_BINARY = "-bin"
_CODES: Final = range(17)

Metadata: TypeAlias = "tuple[tuple[str, str | bytes], ...]"


class Caller(NamedTuple):
    """What gRPC says of the caller.

    Attributes:
        certificate: the verified certificate of the connection in PEM form; "" without one.
    """

    peer: str
    metadata: Metadata
    certificate: str = ""


class Begin(NamedTuple):
    """The beginning of a call.

    Attributes:
        deadline: on `time.monotonic`'s clock, which all processes share; None without one.
        method: its number in the table that the engine gave to the front end.
        offset: where the message begins in the frame's body.
    """

    deadline: float | None
    method: int
    caller: Caller
    offset: int


class Status(NamedTuple):
    """How a call ended.

    Attributes:
        code: gRPC's number; 0 is OK.
        offset: where the message begins in the frame's body.
    """

    code: int
    details: str
    trailing: Metadata
    offset: int = 0


def begin(deadline: float | None, method: int, caller: bytes) -> bytes:
    """The body of BEGIN up to the message.

    Args:
        caller: from `Callers.to_bytes`.
    """
    return _BEGIN.pack(math.inf if deadline is None else deadline, method, len(caller)) + caller


def parse_begin(body: bytes, methods: int, callers: Callers) -> Begin:
    """
    Args:
        methods: how many methods there are.
    """
    if len(body) < _BEGIN.size:
        raise Broken("a call without its beginning")
    deadline, method, size = _BEGIN.unpack_from(body)
    offset = _BEGIN.size + size
    if method >= methods or size > MAX_CONTROL_BYTES or offset > len(body) or math.isnan(deadline):
        raise Broken("the beginning of a call is not valid")
    caller = callers.from_bytes(body[_BEGIN.size : offset])
    return Begin(None if deadline == math.inf else deadline, method, caller, offset)


class Callers:
    """Callers as bytes, and bytes as callers. Most calls of a caller are alike, so recent callers
    with few bytes are remembered. Each end of a connection has its own."""

    def __init__(self) -> None:
        self._bytes: dict[Caller, bytes] = {}
        self._callers: dict[bytes, Caller] = {}

    def to_bytes(self, caller: Caller) -> bytes:
        data = self._bytes.get(caller)
        if data is None:
            facts = [caller.peer, _metadata_to_json(caller.metadata), caller.certificate]
            data = json.dumps(facts, separators=(",", ":")).encode()
            _remember(self._bytes, caller, data, len(data))
        return data

    def from_bytes(self, data: bytes) -> Caller:
        caller = self._callers.get(data)
        if caller is None:
            match _parse(data):
                case [str(peer), list(metadata), str(certificate)]:
                    caller = Caller(peer, _metadata_from_json(metadata), certificate)
                case _:
                    raise Broken("the facts of a caller are not valid")
            _remember(self._callers, data, caller, len(data))
        return caller


def _remember(known: dict[Any, Any], key: Any, value: Any, size: int) -> None:
    if size <= _KNOWN_BYTES:
        if len(known) >= _KNOWN_CALLERS:
            del known[next(iter(known))]
        known[key] = value


_DONE: Final = _SIZE.pack(0)


def status(code: int, details: str, trailing: Metadata) -> bytes:
    """The body of END up to the message."""
    if not (code or details or trailing):
        return _DONE
    facts = [code, details, _metadata_to_json(trailing)]
    data = json.dumps(facts, separators=(",", ":")).encode()
    return _SIZE.pack(len(data)) + data


def parse_status(body: bytes) -> Status:
    if len(body) < _SIZE.size:
        raise Broken("a call without its status")
    (size,) = _SIZE.unpack_from(body)
    if not size:
        return Status(0, "", (), _SIZE.size)
    offset = _SIZE.size + size
    if offset > len(body):
        raise Broken("a status that is cut off")
    match _parse(body[_SIZE.size : offset]):
        case [int(code), str(details), list(trailing)] if code in _CODES:
            return Status(code, details, _metadata_from_json(trailing), offset)
    raise Broken("a status is not valid")


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Broken("a frame is not JSON") from error


def _metadata_to_json(metadata: Metadata) -> list[list[str]]:
    return [[key, value.hex() if isinstance(value, bytes) else value] for key, value in metadata]


def _metadata_from_json(entries: Sequence[Any]) -> Metadata:
    """The metadata. Values of keys that end in ``-bin`` are bytes, as in gRPC."""
    found: list[tuple[str, str | bytes]] = []
    for entry in entries:
        match entry:
            case [str(key), str(value)]:
                try:
                    found.append((key, bytes.fromhex(value) if key.endswith(_BINARY) else value))
                except ValueError:
                    raise Broken("metadata that are not hexadecimal") from None
            case _:
                raise Broken("metadata are not pairs")
    return tuple(found)
