"""A folder in a store: objects of S3 or Google Cloud Storage, files of a web server, or whatever
else fsspec opens.

Stores differ in how they are listed. Those of objects tell all objects below a prefix with one
request a thousand. A web server shows an index page for each folder, and tells the size and the
tag of each file when it is asked for that file.
"""

from __future__ import annotations

import errno
import html
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote, urljoin

from headrace.runtime.errors import InvalidArgument

T = TypeVar("T")

MAX_OBJECTS: Final = 50_000
"""The most objects that a listing may have."""
_MAX_DEPTH: Final = 10
_MAX_NAME_BYTES: Final = 255
_PIECE_BYTES: Final = 8 << 20
_PAGE_BYTES: Final = 4 << 20
"""An index page of a web server has no more."""
_LINK: Final = re.compile(r"""\bhref\s{0,9}=\s{0,9}(?:"([^"]{1,2000})"|'([^']{1,2000})')""", re.I)
_CONNECT_SECONDS, _READ_SECONDS = 10, 60
"""For how long a store may be silent."""
_LEAST_BYTES_A_SECOND: Final = 1000
"""A store that sends an object more slowly than this is given up after `_READ_SECONDS`."""
_WEB: Final = frozenset({"http", "https"})
_MAY_PASS: Final = frozenset({408, 409, 425, 429})
"""Statuses of a client's errors that may be another one the next time."""
_OF_ONE: Final = frozenset({403, 404, 410})
"""Statuses that say something of one place of a web server, and nothing of others."""
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

_OF_S3: Final[Mapping[str, Any]] = {
    "config_kwargs": {
        "connect_timeout": _CONNECT_SECONDS,
        "read_timeout": _READ_SECONDS,
        "retries": {"mode": "standard", "max_attempts": 2},
    }
}
"""Whoever copies tries again, and waits longer each time."""


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

    Thread-safe, but for `objects`, which one thread at a time may call. It keeps no credentials:
    the store's library finds them in the environment. An error names the
    address or the path, and what kind of error it is. It never has a library's text, which might
    show credentials.

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
        with self._reaching(address):
            self._files, place = open_store(
                address,
                "model_repository",
                skip_instance_cache=True,
                use_listings_cache=False,
                **_options(kind),
            )
        if kind == "s3":
            self._files.retries = 1
        self._kind = kind
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
            ObjectChanged: it is not the one that the listing had. Also raises as the class says.
        """
        options = (
            {"block_size": 0, "size": each.size}  # one request, and no other for the size
            if self._web
            else {"block_size": _PIECE_BYTES, "cache_type": "none"}
        )
        left, begun = each.size, time.monotonic()
        with (
            self._reaching(each.path),
            closing(self._files.open(each.place, "rb", **options)) as file,
        ):
            while left > 0 and (piece := bytes(file.read(min(left, _PIECE_BYTES)))):
                left -= len(piece)
                _check_pace(each.size - left, begun)
                yield piece
            if left or file.read(1) or not self._is_still(each):
                raise ObjectChanged(errno.ESTALE, f"{each.path} changed while it was copied")

    def _is_still(self, each: Object) -> bool:
        """Whether an object is the one that the listing had. A store that does not tell while it is
        read that it is another one now tells it afterwards."""
        self._files.invalidate_cache()
        facts = self._files.info(each.place)
        return facts.get("size") == each.size and (
            not each.tag or each.tag in (str(facts.get(name)) for name in _TAGS)
        )

    def _find(self) -> Iterator[dict[str, Any]]:
        if self._kind == "gs":  # only `ls` of gcsfs can be cut off
            bucket, _, folder = self._place.partition("/")
            options = {"prefix": folder and f"{folder}/", "delimiter": "", "detail": True}
            return iter(self._files.ls(bucket, max_results=MAX_OBJECTS + 1, **options))
        bound = {"max_items": MAX_OBJECTS + 1} if self._kind == "s3" else {}
        return iter(self._files.find(self._place, detail=True, **bound).values())

    def _walk(self) -> Iterator[dict[str, Any]]:
        """The files and folders of a web server, each folder by its index page."""
        folders = [(f"{self._place}/", 0)]
        while folders:
            folder, depth = folders.pop()
            names = _shown(self._links, folder) if depth else self._links(folder)
            if names is None:
                yield {"name": f"{folder}index page", "type": "file"}
            for name in names or ():
                if not name.endswith("/"):
                    yield _shown(self._files.info, name) or {"name": name, "type": "file"}
                elif depth < _MAX_DEPTH:
                    folders.append((name, depth + 1))
                    yield {"name": name, "type": "directory"}

    def _links(self, folder: str) -> list[str]:
        """The addresses that the index page of a web server's folder links to. Those of folders
        end with a slash. Links that lead out of the folder are left out."""
        page, begun = bytearray(), time.monotonic()
        # One request, and no other for the size.
        with closing(self._files.open(folder, "rb", block_size=0, size=1)) as file:
            if not str(file.r.headers.get("Content-Type", "text/html")).startswith("text/html"):
                return []
            while piece := file.read(_PAGE_BYTES):
                page += piece
                _check_pace(len(page), begun)
                if len(page) > _PAGE_BYTES:
                    message = f"an index page of {self.address} has more than {_PAGE_BYTES:,} bytes"
                    raise OSError(errno.EFBIG, message)
        found = set()
        for link in _LINK.finditer(page.decode(errors="replace")):
            name = urljoin(folder, html.unescape(link[1] or link[2]))
            inside = unquote(name[len(folder) :].removesuffix("/"))
            is_inside = name.startswith(folder) and not set(name) & set("?#")
            if is_inside and "/" not in inside and _is_path(inside):
                found.add(name)
        return sorted(found)

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
        except (InvalidArgument, ObjectChanged, StoreAway):
            raise
        except Exception as error:
            raise self._told(error, what) from error

    def _told(self, error: Exception, what: str) -> OSError:
        """The error of a library in our words. Each library has errors of its own."""
        status = _status(error)
        forbidden = isinstance(error, PermissionError) or str(error).startswith("Forbidden: ")
        if forbidden or status in (401, 403):  # gcsfs tells the second as a text
            code = _code(error.__cause__ or error)
            message = f"{what} may not be read{code}; give the server credentials that may"
            return PermissionError(errno.EACCES, message)
        # A web server that does not answer is told as a file that is missing, with the cause.
        missing = isinstance(error, FileNotFoundError) and not (self._web and error.__cause__)
        if missing or status == 404:
            return FileNotFoundError(errno.ENOENT, f"there is no {what}")
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            return error
        # s3fs: other content now, or a store that has too much to do.
        if isinstance(error, OSError) and error.errno == errno.EBUSY and status != 503:
            return ObjectChanged(errno.ESTALE, f"{what} changed while it was copied")
        cause = error.__cause__ or error
        kind = type(cause).__name__
        if "Credential" in kind or "Profile" in kind:  # of botocore and of google.auth
            message = (
                f"the server has no credentials for {what} ({kind}); set them in its environment"
            )
            return PermissionError(errno.EACCES, message)
        # Not any subclass, as of bad JSON, nor what a web server has sent.
        odd = type(error) in (ValueError, NotImplementedError) or kind == "HfUriError"
        if odd and not self._web:
            message = (
                f"{what} is not an address of a folder in a store; give one as s3://bucket/folder "
                "or hf://owner/repository"
            )
            return OSError(errno.EINVAL, message)
        if isinstance(error, RecursionError):  # s3fs looks for the region again and again
            message = (
                f"{what} is in another region, and the store does not tell which; set "
                "AWS_DEFAULT_REGION to it"
            )
            return OSError(errno.EINVAL, message)
        why = f"status {status}{_code(cause)}" if status else kind
        if isinstance(cause, StoreAway):
            why = str(cause.strerror)
        if status is not None and 300 <= status < 500 and status not in _MAY_PASS:
            return OSError(errno.EINVAL, f"{what} was refused: {why}")
        return StoreAway(errno.EHOSTUNREACH, f"{what} cannot be reached: {why}")


def _options(kind: str) -> Mapping[str, Any]:
    """fsspec's options for a kind of store. Bodies of a web server come as they are: one that was
    compressed would have another size than the server tells, or any."""
    if kind == "s3":
        return _OF_S3
    try:
        import aiohttp  # the extra may be missing
    except ImportError:
        return {}
    silence = aiohttp.ClientTimeout(
        total=None, sock_connect=_CONNECT_SECONDS, sock_read=_READ_SECONDS
    )
    if kind not in _WEB:
        return {"requests_timeout": silence} if kind == "gs" else {}

    async def redirected(_session: object, _context: object, facts: Any) -> None:
        headers = facts.response.headers  # aiohttp follows both
        to = urljoin(str(facts.url), headers.get("Location") or headers.get("URI", ""))
        if kind == "https" and not to.startswith("https:"):
            raise StoreAway(errno.EHOSTUNREACH, "a redirect leads away from https")

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(redirected)
    session = {
        "auto_decompress": False,
        "headers": {"Accept-Encoding": "identity"},
        "timeout": silence,
        "trace_configs": [trace],
    }
    return {"client_kwargs": session}


def _check_pace(size: int, begun: float) -> None:
    """
    Raises:
        TimeoutError: the store sends more slowly than it may.
    """
    took = time.monotonic() - begun
    if took > _READ_SECONDS and size < took * _LEAST_BYTES_A_SECOND:
        raise TimeoutError


def _shown(call: Callable[[str], T], place: str) -> T | None:
    """What a web server tells of one place; None if it refuses that one, or does not have it."""
    try:
        return call(place)
    except Exception as error:
        missing = isinstance(error, FileNotFoundError) and not error.__cause__
        if missing or _status(error) in _OF_ONE:
            return None
        raise


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error of aiohttp, gcsfs, botocore or huggingface_hub has."""
    for each in (error, error.__cause__):
        told = getattr(each, "response", None)
        facts = told.get("ResponseMetadata", {}) if isinstance(told, dict) else {}
        if isinstance(status := facts.get("HTTPStatusCode"), int):
            return status
        for of, name in ((told, "status_code"), (each, "status"), (each, "code")):
            if isinstance(status := getattr(of, name, None), int):
                return status
    return None


def _code(error: BaseException) -> str:
    """The word of S3 for what went wrong, in brackets."""
    told = getattr(error, "response", None)
    code = str(told.get("Error", {}).get("Code", "")) if isinstance(told, dict) else ""
    return f" ({code})" if code.isascii() and code.isalpha() and len(code) < 60 else ""


def _is_path(path: str) -> bool:
    """Whether an object may be a file of a repository, inside its folder."""
    parts = path.split("/")
    return len(parts) <= _MAX_DEPTH and all(
        part and part[0] != "." and part.isprintable() and len(part.encode()) <= _MAX_NAME_BYTES
        for part in parts
    )
