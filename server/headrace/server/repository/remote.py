"""A folder in a store: objects of S3 or Google Cloud Storage, files of a web server, or whatever
else fsspec opens.

Stores differ in how they are listed. Those of objects tell all objects below a prefix with one
request a thousand. A web server shows an index page for each folder, and tells the size and the
tag of each file when it is asked for that file.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from headrace.runtime.errors import InvalidArgument

MAX_OBJECTS: Final = 50_000
"""The most objects that a listing may have."""
_MAX_DEPTH: Final = 10
_MAX_NAME_BYTES: Final = 255
_PIECE_BYTES: Final = 8 << 20
_WEB: Final = frozenset({"http", "https"})
_TAGS: Final = (
    "ETag",
    "etag",
    "Content-MD5",
    "md5Hash",
    "blob_id",
    "Last-Modified",
    "LastModified",
    "mtime",
)
"""What changes with an object's content, under the names that stores give it; the best first."""

_TRIES_ONCE: Final[Mapping[str, Any]] = {
    "config_kwargs": {
        "connect_timeout": 10,
        "read_timeout": 60,
        "retries": {"mode": "standard", "max_attempts": 2},
    }
}
"""Options of S3: whoever copies tries again, and waits longer each time."""


class StoreAway(OSError):
    """The store does not answer, or not as it should. It may do so later."""


class ObjectChanged(OSError):
    """An object is not, or no longer, as the listing said."""


class Object(NamedTuple):
    """
    Attributes:
        path: in the folder.
        size: in bytes; -1 if the store does not tell it.
        tag: changes with the content.
        place: where fsspec finds it.
    """

    path: str
    size: int
    tag: str
    place: str


def open_store(address: str, field: str, **options: Any) -> tuple[Any, str]:
    """fsspec's file system for an address, and the folder's place in it.

    Args:
        field: the setting that has the address.

    Raises:
        InvalidArgument: no installed package opens the address.
    """
    kind = address.partition("://")[0]
    try:
        from fsspec.core import url_to_fs  # the extra may be missing

        files, place = url_to_fs(address, **options)
    except (ValueError, ImportError) as error:
        message = f"nothing opens {kind}:// here: run pip install 'headrace[objects]'"
        if kind not in ("s3", "gs", *_WEB):
            message = f"nothing opens {kind}:// here: install the package that fsspec names for it"
        raise InvalidArgument(message, field=field) from error
    return files, str(place)


class RemoteFolder:
    """Lists a folder of a store, and reads its objects. All methods wait for the store.

    Not thread-safe. It keeps no credentials: the store's library finds them in the environment. An
    error has the address and the kind of what went wrong, and never the text of a library, which
    might have more.

    Args:
        address: such as ``s3://bucket/folder``.

    Raises:
        InvalidArgument: no installed package opens the address.
        The methods raise StoreAway, PermissionError if the store refuses the server, and
        FileNotFoundError if it has no such bucket, folder or object.
    """

    def __init__(self, address: str) -> None:
        kind = address.partition("://")[0]
        self.address = address
        self._web = kind in _WEB
        options = dict(_TRIES_ONCE) if kind == "s3" else {}
        with self._reaching(address):
            self._files, place = open_store(
                address,
                "model_repository",
                skip_instance_cache=True,
                use_listings_cache=False,
                **options,
            )
        if kind == "s3":
            self._files.retries = 1
        # The listing of S3 can be cut off.
        self._bound = {"max_items": MAX_OBJECTS + 1} if kind == "s3" else {}
        self._place = place.rstrip("/")

    def objects(self) -> list[Object]:
        """All objects, except those with names that no file of a repository has: hidden ones, and
        those with empty or unprintable parts or parts that lead elsewhere.

        Raises:
            OSError: there are more than `MAX_OBJECTS`. Also raises as the class says.
        """
        with self._reaching(self.address):
            self._files.invalidate_cache()
            facts = list(islice(self._walk() if self._web else self._find(), MAX_OBJECTS + 1))
        if len(facts) > MAX_OBJECTS:
            message = f"{self.address} has more than {MAX_OBJECTS:,} objects; name a smaller folder"
            raise OSError(errno.EFBIG, message)
        found = [self._object(fact) for fact in facts if fact["type"] == "file"]
        return [each for each in found if _is_path(each.path)]

    def pieces(self, each: Object) -> Iterator[bytes]:
        """The bytes of an object.

        Raises:
            ObjectChanged: it has another size than the listing said. Also raises as the class says.
        """
        options = (
            {"block_size": 0, "size": each.size}  # one request, and no other for the size
            if self._web
            else {"block_size": _PIECE_BYTES, "cache_type": "none"}
        )
        left = each.size
        with (
            self._reaching(f"{self.address}/{each.path}"),
            closing(self._files.open(each.place, "rb", **options)) as file,
        ):
            while left and (piece := bytes(file.read(min(left, _PIECE_BYTES)))):
                left -= len(piece)
                yield piece
            if left or file.read(1):
                raise ObjectChanged(errno.ESTALE, f"{each.path} changed while it was copied")

    def _find(self) -> Iterator[dict[str, Any]]:
        return iter(self._files.find(self._place, detail=True, **self._bound).values())

    def _walk(self) -> Iterator[dict[str, Any]]:
        """The files and folders of a web server, each folder by its index page."""
        folders = [(f"{self._place}/", 0)]
        while folders:
            folder, depth = folders.pop()
            for each in self._files.ls(folder, detail=True):
                name = str(each["name"])
                last = name.rstrip("/").rpartition("/")[2]
                if last.startswith((".", "?")) or "?" in name or "#" in name:
                    continue
                if each["type"] != "directory":
                    yield self._files.info(name)
                elif depth < _MAX_DEPTH:
                    folders.append((name, depth + 1))
                    yield each

    def _object(self, fact: Mapping[str, Any]) -> Object:
        place, size = str(fact["name"]), fact.get("size")
        folder, path = place[: len(self._place) + 1], place[len(self._place) + 1 :]
        path = path if folder == f"{self._place}/" else ""
        tag = next((str(fact[name]) for name in _TAGS if fact.get(name)), "")
        path = unquote(path) if self._web else path
        return Object(path, size if isinstance(size, int) else -1, tag, place)

    @contextmanager
    def _reaching(self, what: str) -> Iterator[None]:
        try:
            yield
        except (InvalidArgument, ObjectChanged):
            raise
        except Exception as error:
            raise self._told(error, what) from error

    def _told(self, error: Exception, what: str) -> OSError:
        """The error of a library in our words. Each library has errors of its own."""
        status = _status(error)
        if isinstance(error, PermissionError) or status in (401, 403):
            message = f"{what} may not be read; give the server credentials that may"
            return PermissionError(errno.EACCES, message)
        # A web server that does not answer is told as a file that is missing, with the cause.
        missing = isinstance(error, FileNotFoundError) and not (self._web and error.__cause__)
        if missing or status == 404:
            return FileNotFoundError(errno.ENOENT, f"there is no {what}")
        if isinstance(error, OSError) and error.errno == errno.EBUSY:  # s3fs: other content now
            return ObjectChanged(errno.ESTALE, f"{what} changed while it was copied")
        kind = type(error.__cause__ or error).__name__
        why = f"status {status}" if status else kind
        return StoreAway(errno.EHOSTUNREACH, f"{what} cannot be reached: {why}")


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error of aiohttp or gcsfs has, or None."""
    for each in (error, error.__cause__):
        for name in ("status", "code"):
            if isinstance(status := getattr(each, name, None), int):
                return status
    return None


def _is_path(path: str) -> bool:
    """Whether an object may be a file of a repository, inside its folder."""
    parts = path.split("/")
    return len(parts) <= _MAX_DEPTH and all(
        part and part[0] != "." and part.isprintable() and len(part.encode()) <= _MAX_NAME_BYTES
        for part in parts
    )
