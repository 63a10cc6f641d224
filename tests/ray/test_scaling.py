"""Replicas are added when requests wait for a device, and leave when the load is over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.client import Client, errors
from headrace.client.sync import Network
from tests.ray.conftest import Load, Servers

WIDTH: Final = 1024
ROWS: Final = 32
LAYERS: Final = 8
CALLERS: Final = 8
SCALING: Final = {
    "min_replicas": 1,
    "max_replicas": 3,
    "metrics_interval_s": 1,
    "look_back_period_s": 3,
    "upscale_delay_s": 2,
    "downscale_delay_s": 5,
    "policy": {"policy_function": "headrace.cluster.scaling:by_waiting_time"},
}


def slow_model() -> onnx.ModelProto:
    """Some ten milliseconds of one processor for each request."""
    names = ["x", *(f"h{each}" for each in range(1, LAYERS)), "y"]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (ROWS, WIDTH)) for name in "xy"]
    weights = numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32), "w")
    nodes = [helper.make_node("MatMul", [names[i], "w"], [names[i + 1]]) for i in range(LAYERS)]
    graph = helper.make_graph(nodes, "slow", ports[:1], ports[1:], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.fixture
def scaled(servers: Servers) -> Iterator[Servers]:
    servers.deploy(autoscaling_config=SCALING)
    yield servers
    servers.deploy()
    servers.ready(3)


def test_replicas_follow_the_load(scaled: Servers, client: Client, mlp: Network) -> None:
    with Load(scaled) as light:
        scaled.ready(1)
        client.load_network(slow_model(), device="CPU", name="slow")
        over = threading.Event()
        failed: list[errors.Error] = []

        def heavy() -> None:
            x = np.ones((ROWS, WIDTH), np.float32)
            with scaled.client() as mine:
                network = mine.network("slow")
                while not over.is_set():
                    try:
                        np.testing.assert_array_equal(network.infer({"x": x})["y"], x)
                    except errors.Error as error:
                        failed.append(error)

        threads = [threading.Thread(target=heavy) for _ in range(CALLERS)]
        for each in threads:
            each.start()
        try:
            members = scaled.ready(3)
            light.more(20)
            assert len({member.node for member in members}) == 3
        finally:
            over.set()
            for each in threads:
                each.join()
        scaled.ready(1)
        light.more(20)
    assert failed == []
    assert light.failed == []
