"""Checks the folders and files that the settings name. It creates and changes nothing."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headrace.runtime.errors import HeadraceError
from headrace.runtime.intake.limits import Limits
from headrace.runtime.loading.blob_key import load_key
from headrace.runtime.system.atomic_file import check_unlocked, read_file
from headrace.server.access.jwts import parse_keys
from headrace.server.access.tokens import parse_entries
from headrace.server.access.watched import MAX_BYTES
from headrace.server.doctor.finding import Finding, ok, problem, size_text, warning
from headrace.server.repository.files import RepositoryFiles
from headrace.server.repository.folder import NetworkFolder
from headrace.server.repository.remote import RemoteFolder
from headrace.server.repository.stored import stored_networks
from headrace.server.settings.option import GIB, flag
from headrace.server.settings.settings import Settings
from headrace.server.storage import files_beside, key_file, repository_files, state_lock

_LEAST_FREE: Final = GIB


def check_user() -> Iterator[Finding]:
    if os.geteuid() == 0:
        yield warning(
            "user",
            "you are root, who may read and write everything; the server's user perhaps may not",
            "run the doctor as the user that runs the server, and never run a server as root",
        )


def check_folders(settings: Settings) -> Iterator[Finding]:
    """The state directory, the cache and the audit log."""
    if settings.state_dir is not None:
        yield from _writable("state_dir", settings.state_dir, _LEAST_FREE)
        yield from _unlocked(settings.state_dir)
    if settings.cache_dir is not None:
        yield from _writable("cache_dir", settings.cache_dir, settings.max_cache_bytes)
    if settings.audit_log is not None:
        yield from _appendable("audit_log", settings.audit_log)


def check_repository(settings: Settings) -> Iterator[Finding]:
    """The model repository, with every description in it and every model that would be loaded."""
    root = settings.model_repository
    if root is None:
        return
    if isinstance(root, str):
        yield from _check_store(root, settings)
        return
    files = repository_files(settings, Limits(model_bytes=settings.max_model_bytes), None)
    try:
        folders = files.look()
    except HeadraceError as error:
        yield problem("ovms_config", f"{settings.ovms_config}: {error}", "correct the file")
        return
    except OSError as error:
        remedy = (
            "give the folder that has a sub-folder for each network, and let the server read it"
        )
        yield problem("repository", f"{error.filename or root} cannot be read: {error}", remedy)
        return
    broken = 0
    for name, folder in folders.items():
        wrong: list[str | None] = [*folder.notes, folder.fault]
        wrong += [each.fault for each in folder.versions.values()]
        try:
            wanted = files.describe(name, folder).policy.choose(folder.versions)
        except (OSError, HeadraceError) as error:
            wrong.append(str(error))
        else:
            wrong += [_unreadable(files, folder, version) for version in sorted(wanted, key=int)]
        for why in filter(None, wrong):
            broken += 1
            yield warning("repository", f"{name}: {why}", f"correct the files of {root / name}")
    if not folders:
        remedy = "put each network into a folder of its own: NAME/model.onnx or NAME/1/model.onnx"
        yield warning("repository", f"{root} has no networks", remedy)
    elif not broken:
        yield ok("repository", f"{root} has {len(folders)} networks")


def _check_store(address: str, settings: Settings) -> Iterator[Finding]:
    """The store of the model repository, and what a server would copy from it."""
    try:
        networks = stored_networks(RemoteFolder(address).objects(), files_beside(settings))
    except HeadraceError as error:
        yield problem("repository", error.message, "install what opens the address")
        return
    except OSError as error:
        remedy = "correct --model-repository, or the credentials in the environment"
        yield problem("repository", error.strerror or str(error), remedy)
        return
    for name, network in networks.items():
        if network.fault:
            yield warning("repository", f"{name}: {network.fault}", f"correct {address}/{name}")
    size, most = sum(each.size for each in networks.values()), settings.max_cache_bytes
    if size > most:
        message = (
            f"{address} has {size_text(size)} in all versions, and copies may take "
            f"{size_text(most)}; what was read least recently is copied again when it is needed"
        )
        remedy = "raise --max-cache-bytes if the networks that are in use together take more"
        yield warning("repository", message, remedy)
    elif not networks:
        remedy = "put each network into a folder of its own: NAME/model.onnx or NAME/1/model.onnx"
        yield warning("repository", f"{address} has no networks", remedy)
    else:
        message = f"{address} has {len(networks)} networks of {size_text(size)}"
        yield ok("repository", message)


def _unreadable(files: RepositoryFiles, folder: NetworkFolder, version: str) -> str | None:
    """Why a version's model cannot be read, if its files have no fault that is told already."""
    if folder.versions[version].fault:
        return None
    try:
        files.network(folder, version)
    except (OSError, HeadraceError) as error:
        return f"version {version}: {error}"
    return None


def check_tokens(settings: Settings) -> Iterator[Finding]:
    """The files that say who may call."""
    if settings.tokens is not None:
        yield from _tokens(settings.tokens)
    if settings.jwt_jwks is not None:
        data = _read("tokens", settings.jwt_jwks)
        if isinstance(data, Finding):
            yield data
            return
        try:
            yield ok("tokens", f"{settings.jwt_jwks} has {len(parse_keys(data))} keys")
        except ValueError as error:
            remedy = "get the key set from your identity provider again"
            yield problem("tokens", f"{settings.jwt_jwks}: {error}", remedy)


def check_key(settings: Settings) -> Iterator[Finding]:
    """The key that signs the cache and exports."""
    path = key_file(settings)
    if path is None or not path.exists():
        return
    remedy = "give a file with 32 to 1,024 bytes that the server can read, or remove it"
    try:
        load_key(path)
    except (OSError, HeadraceError) as error:
        yield problem("key", f"{path}: {error}", remedy)
        return
    if path.stat().st_mode & 0o007:
        yield warning("key", f"{path} is open to every user", f"chmod 600 {path}")
    else:
        yield ok("key", f"{path} holds a key")


def _tokens(path: Path) -> Iterator[Finding]:
    data = _read("tokens", path)
    if isinstance(data, Finding):
        yield data
        return
    try:
        entries = parse_entries(data)
    except ValueError as error:
        yield problem(
            "tokens", f"{path}: {error}", "correct the entry, or make it with headrace token"
        )
        return
    count = len(entries.tokens) + len(entries.certificates)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o022:
        yield problem(
            "tokens",
            f"others than its owner can write to {path} (mode {mode:03o}), and make themselves "
            "tokens",
            f"chmod 600 {path}",
        )
    elif mode & 0o004:
        yield warning(
            "tokens", f"every user can read {path} (mode {mode:03o})", f"chmod 600 {path}"
        )
    if not count:
        yield problem(
            "tokens",
            f"{path} has no entries, so nobody can call the server",
            f"run: headrace token new NAME --roles infer,read --tokens {path}",
        )
    else:
        yield ok("tokens", f"{path} has {count} entries")


def _read(subject: str, path: Path) -> bytes | Finding:
    try:
        return read_file(path, MAX_BYTES)
    except OSError as error:
        remedy = f"let the server's user read it, or correct {flag('tokens')}"
        return problem(subject, f"{path} cannot be read: {error.strerror}", remedy)


def _writable(setting: str, folder: Path, least: int) -> Iterator[Finding]:
    """A folder that the server makes if it is missing."""
    subject, there = setting, folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        yield problem(subject, f"{there} is not a folder", f"correct {flag(setting)}")
        return
    if not os.access(there, os.W_OK | os.X_OK):
        what = "written to" if there == folder else f"made, because {there} cannot be written to"
        yield problem(subject, f"{folder} cannot be {what}", "give the folder to the server's user")
        return
    free = shutil.disk_usage(there).free
    if free < least:
        yield warning(
            subject,
            f"{folder} has {size_text(free)} free; it may need {size_text(least)}",
            "free space there" + (", or lower --max-cache-bytes" if setting == "cache_dir" else ""),
        )
    else:
        yield ok(subject, f"{folder} can be written to, and has {size_text(free)} free")


def _unlocked(folder: Path) -> Iterator[Finding]:
    """Whether another server holds the lock of the state directory."""
    path = state_lock(folder)
    try:
        check_unlocked(path)
    except BlockingIOError as error:
        yield warning(
            "state_dir",
            f"{folder} is in use by a server ({error.strerror})",
            "that is right if it is the server of these settings; otherwise give each server a "
            "state directory of its own",
        )
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        yield problem("state_dir", f"{path}: {error.strerror}", "give it to the server's user")


def _appendable(setting: str, path: Path) -> Iterator[Finding]:
    place = path if path.exists() else path.parent
    if place.is_dir() and place == path:
        yield problem(setting, f"{path} is a folder", f"give {flag(setting)} a file")
    elif not os.access(place, os.W_OK):
        yield problem(setting, f"{path} cannot be written", "give the folder to the server's user")
    else:
        yield ok(setting, f"{path} can be written")
