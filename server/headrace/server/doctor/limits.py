"""Checks what the system allows the server: files, memory, shared memory, processors."""

from __future__ import annotations

import math
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headrace.runtime.system.memory_limit import memory_limit
from headrace.runtime.system.processors import cpu_quota, usable_processors
from headrace.server.doctor.finding import Finding, ok, size_text, warning
from headrace.server.settings.option import GIB, MIB
from headrace.server.settings.settings import Settings
from headrace.server.transport.limits import max_connections

_OWN_FILES: Final = 256  # models, devices, libraries, workers
_LEAST_BYTES: Final = GIB
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_NUMBER_KEYS: Final = ("NUM_STREAMS", "INFERENCE_NUM_THREADS")


def check_files(settings: Settings) -> Iterator[Finding]:
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = max_connections(settings) + settings.max_concurrent_rpcs + _OWN_FILES
    if hard_limit == resource.RLIM_INFINITY or hard_limit >= needed:
        shown = "any number of" if hard_limit == resource.RLIM_INFINITY else str(hard_limit)
        yield ok("files", f"the server may open {shown} files, and needs at most about {needed}")
        return
    yield warning(
        "files",
        f"the server may open {hard_limit} files, but its connections alone may need {needed}",
        f"raise the hard limit (LimitNOFILE={needed} in systemd, --ulimit nofile={needed} in "
        "docker), or lower --max-concurrent-rpcs",
    )


def check_memory(settings: Settings) -> Iterator[Finding]:
    """Compares the memory that clients may make the server use with what there is."""
    use = memory_limit()
    if use is None:
        yield warning("memory", "the system does not tell how much memory there is", "mount /proc")
        return
    free = max(use.limit - use.used, 0)
    shown = f"{size_text(use.limit)}, of which {size_text(free)} are free"
    if use.limit < _LEAST_BYTES:
        yield warning(
            "memory",
            f"there is {shown}; a server with one small network needs 300 MiB",
            "raise the memory limit of the container or the machine",
        )
    bounds = {
        "max_stream_bytes": settings.max_stream_bytes,
        "max_state_bytes": settings.max_state_bytes,
        "max_response_cache_bytes": settings.max_response_cache_bytes,
        "max_shared_memory_bytes": (
            settings.max_shared_memory_bytes if settings.allow_client_shared_memory else 0
        ),
    }
    total = sum(bounds.values())
    if total > use.limit:
        names = ", ".join(f"{name} {size_text(size)}" for name, size in bounds.items() if size)
        yield warning(
            "memory",
            f"there is {shown}, but clients may make the server hold {size_text(total)} ({names})",
            "lower these settings, or raise the memory limit",
        )
    elif settings.max_model_bytes > use.limit:
        yield warning(
            "memory",
            f"there is {shown}, but a client may load a model of "
            f"{size_text(settings.max_model_bytes)} (max_model_bytes)",
            f"set --max-model-bytes to {size_text(max(use.limit // 2, MIB))} or less",
        )
    elif use.limit >= _LEAST_BYTES:
        yield ok("memory", shown)


def check_shared_memory(
    settings: Settings,
    folder: Path = Path("/dev/shm"),  # noqa: S108 - where POSIX shared memory is
) -> Iterator[Finding]:
    """Compares the size of /dev/shm with what clients may register."""
    if not settings.allow_client_shared_memory:
        return
    if not folder.is_dir():
        yield warning("shm", f"there is no {folder}", "mount a tmpfs there")
        return
    total = shutil.disk_usage(folder).total
    wanted = settings.max_shared_memory_bytes
    if total < wanted:
        yield warning(
            "shm",
            f"{folder} has {size_text(total)}, but clients may register {size_text(wanted)}",
            f"enlarge it (--shm-size {wanted // MIB}m in docker), or lower "
            "--max-shared-memory-bytes",
        )
    else:
        yield ok("shm", f"{folder} has {size_text(total)}")


def check_temporary_files(settings: Settings, folder: Path) -> Iterator[Finding]:
    """Looks for room for uploads and for the weights of networks.

    Args:
        folder: where temporary files go.
    """
    if not os.access(folder, os.W_OK | os.X_OK):
        yield warning(
            "tmp",
            f"temporary files cannot be written to {folder}; weights take memory instead",
            "set TMPDIR to a folder that the server's user can write to",
        )
        return
    free = shutil.disk_usage(folder).free
    if free < settings.max_model_bytes:
        yield warning(
            "tmp",
            f"{folder} has {size_text(free)} free, but a model may have "
            f"{size_text(settings.max_model_bytes)}",
            "free space there, set TMPDIR to another folder, or lower --max-model-bytes",
        )
    else:
        yield ok("tmp", f"{folder} has {size_text(free)} free")


def check_processors(
    settings: Settings, root: Path = Path("/"), affinity: int | None = None
) -> Iterator[Finding]:
    """Compares the threads that somebody asked for with the processors that there are.

    Args:
        root, affinity: as those of `usable_processors`.
    """
    usable, quota = usable_processors(root, affinity), cpu_quota(root)
    limit = f", by a quota of {quota:g}" if quota is not None else ""
    asked = {name: os.environ.get(name, "") for name in _THREADS}
    for plugin in settings.plugins:
        asked |= {f"{plugin.name}.{key}": plugin.config.get(key, "") for key in _NUMBER_KEYS}
    too_many = [
        f"{name} is {text}"
        for name, text in asked.items()
        if text.isdecimal() and int(text) > usable
    ]
    if too_many:
        yield warning(
            "processors",
            f"{usable} processors can be used{limit}, but {', '.join(too_many)}",
            "ask for at most as many threads as there are processors",
        )
    elif quota is not None and quota < math.ceil(quota):
        yield warning(
            "processors",
            f"the quota is {quota:g} processors; the system stops the server for the rest of each "
            "period",
            "set a whole number of processors",
        )
    else:
        yield ok("processors", f"{usable} processors can be used{limit}")
