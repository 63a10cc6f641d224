"""Quotas of one client, over both protocols."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator

import grpc
import pytest

from headrace.testing import networks
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.harness import (
    BASIC,
    CALL_SECONDS,
    Server,
    Stream,
    details_of,
    infer_request,
    outcome_of,
    until,
)

CASE = networks.add()
MANY = 300
"""More requests than the rate allows while they are sent, however slow the machine is."""


@pytest.fixture(scope="module")
def limited() -> Iterator[Server]:
    with Server(*BASIC, "--rate-limit", "3") as running:
        running.load(CASE, "CPU", "add")
        yield running


def test_each_request_on_a_stream_counts_and_a_refused_one_ends_nothing_else(
    limited: Server,
) -> None:
    stream = Stream(limited.stub)
    stream.send(*(infer_request("add", CASE.inputs, id=str(each)) for each in range(MANY)))
    results = [stream.next() for _ in range(MANY)]
    outcomes = Counter(map(outcome_of, results))
    assert outcomes.keys() <= {"OK", "RESOURCE_EXHAUSTED"}
    assert outcomes["RESOURCE_EXHAUSTED"] > MANY / 2
    refused = next(each for each in results if each.WhichOneof("result") == "error")
    details = details_of(refused.error)
    assert details.reason == "QUOTA_EXCEEDED"
    assert details.retry_delay_seconds is not None
    assert 0 < details.retry_delay_seconds <= 1 / 3

    def computed() -> bool:
        stream.send(infer_request("add", CASE.inputs, id="again"))
        return outcome_of(stream.next()) == "OK"

    until(computed, "the stream was to compute again")
    stream.done()


def test_a_call_beyond_the_rate_says_when_to_try_again(limited: Server) -> None:
    def call_often() -> None:
        for _ in range(MANY):
            limited.stub.ListNetworks(pb.ListNetworksRequest(), timeout=CALL_SECONDS)

    with pytest.raises(grpc.RpcError) as refused:
        call_often()
    details = details_of(refused.value)
    assert (details.code, details.reason) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "QUOTA_EXCEEDED",
    )
    assert details.retry_delay_seconds


def test_http_beyond_the_rate_is_429_and_probes_are_answered(limited: Server) -> None:
    def ask_often() -> None:
        for _ in range(MANY):
            limited.get("/v2/models/add")

    with pytest.raises(urllib.error.HTTPError) as refused:
        ask_often()
    with refused.value:  # closes the connection
        assert refused.value.code == 429
    assert int(refused.value.headers["retry-after"]) >= 1
    for _ in range(20):
        assert limited.get("/healthz") == "alive\n"
