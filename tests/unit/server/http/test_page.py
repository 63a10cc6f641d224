"""The status page as a file: what it may load, and what it cannot do."""

from __future__ import annotations

import hashlib
import http.client
import re
import zlib
from base64 import b64encode
from collections.abc import Iterator
from unittest.mock import MagicMock

import pytest

from headrace.runtime.metrics.counters import Counters
from headrace.server.http.application import Application
from headrace.server.http.page.routes import MAX_MATCH, page, page_routes
from headrace.server.http.server import HttpServer
from tests.unit.server.http.serving import ask, serving


@pytest.fixture
def status() -> MagicMock:
    status = MagicMock()
    status.text.return_value = b'{"time": 1}' + b" " * 2000
    return status


@pytest.fixture
def server(status: MagicMock) -> Iterator[HttpServer]:
    with serving(Application(page_routes(status), Counters())) as server:
        yield server


def test_the_page_is_html_with_everything_inside(server: HttpServer) -> None:
    code, headers, body = ask(server, "/")
    assert code == 200
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert body.startswith("<!doctype html>")
    assert not re.search(r"<(?:script|link|img|iframe)[^>]* src=", body)
    assert re.findall(r"<link [^>]*href=\"(\w+):", body) == ["data"]
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)[^\s'\"]*", body)


def test_the_policy_allows_this_style_and_this_script_alone(server: HttpServer) -> None:
    _, headers, body = ask(server, "/")
    policy = dict(
        each.strip().partition(" ")[::2] for each in headers["content-security-policy"].split(";")
    )
    for kind in ("style", "script"):
        (inside,) = re.findall(rf"<{kind}>(.*?)</{kind}>", body, re.DOTALL)
        digest = b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_the_script_makes_no_html_out_of_text() -> None:
    body = page()[0].decode()
    for unsafe in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser"):
        assert unsafe not in body
    assert not re.search(r"\beval\(|new Function", body)
    html = body.partition("</style>")[2].partition("<script>")[0]
    assert not re.search(r"\son\w+=|\sstyle=", html)


def test_the_token_is_neither_kept_for_long_nor_put_into_an_address() -> None:
    script = page()[0].decode().partition("<script>")[2]
    assert "localStorage" not in script
    assert "cookie" not in script
    assert re.findall(r"fetch\((.*?),", script) == [
        '`/status${match ? `?match=${encodeURIComponent(match)}` : ""}`'
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_colours_of_text_have_the_contrast_that_wcag_asks_for(scheme: str) -> None:
    style = page()[0].decode().partition("<style>")[2].partition("</style>")[0]
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[:2]
    colours = dict(re.findall(r"--(\w+): (#\w+);", light if scheme == "light" else dark))
    assert {"text", "soft", "good", "warn", "bad", "accent"} <= colours.keys()
    for name in ("text", "soft", "good", "warn", "bad", "accent"):
        for back in ("back", "raised"):
            assert contrast(colours[name], colours[back]) >= 4.5, f"{name} on {back}"


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio of two colours."""
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * each for each in colour[1:])
    parts = (int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4))
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_page_is_small() -> None:
    assert len(page()[0]) < 64 << 10


def test_an_unchanged_page_is_not_sent_again(server: HttpServer) -> None:
    _, headers, _ = ask(server, "/")
    code, _, body = ask(server, "/", headers={"If-None-Match": headers["etag"]})
    assert (code, body) == (304, "")


def test_the_document_is_json_that_nobody_keeps(server: HttpServer) -> None:
    code, headers, body = ask(server, "/status")
    assert (code, body.strip()) == (200, '{"time": 1}')
    assert headers["content-type"] == "application/json"
    assert headers["cache-control"] == "no-store"


def test_the_document_is_deflated_for_those_who_accept_that(server: HttpServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request("GET", "/status", headers={"Accept-Encoding": "gzip"})
        reply = connection.getresponse()
        body = reply.read()
    finally:
        connection.close()
    assert reply.headers["content-encoding"] == "gzip"
    assert len(body) < 200
    assert zlib.decompress(body, 31).startswith(b'{"time": 1}')


def test_the_name_to_look_for_is_bounded(server: HttpServer, status: MagicMock) -> None:
    ask(server, "/status?match=res")
    ask(server, f"/status?match={'x' * 9999}")
    given = [call.args[0] for call in status.text.call_args_list]
    assert given == ["res", "x" * MAX_MATCH]


def test_other_methods_are_refused(server: HttpServer) -> None:
    assert ask(server, "/status", "POST")[0] == 405
    assert ask(server, "/", "POST")[0] == 405
