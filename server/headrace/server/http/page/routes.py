"""The routes / and /status."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from typing import Final

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from headrace.server.access.identity import Role
from headrace.server.http.guard import GuardedRoute
from headrace.server.http.rest.replies import accepted_encoding, deflated
from headrace.server.status.status import StatusReport

MAX_MATCH: Final = 128
"""The most characters of a part of a name. No name is longer."""


def page_routes(status: StatusReport) -> list[GuardedRoute]:
    """The status page, and the document.

    The page is the same for everybody and has no data, so anybody may get it. It asks for the
    document with the credential of the person who looks at it.
    """
    body, headers = page()
    documents = anyio.CapacityLimiter(1)

    async def show(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(body, headers=headers, media_type="text/html")

    async def document(request: Request) -> Response:
        match = request.query_params.get("match", "")[:MAX_MATCH]
        text = await anyio.to_thread.run_sync(partial(status.text, match), limiter=documents)
        parts, encoding = await deflated([text], accepted_encoding(request))
        reply = Response(parts[0], headers=_DOCUMENT_HEADERS, media_type="application/json")
        if encoding is not None:
            reply.headers["content-encoding"] = encoding
        return reply

    return [
        GuardedRoute("/", show, {"GET": Role.OPEN}),
        GuardedRoute("/status", document, {"GET": Role.READ}),
    ]


_SCRIPTS: Final = ("numbers.js", "picture.js", "tables.js", "page.js")
"""The parts of the script. Each may use those before it."""

_DOCUMENT_HEADERS: Final = {
    "cache-control": "no-store",
    "vary": "accept-encoding, authorization",
    "x-content-type-options": "nosniff",
}


def page() -> tuple[bytes, dict[str, str]]:
    """The page with its style and script inside, and its headers.

    The policy allows this one style and this one script by their hashes, and requests to this
    server. Nothing can make HTML out of text: Trusted Types forbid it.
    """
    folder = files(__package__)

    def read(name: str) -> str:
        return folder.joinpath(name).read_text(encoding="utf-8")

    style, html = read("page.css"), read("page.html")
    script = "".join(map(read, _SCRIPTS))
    body = html.replace("/* style */", style).replace("/* script */", script).encode()
    policy = (
        "default-src 'none'",
        "connect-src 'self'",
        "img-src data:",
        f"style-src '{_hash(style)}'",
        f"script-src '{_hash(script)}'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
    return body, {
        "content-security-policy": "; ".join(policy),
        "cache-control": "no-cache",
        "etag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "cross-origin-opener-policy": "same-origin",
    }


def _hash(text: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
