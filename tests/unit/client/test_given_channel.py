"""Clients whose calls go over a channel of gRPC's that the user has made."""

from __future__ import annotations

import asyncio

import grpc
import numpy as np
import pytest

from headrace.client import Client, aio, conversation, errors
from headrace.wire.errors import ErrorDetails
from tests.support.client_fake import ENDLESS, Fake

X = {"x": np.array([[1.0, 2.0]], np.float32)}


def test_threads_call_over_the_users_channel_which_stays_open(fake: Fake) -> None:
    with grpc.insecure_channel(fake.target) as channel:
        with Client("a-name:1", channel=channel, token="t") as client:
            network = client.load_network(b"m" * (1 << 20), name="echo")
            assert np.array_equal(network.infer(X)["y"], X["x"])
            assert np.array_equal(network.start_async(X).result()["y"], X["x"])
            assert len(list(network.infer_many([X] * 5))) == 5
            assert client.network("echo").export() == b"HEADRACE"
            request = network.start_async({"x": np.full((1, 1), ENDLESS, np.float32)})
            assert request.cancel()
            with pytest.raises(errors.Cancelled):
                request.result()
        with Client("a-name:1", channel=channel) as again:
            assert again.devices()
    assert len(fake.uploaded) == 1 << 20
    assert set(fake.tokens) == {"Bearer t"}


def test_tasks_call_over_the_users_channel_which_stays_open(fake: Fake) -> None:
    async def main() -> None:
        async with grpc.aio.insecure_channel(fake.target) as channel:
            async with aio.Client("a-name:1", channel=channel) as client:
                network = await client.load_network(b"m" * (1 << 20), name="echo")
                assert np.array_equal((await network.infer(X))["y"], X["x"])
                assert len([each async for each in network.infer_many([X] * 5)]) == 5
                assert await network.export() == b"HEADRACE"
                fake.failures.append(ErrorDetails(grpc.StatusCode.CANCELLED, "dropped"))
                assert await client.devices()  # it is sent again
            async with aio.Client("a-name:1", channel=channel) as again:
                assert await again.devices()

    asyncio.run(main())


def test_errors_are_those_of_the_server(fake: Fake) -> None:
    fake.failures.append(ErrorDetails(grpc.StatusCode.NOT_FOUND, "no", reason="R", field="name"))
    with grpc.insecure_channel(fake.target) as channel, Client("x", channel=channel) as client:
        with pytest.raises(errors.NotFound) as caught:
            client.network("echo")
        assert (caught.value.details.reason, caught.value.details.field) == ("R", "name")


def test_a_stream_over_the_users_channel_keeps_its_time_limit(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "SLACK_SECONDS", 0.0)
    endless = {"x": np.full((1, 1), ENDLESS, np.float32)}
    with grpc.insecure_channel(fake.target) as channel, Client("x", channel=channel) as client:
        many = client.network("echo").infer_many([endless], timeout=0.05)
        with pytest.raises(errors.DeadlineExceeded):
            next(many)
