"""The OpenAPI document and the page that shows it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from headrace.runtime.metrics.counters import Counters
from headrace.server.http.application import Application
from headrace.server.http.rest.rest import Rest
from headrace.server.http.server import HttpServer
from tests.support.openapi import files, unused_rest
from tests.unit.server.http.serving import ask, serving


@pytest.fixture(scope="module")
def rest() -> Iterator[Rest]:
    with unused_rest() as rest:
        yield rest


@pytest.fixture(scope="module")
def server(rest: Rest) -> Iterator[HttpServer]:
    app = Application(rest.probes, Counters(), rest.routes, rest.lifespan)
    with serving(app) as server:
        yield server


def test_the_files_are_those_that_the_table_of_paths_makes() -> None:
    remedy = "run: .venv/bin/python -m tests.support.manual"
    assert {path: path.read_text("utf-8") for path in files()} == files(), remedy


def test_the_document_is_valid_openapi(server: HttpServer) -> None:
    status, headers, body = ask(server, "/v2/openapi.json")
    assert (status, headers["content-type"]) == (200, "application/json")
    document = json.loads(body)
    assert document["openapi"] == "3.1.0"
    OpenAPIV31SpecValidator(document).validate()


def test_every_route_is_in_the_document_and_on_the_page(rest: Rest, server: HttpServer) -> None:
    paths = json.loads(ask(server, "/v2/openapi.json")[2])["paths"]
    routes = [each for each in (*rest.probes, *rest.routes) if "docs" not in each.path]
    served = {each.path for each in routes if "openapi" not in each.path}
    assert set(paths) == served
    for route in routes:
        if route.path in served:
            methods = {method.lower() for method in route.methods or ()} - {"head"}
            assert set(paths[route.path]) == methods, route.path
    page = ask(server, "/v2/docs")[2].replace("<wbr>", "")
    assert all(f"<code>{path}</code>" in page for path in paths)


def test_every_schema_is_used_and_every_reference_leads_somewhere(server: HttpServer) -> None:
    text = ask(server, "/v2/openapi.json")[2]
    referred = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert referred == set(json.loads(text)["components"]["schemas"])


def test_the_page_loads_nothing_from_elsewhere(server: HttpServer) -> None:
    _, headers, page = ask(server, "/v2/docs")
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert not re.search(r"<(script|link|img|iframe)|url\(|@import|https?://", page)
    assert "default-src 'none'" in headers["content-security-policy"]


def test_the_page_shows_what_a_request_and_a_reply_hold_and_fits_a_phone(
    server: HttpServer,
) -> None:
    page = ask(server, "/v2/docs")[2].replace("<wbr>", "")
    assert 'name="viewport"' in page
    assert page.count("<details>") == page.count("</details>") > 30
    infer = page.partition("<code>/v2/models/{model}/infer</code>")[2].partition("</details>")[0]
    request, _, reply = infer.partition("<h3>Reply</h3>")
    assert "&quot;inputs&quot;: [" in request
    assert "Inference-Header-Content-Length" in request
    assert "&quot;outputs&quot;: [" in reply
    index = page.partition("<code>/v2/repository/index</code>")[2].partition("</details>")[0]
    assert "&quot;state&quot;: string" in index


@pytest.mark.parametrize(
    ("path", "method", "allowed"),
    [
        ("/v2/models/m/infer", "GET", "POST"),
        ("/v2", "POST", "GET, HEAD"),
        ("/v2/logging", "DELETE", "GET, HEAD, POST"),
    ],
)
def test_another_method_is_refused_with_those_that_are_answered(
    server: HttpServer, path: str, method: str, allowed: str
) -> None:
    status, headers, body = ask(server, path, method)
    assert (status, headers["allow"]) == (405, allowed)
    assert allowed in json.loads(body)["error"]


def test_an_unknown_path_is_answered_as_the_protocol_does(server: HttpServer) -> None:
    status, _, body = ask(server, "/v2/nowhere")
    assert (status, list(json.loads(body))) == (404, ["error"])
