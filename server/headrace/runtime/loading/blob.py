"""The export blob: a loaded network as bytes, to import here or on another server.

    magic, format version, three lengths    fixed size, big-endian
    header                                  JSON: device, configuration, inputs, outputs, meta
    SHA-256                                 of all bytes before it and of the network
    network                                 an ONNX ModelProto
    native                                  the backend's own bytes, possibly none
    MAC                                     HMAC-SHA256 under the server's key, of that SHA-256
                                            and of native

A client can make a blob with any header and network, because it can load any network anyway. It
cannot make native bytes, because it needs the key to compute their MAC. It cannot combine native
bytes with another network either, because the MAC covers both. `read` returns native bytes only if
the MAC is right.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.system.buffers import Buffer, joined, pieces
from headrace.runtime.virtual.exports import differences

FORMAT_VERSION = 1
_MAGIC = b"\x89headrace\r\n\x1a\n"  # not text; converting line ends would damage it
_PREFIX = struct.Struct(">13sIIQQ")  # magic, format version, lengths of header, network, native
_DIGEST_BYTES = 32
_MAX_HEADER_BYTES = 4 * 2**20
_MAX_NATIVE_BYTES = 2**32
_MAC_DOMAIN = b"headrace export blob, native part, 1\0"


@dataclass(frozen=True, slots=True)
class Blob:
    """An exported network.

    Attributes:
        device: canonical name of the device that it was exported from.
        network: the ONNX ModelProto in pieces. A blob that was read has one piece.
        native: the backend's own bytes; None if their MAC did not verify.
        config: the effective configuration at export, as canonical text.
        inputs, outputs: name and ONNX data type of each.
        meta: other data that is needed to make the network again, keyed by the data's owner.
    """

    device: str
    architecture: str
    backend_version: str
    network: Sequence[Buffer] = field(repr=False)
    native: bytes | None = field(default=b"", repr=False)
    config: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[tuple[str, str], ...] = ()
    outputs: tuple[tuple[str, str], ...] = ()
    meta: Mapping[str, str] = field(default_factory=dict)

    def check_device(self, device: str, architecture: str, backend_version: str) -> None:
        """Checks that the blob matches the device that would load its native bytes.

        Raises:
            InvalidArgument: the blob does not match. The error lists all differences.
        """
        why = differences(
            ("device", self.device, device),
            ("device architecture", self.architecture, architecture),
            ("backend version", self.backend_version, backend_version),
        )
        if why:
            _refuse(f"it was exported from another device: {why}")


def write(blob: Blob, key: bytes) -> Iterator[bytes]:
    """The blob's bytes in pieces of at most 256 KiB; `key` is the server's."""
    native = blob.native or b""
    header = _header(blob)
    network_size = sum(map(len, blob.network))
    prefix = _PREFIX.pack(_MAGIC, FORMAT_VERSION, len(header), network_size, len(native))
    digest = _digest(prefix, header, *blob.network)
    yield prefix
    yield from pieces((header,))
    yield digest
    yield from pieces((*blob.network, native))
    yield _mac(key, digest, native)


def read(data: Buffer, key: bytes, max_network_bytes: int = 2**31) -> Blob:
    """Reads the blob in `data`. Its `native` is None if the MAC does not verify under `key`.

    It does not parse the network. The blob's network is a view of `data`.

    Raises:
        InvalidArgument: `data` is not a blob, has another format, or is truncated, damaged or too
            large.
    """
    if len(data) < len(_MAGIC) or data[: len(_MAGIC)] != _MAGIC:
        _refuse("it does not start as an exported network does")
    if len(data) < _PREFIX.size:
        _refuse(f"it is truncated: {len(data)} bytes")
    _, version, header_size, network_size, native_size = _PREFIX.unpack_from(data)
    if version != FORMAT_VERSION:
        _refuse(f"its format is version {version}, this server reads version {FORMAT_VERSION}")
    for what, size, limit in (
        ("header", header_size, _MAX_HEADER_BYTES),
        ("network", network_size, max_network_bytes),
        ("native part", native_size, _MAX_NATIVE_BYTES),
    ):
        if size > limit:
            _refuse(
                f"its {what} has {size} bytes; at most {limit} are allowed (the server's "
                f"max_model_bytes, for the network)"
            )
    sizes = (_PREFIX.size, header_size, _DIGEST_BYTES, network_size, native_size, _DIGEST_BYTES)
    if len(data) != sum(sizes):
        what = "truncated" if len(data) < sum(sizes) else "too long"
        _refuse(f"it is {what}: {len(data)} bytes, but its lengths add up to {sum(sizes)}")
    prefix, header, digest, network, native, mac = _split(memoryview(data), sizes)
    if _digest(prefix, header, network) != digest:
        _refuse("it is damaged: its SHA-256 does not match")
    trusted = hmac.compare_digest(_mac(key, digest, native), mac)
    return _from_header(bytes(header), network, joined((native,)) if trusted else None)


def _digest(*parts: Buffer) -> bytes:
    # The prefix has a fixed size and the other parts' lengths, so their bounds are unambiguous.
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def _mac(key: bytes, digest: Buffer, native: Buffer) -> bytes:
    mac = hmac.new(key, _MAC_DOMAIN, hashlib.sha256)
    mac.update(digest)
    mac.update(native)
    return mac.digest()


def _split(data: memoryview, sizes: tuple[int, ...]) -> Iterator[memoryview]:
    start = 0
    for size in sizes:
        yield data[start : start + size]
        start += size


def _header(blob: Blob) -> bytes:
    header = {
        "device": blob.device,
        "architecture": blob.architecture,
        "backend_version": blob.backend_version,
        "config": dict(blob.config),
        "inputs": [{"name": name, "dtype": dtype} for name, dtype in blob.inputs],
        "outputs": [{"name": name, "dtype": dtype} for name, dtype in blob.outputs],
        "meta": dict(blob.meta),
    }
    return json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _from_header(header: bytes, network: memoryview, native: bytes | None) -> Blob:
    try:
        facts = json.loads(header)
        # JSON allows half a surrogate pair, but a reply cannot carry it as text.
        json.dumps(facts, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        _refuse("its header is not JSON")
    return Blob(
        device=_text(facts, "device"),
        architecture=_text(facts, "architecture"),
        backend_version=_text(facts, "backend_version"),
        network=(network,),
        native=native,
        config=_texts(facts, "config"),
        inputs=_ports(facts, "inputs"),
        outputs=_ports(facts, "outputs"),
        meta=_texts(facts, "meta"),
    )


def _ports(facts: object, name: str) -> tuple[tuple[str, str], ...]:
    ports = _entry(facts, name)
    if not isinstance(ports, list):
        _refuse(f"its header's {name} is not a list")
    return tuple((_text(port, "name"), _text(port, "dtype")) for port in ports)


def _entry(facts: object, name: str) -> Any:
    if not isinstance(facts, dict) or name not in facts:
        _refuse(f"its header lacks {name!r}")
    return facts[name]


def _text(facts: object, name: str) -> str:
    text = _entry(facts, name)
    if not isinstance(text, str):
        _refuse(f"its header's {name!r} is not text")
    return text


def _texts(facts: object, name: str) -> dict[str, str]:
    texts = _entry(facts, name)
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        _refuse(f"its header's {name!r} does not map text to text")
    return cast("dict[str, str]", texts)


def _refuse(why: str) -> NoReturn:
    raise InvalidArgument(f"the blob cannot be imported: {why}", field="blob")
