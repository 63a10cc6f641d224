"""Sessions that map their weights from a file which is written once for a network and a machine.

ONNX Runtime writes its optimised graph with the weights as its kernels want them, and maps them
when it opens that graph. The second session of a 100 MB network takes 0 to 1 MB so, and opens in a
third of the time. It still packs each weight once, to compare the digest of the result, and then
drops it for what is mapped. In one process, networks share the session as well.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime

from headrace.plugins.cpu.backend import session
from headrace.plugins.cpu.backend.session import (
    OnnxRuntimeSession,
    Provider,
    SessionSettings,
    Source,
)
from headrace.plugins.cpu.backend.shared import SharedSessions
from headrace.runtime.cache.entry import EntryRefused
from headrace.runtime.cache.weights import WeightFiles
from headrace.runtime.device.cache_key import headrace_version, processor_features
from headrace.runtime.errors import HeadraceError
from headrace.runtime.execution.cancel import CancelToken

_log = logging.getLogger(__name__)


def open_source(
    source: Source,
    provider: Provider,
    settings: SessionSettings,
    token: CancelToken,
    shared: SharedSessions | None,
    keeps_state: bool = False,
) -> OnnxRuntimeSession:
    """Opens a session as `session.open_source` does, and raises the same. It maps its weights if
    the file can be written and opened, and may be that of another network.

    Args:
        keeps_state: whether a run has an influence on the next one.
    """
    if shared is None or not _is_plain(provider):
        return session.open_source(source, provider, settings, token)
    digest = digest_of(source, provider)
    kept = partial(
        open_kept, digest, source.is_safe, provider, settings, token, shared, keeps_state
    )
    opened = kept()
    if opened is not None:
        return opened
    failure = _write(digest, source, provider, settings, token, shared.files)
    opened = kept()
    if opened is None:
        opened = session.open_source(source, provider, settings, token)
        if failure is not None:  # not that of a network which is refused anyway
            _log.warning("weights are not shared: %s", failure)
    return opened


def digest_of(source: Source, provider: Provider) -> str:
    """The SHA-256, in hexadecimal, of everything that the file depends on."""
    sha = hashlib.sha256()

    def add(fact: object) -> None:
        text = repr(fact).encode()
        sha.update(len(text).to_bytes(8) + text)

    add(headrace_version())
    add(onnxruntime.__version__)
    add(processor_features())
    add((sorted(source.left_out), source.is_safe, source.folded_bytes, provider.keeps_int8))
    add(len(source.structure))
    sha.update(source.structure)
    for name, (array, dtype) in source.weights.items():
        add((name, int(dtype), array.shape, array.nbytes))
        sha.update(array.reshape(-1).view(np.uint8).data)
    return sha.hexdigest()


def _is_plain(provider: Provider) -> bool:
    return replace(provider, keeps_int8=False) == Provider()


def open_kept(
    digest: str,
    is_safe: bool,
    provider: Provider,
    settings: SessionSettings,
    token: CancelToken,
    shared: SharedSessions | None,
    keeps_state: bool = False,
) -> OnnxRuntimeSession | None:
    """A session that maps the file; None if there is none, or it cannot be used.

    Args:
        digest: as `digest_of`.
        is_safe: as `Source` has it.
        keeps_state: as in `open_source`.
    """
    if shared is None or not _is_plain(provider):
        return None
    key = digest, is_safe, provider.keeps_int8, settings
    there = None if keeps_state else shared.get(key)
    if there is not None:
        return there
    try:
        found = shared.files.find(digest)
        if found is None:
            return None
        opened = session.open_mapped(found.model, found.path, is_safe, provider, settings, token)
    except (EntryRefused, OSError, HeadraceError) as error:
        _log.warning("the weights %s are not used: %s", WeightFiles.file_name(digest), error)
        return None
    opened.digest = digest
    return opened if keeps_state else shared.add(key, opened)


def _write(
    digest: str,
    source: Source,
    provider: Provider,
    settings: SessionSettings,
    token: CancelToken,
    files: WeightFiles,
) -> Exception | None:
    """Writes the file. Returns why it cannot."""

    def write(path: Path) -> None:
        session.write_packed(source, provider, settings, token, path, files.file_name(digest))

    try:
        files.add(digest, write)
    except (EntryRefused, OSError, ValueError, HeadraceError) as error:
        return error
    return None
