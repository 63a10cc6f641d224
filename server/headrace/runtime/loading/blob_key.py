"""The server's key, under which it knows its own export blobs again."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

from headrace.runtime.errors import FailedPrecondition
from headrace.runtime.system.atomic_file import read_file, write_file

_MIN_BYTES = 32
_MAX_BYTES = 4096

_log = logging.getLogger(__name__)


def load_or_create_key(path: Path) -> bytes:
    """The key in the file `path`, made if there is none; servers that share it trust each other.

    White space around it does not count, so that a key can come from ``openssl rand -hex 32``.
    Of several servers that create it at once, all get the same key.

    Raises:
        FailedPrecondition: if the file holds no usable key.
        OSError: if it cannot be read or made.
    """
    try:
        return _load(path)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        write_file(path, secrets.token_hex(_MIN_BYTES).encode() + b"\n", mode=0o600, replace=False)
    except FileExistsError:
        _log.info("another server created the key file %s meanwhile", path)
    return _load(path)


def _load(path: Path) -> bytes:
    key = read_file(path)[: _MAX_BYTES + 1].strip()
    if not _MIN_BYTES <= len(key) <= _MAX_BYTES:
        raise FailedPrecondition(
            f"the key file {path} must hold {_MIN_BYTES} to {_MAX_BYTES} bytes of key; "
            "remove it to have one made",
            field="key_file",
        )
    # Not an error: Kubernetes mounts secrets readable by all in the container unless told else.
    if path.stat().st_mode & 0o007:
        _log.warning("the key file %s is open to every user; chmod it to 600", path)
    return key
