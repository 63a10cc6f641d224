"""Prepares the places on disk that the settings name. An error names the setting."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.cache.models import KnownModels
from headrace.runtime.cache.weights import WeightFiles
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.intake.limits import Limits
from headrace.runtime.loading.blob_key import load_or_create_key
from headrace.runtime.system.atomic_file import lock_file
from headrace.server.repository.files import RepositoryFiles
from headrace.server.repository.mirror import Mirror
from headrace.server.repository.remote import RemoteFolder
from headrace.server.settings.settings import Settings

_log = logging.getLogger(__name__)


def lock_state(folder: Path) -> int:
    """Locks the state directory for this server, until the descriptor is closed or the process
    ends.

    Raises:
        InvalidArgument: another server uses the directory, or it cannot be made.
    """
    with usable("state_dir"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            return lock_file(state_lock(folder))
        except BlockingIOError as error:
            message = (
                f"{folder} is in use by another server ({error.strerror}); stop it, or give each "
                "server a state directory of its own"
            )
            raise InvalidArgument(message, field="state_dir") from error


def state_lock(folder: Path) -> Path:
    """The file that the server that uses a state directory has locked."""
    return folder / "lock"


def key_file(settings: Settings) -> Path | None:
    """The file of the key that signs exports and cache files. None: each start makes a key."""
    if settings.mac_key_file is not None or settings.state_dir is None:
        return settings.mac_key_file
    return settings.state_dir / "blob.key"


def signing_key(settings: Settings) -> bytes:
    """The key that signs the server's exports and cache files. By default the server makes one.

    Raises:
        InvalidArgument: the key's file cannot be used, or lies in the cache.
        FailedPrecondition: the key's file holds no key.
    """
    setting = "mac_key_file" if settings.mac_key_file is not None else "state_dir"
    path = key_file(settings)
    if path is None:
        return secrets.token_bytes(32)
    with usable(setting):
        cache = settings.cache_dir
        if cache is not None and path.resolve().is_relative_to(cache.resolve()):
            raise InvalidArgument(
                f"the key {path} is inside the cache directory, whose files it signs; put it "
                "elsewhere",
                field=setting,
            )
        return load_or_create_key(path)


def network_cache(settings: Settings, key: bytes) -> NetworkCache | None:
    """The cache of compiled networks, if the settings ask for one.

    Raises:
        InvalidArgument: the cache's folder cannot be made.
    """
    if settings.cache_dir is None:
        return None
    if settings.mac_key_file is None and settings.state_dir is None:
        _log.warning(
            "networks cached in %s cannot be used after a restart or by other servers, because the "
            "key that signs them is new at each start; set --state-dir or --mac-key-file",
            settings.cache_dir,
        )
    with usable("cache_dir"):
        cache = NetworkCache(settings.cache_dir, key, settings.max_cache_bytes)
    if not os.access(settings.cache_dir, os.W_OK | os.X_OK):
        _log.warning("cannot write to %s; compiled networks are not cached", settings.cache_dir)
    return cache


def repository_mirror(settings: Settings) -> Mirror | None:
    """The copy of the model repository, if that lies in a store.

    Raises:
        InvalidArgument: nothing opens the address, or the copy's folder cannot be made.
    """
    address = settings.model_repository
    if not isinstance(address, str):
        return None
    assert settings.cache_dir is not None, "checked with the settings"
    with usable("model_repository"):
        store = RemoteFolder(address)
    with usable("cache_dir"):
        return Mirror(store, settings.cache_dir, settings.max_cache_bytes, files_beside(settings))


def files_beside(settings: Settings) -> tuple[str, ...]:
    """The files beside the networks of a store that are wanted, too."""
    config = settings.ovms_config
    return (config.rpartition("/")[2],) if isinstance(config, str) else ()


def repository_files(
    settings: Settings, limits: Limits, mirror: Mirror | None, models: KnownModels | None = None
) -> RepositoryFiles:
    """What reads the model repository: the folder of the settings, or the copy of a store."""
    root, config = settings.model_repository, settings.ovms_config
    if mirror is not None:
        config = mirror.root / files_beside(settings)[0] if isinstance(config, str) else config
        return RepositoryFiles(mirror.root, limits, config, mirror, models)
    assert not isinstance(root, str), "a store has a mirror"
    assert not isinstance(config, str), "checked with the settings"
    return RepositoryFiles(root, limits, config, models=models)


def weight_files(settings: Settings, key: bytes, cache: NetworkCache | None) -> WeightFiles | None:
    """The files of weights that networks map, in the folder of the cache."""
    if settings.cache_dir is None or cache is None:
        return None
    derived = WeightFiles.derived_key(key)
    return WeightFiles(settings.cache_dir, derived, settings.max_cache_bytes, cache.room)


@contextmanager
def usable(setting: str) -> Iterator[None]:
    """
    Raises:
        InvalidArgument: the system refused an operation inside. The error names the setting.
    """
    try:
        yield
    except FileExistsError as error:
        raise InvalidArgument(f"{error.filename} is not a folder", field=setting) from error
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        raise InvalidArgument(f"{what}{error.strerror or error}", field=setting) from error
