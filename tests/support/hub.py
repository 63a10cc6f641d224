"""A hub as that of Hugging Face, with one repository: `owner/models`, in memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class Hub:
    """
    Attributes:
        files: the repository's files, by path.
        status: of all replies, if it is not 200.
        reads: what a read of a file gives instead of its bytes, by path.
        ignores_ranges: whether each read gives a whole file.
    """

    def __init__(self) -> None:
        self.address = ""
        self.files: dict[str, bytes] = {}
        self.status = 200
        self.reads: dict[str, bytes] = {}
        self.ignores_ranges = False

    def reply(self, method: str, address: str) -> tuple[int, bytes]:
        """What the hub answers, and with which status."""
        path = unquote(urlsplit(address).path)
        api, files = "/api/models/owner/models", "/owner/models/resolve/main/"
        if self.status != 200:
            return self.status, b"the secret text of a server"
        if path.startswith(f"{api}/tree/main"):
            folder = path.removeprefix(f"{api}/tree/main").strip("/")
            return 200, json.dumps(self._tree(folder, deep="recursive=true" in address)).encode()
        if path in (api, f"{api}/revision/main"):
            return 200, b'{"id": "owner/models", "sha": "0", "siblings": []}'
        name = path.removeprefix(files)
        if path.startswith(files) and name in self.files:
            return 200, self.reads.get(name, self.files[name])
        return 404, b"{}"

    def _tree(self, folder: str, *, deep: bool) -> list[dict[str, Any]]:
        prefix = f"{folder}/" if folder else ""
        found: dict[str, dict[str, Any]] = {}
        for path, data in self.files.items():
            inside = path.removeprefix(prefix)
            if not path.startswith(prefix):
                continue
            if deep or "/" not in inside:
                tag = sha1(data, usedforsecurity=False).hexdigest()
                found[path] = {"type": "file", "path": path, "size": len(data), "oid": tag}
            else:
                name = prefix + inside.partition("/")[0]
                found[name] = {"type": "directory", "path": name, "size": 0, "oid": "0"}
        return list(found.values())


@contextmanager
def hub() -> Iterator[Hub]:
    there = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, data = there.reply(self.command, self.path)
            asked = self.headers.get("Range", "").removeprefix("bytes=")
            if status == 200 and asked and not there.ignores_ranges:
                first, last = map(int, asked.split("-"))
                status, data = 206, data[first : last + 1]
            self.send_response(status)
            if status == 404 and "/api/" in self.path:
                self.send_header("X-Error-Code", "RepoNotFound")
            elif status == 404:
                self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    there.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield there
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
