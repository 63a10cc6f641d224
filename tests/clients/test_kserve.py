"""The inference clients of KServe's SDK, as they are on PyPI: gRPC and REST, both asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import numpy as np
import pytest

kserve = pytest.importorskip("kserve", reason="it has an environment of its own: .venv-kserve")

from tests.clients.conftest import Serving, load_over_rest  # noqa: E402

T = TypeVar("T")

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module", autouse=True)
def _models(serving: Serving) -> None:
    for name in ("add", "text"):
        load_over_rest(serving, name)


def over_grpc(serving: Serving, use: Callable[[Any], Awaitable[T]]) -> T:
    async def run() -> T:
        client = kserve.InferenceGRPCClient(serving.grpc)
        try:
            return await use(client)
        finally:
            await client.close()

    return asyncio.run(run())


def over_rest(serving: Serving, use: Callable[[Any, str], Awaitable[T]]) -> T:
    async def run() -> T:
        client = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2"))
        try:
            return await use(client, f"http://{serving.http}")
        finally:
            await client.close()

    return asyncio.run(run())


def addition(*, binary: bool, second: str = "y") -> Any:
    inputs = []
    for name, value in (("x", X), (second, 2 * X)):
        each = kserve.InferInput(name, list(value.shape), "FP32")
        each.set_data_from_numpy(value, binary_data=binary)
        inputs.append(each)
    return kserve.InferRequest("add", inputs, request_id="one")


@pytest.mark.parametrize("binary", [True, False])
def test_grpc_infers(serving: Serving, binary: bool) -> None:
    reply = over_grpc(serving, lambda client: client.infer(addition(binary=binary)))
    assert reply.id == "one"
    np.testing.assert_array_equal(reply.outputs[0].as_numpy(), 3 * X)


@pytest.mark.parametrize("binary", [True, False])
def test_rest_infers(serving: Serving, binary: bool) -> None:
    reply = over_rest(
        serving, lambda client, url: client.infer(url, addition(binary=binary), model_name="add")
    )
    assert reply.id == "one"
    np.testing.assert_array_equal(reply.outputs[0].as_numpy(), 3 * X)


def test_text_comes_back_over_grpc(serving: Serving) -> None:
    text = kserve.InferInput("x", [2], "BYTES")
    text.set_data_from_numpy(np.array([b"rain", b"sn\xc3\xb6"], object), binary_data=True)
    request = kserve.InferRequest("text", [text])
    reply = over_grpc(serving, lambda client: client.infer(request))
    assert reply.outputs[0].as_numpy().tolist() == [b"rain", b"sn\xc3\xb6"]


def test_both_say_that_server_and_model_are_ready(serving: Serving) -> None:
    async def ask_grpc(client: Any) -> list[bool]:
        return [
            await client.is_server_live(),
            await client.is_server_ready(),
            await client.is_model_ready("add"),
        ]

    async def ask_rest(client: Any, url: str) -> list[bool]:
        return [
            await client.is_server_live(url),
            await client.is_server_ready(url),
            await client.is_model_ready(url, "add"),
        ]

    assert over_grpc(serving, ask_grpc) == [True, True, True]
    assert over_rest(serving, ask_rest) == [True, True, True]


def test_a_wrong_input_is_an_error_that_names_it(serving: Serving) -> None:
    request = addition(binary=True, second="nobody")
    with pytest.raises(Exception, match="nobody"):
        over_grpc(serving, lambda client: client.infer(request))
