"""The server's key. The server uses it to recognise its own export blobs."""

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
    """Reads the key from the file `path`, or creates the file if there is none. Servers that share
    the file trust each other.

    White space around the key is ignored, so that a key can come from ``openssl rand -hex 32``. If
    several servers create the file at once, all get the same key.

    Raises:
        FailedPrecondition: the file holds no usable key.
        OSError: the file cannot be read or created.
    """
    try:
        return load_key(path)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        write_file(path, secrets.token_hex(_MIN_BYTES).encode() + b"\n", mode=0o600, replace=False)
    except FileExistsError:
        _log.info("another server created the key file %s meanwhile", path)
    return load_key(path)


def load_key(path: Path) -> bytes:
    """Reads the key from the file `path`. Raises as `load_or_create_key`."""
    key = read_file(path)[: _MAX_BYTES + 1].strip()
    if not _MIN_BYTES <= len(key) <= _MAX_BYTES:
        raise FailedPrecondition(
            f"the key file {path} must hold {_MIN_BYTES} to {_MAX_BYTES} bytes of key; "
            "remove it to have one made",
            field="key_file",
        )
    # Not an error: by default Kubernetes mounts secrets so that all in the container can read them.
    if path.stat().st_mode & 0o007:
        _log.warning("the key file %s is open to every user; chmod it to 600", path)
    return key
