"""Metrics and probes over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.runtime.loading.registry import NetworkRegistry
from headrace.runtime.metrics.counters import Counters
from headrace.server.access.networks import Networks
from headrace.server.http.application import Application
from headrace.server.http.metrics import make_registry
from headrace.server.http.operations import operations_routes
from headrace.server.http.server import HttpServer
from tests.unit.server.http.serving import ask, serving

SHARED = Networks(NetworkRegistry(1))


class Readiness:
    """Why the server is not ready, as a test sets it."""

    why_not: str | None = None

    def __call__(self) -> str | None:
        return self.why_not


@pytest.fixture
def readiness() -> Readiness:
    return Readiness()


@pytest.fixture
def failed() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def lacking() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def server(
    readiness: Readiness, failed: list[tuple[str, str]], lacking: list[tuple[str, str]]
) -> Iterator[HttpServer]:
    counters = Counters()
    counters.grpc("Infer")["OK"] = 1
    registry = make_registry(counters, lambda: {"CPU": True}, SHARED)
    routes = operations_routes(registry, readiness, lambda: failed, lambda: lacking)
    with serving(Application(routes, counters)) as server:
        yield server


def test_metrics_are_in_prometheus_text_by_default(server: HttpServer) -> None:
    status, headers, body = ask(server, "/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    assert 'headrace_grpc_requests_total{code="OK",method="Infer"} 1.0' in body


def test_metrics_are_in_openmetrics_if_asked_for(server: HttpServer) -> None:
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    _, headers, body = ask(server, "/metrics", headers=accept)
    assert headers["content-type"].startswith("application/openmetrics-text")
    assert body.endswith("# EOF\n")


def test_requests_are_counted_by_path_and_status(server: HttpServer) -> None:
    ask(server, "/healthz")
    ask(server, "/secret/path")
    ask(server, "/healthz", "POST")
    _, _, body = ask(server, "/metrics")
    assert 'headrace_http_requests_total{code="200",path="/healthz"} 1.0' in body
    assert 'headrace_http_requests_total{code="405",path="/healthz"} 1.0' in body
    assert 'headrace_http_requests_total{code="404",path="other"} 1.0' in body
    assert "secret" not in body


def test_the_process_is_alive_even_when_not_ready(server: HttpServer, readiness: Readiness) -> None:
    readiness.why_not = "draining"
    assert ask(server, "/healthz")[::2] == (200, "alive\n")


def test_readiness_says_why_not(server: HttpServer, readiness: Readiness) -> None:
    assert ask(server, "/readyz")[::2] == (200, "ready\n")
    readiness.why_not = "loading the model repository"
    assert ask(server, "/readyz")[::2] == (503, "loading the model repository\n")


def test_readiness_names_the_networks_that_failed_and_the_others_serve(
    server: HttpServer, failed: list[tuple[str, str]]
) -> None:
    failed += [("detector", ""), ("ranker", "4")]
    assert ask(server, "/readyz")[::2] == (
        200,
        "ready\nnetwork detector failed to load\nnetwork ranker version 4 failed to load\n",
    )


def test_readiness_names_the_networks_that_lack_others(
    server: HttpServer, lacking: list[tuple[str, str]]
) -> None:
    lacking.append(("reads", "step 'find': unknown network 'finder'"))
    line = "network reads is not ready: step 'find': unknown network 'finder'"
    assert ask(server, "/readyz")[::2] == (200, f"ready\n{line}\n")


def test_head_gives_the_length_without_the_body(server: HttpServer) -> None:
    status, headers, body = ask(server, "/healthz", "HEAD")
    assert (status, headers["content-length"], body) == (200, "6", "")


def test_an_unknown_path_names_the_known_ones(server: HttpServer) -> None:
    status, _, body = ask(server, "/metric")
    assert status == 404
    assert (
        body == "not found; known: /metrics, /healthz, /readyz, and the paths that /v2/docs lists\n"
    )


def test_a_query_string_is_no_part_of_the_path(server: HttpServer) -> None:
    assert ask(server, "/healthz?verbose")[0] == 200


def test_other_methods_are_refused(server: HttpServer) -> None:
    status, headers, _ = ask(server, "/metrics", "POST")
    assert (status, headers["allow"]) == (405, "GET, HEAD")
