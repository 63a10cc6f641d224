"""The nodes of a Ray cluster on this machine.

Import this before Ray, which reads its variables when it is imported.
"""

# ruff: noqa: E402 - see above

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, TypeVar


def free_ports(count: int) -> list[int]:
    """Ports of all addresses of this machine, each another one."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [int(each.getsockname()[1]) for each in sockets]


_METRICS_PORT, _STATS_PORT = map(str, free_ports(2))
# The nodes inherit them. Where a machine is busy, Ray's own timeouts of a few seconds would end
# what only is slow.
ENVIRONMENT: Final = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_HAPROXY_BINARY_PATH": str(Path(sys.executable).with_name("headrace-haproxy")),
    "RAY_SERVE_HAPROXY_NBTHREAD": "1",
    "RAY_SERVE_HAPROXY_METRICS_PORT": _METRICS_PORT,
    "RAY_SERVE_HAPROXY_STATS_PORT": _STATS_PORT,
    "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "200",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "100",
    "RAY_raylet_start_wait_time_s": "45",
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "ORT_DISABLE_TELEMETRY": "1",
}
os.environ.update(ENVIRONMENT | dict(os.environ))

import psutil
from ray._private.node import Node
from ray.cluster_utils import Cluster

OBJECT_STORE_BYTES: Final = 100 << 20
ATTEMPTS: Final = 5

T = TypeVar("T")


def _patiently(start: Callable[[], T]) -> T:
    """Starts a node again if it ends at once. Ray gives a node's agents some 15 seconds to start,
    which is too short for a busy machine."""
    for _ in range(ATTEMPTS - 1):
        with suppress(Exception):
            return start()
    return start()


class Nodes:
    """Nodes, each with an address of its own and room for one replica.

    Args:
        count: how many there are at first. The first one is the head.
        network: the first three numbers of their addresses.
    """

    def __init__(self, count: int, network: str = "127.0.0") -> None:
        # Paths of Unix sockets are short.
        self._folder = tempfile.TemporaryDirectory(prefix="hr-", ignore_cleanup_errors=True)
        # Ray takes 127.0.0.1 for a request to find the machine's address in its network.
        self._addresses = (f"{network}.{number}" for number in range(2, 255))
        self.ray = _patiently(
            lambda: Cluster(
                initialize_head=True,
                head_node_args={**self._options(), "include_dashboard": False},
            )
        )
        for _ in range(count - 1):
            self.add()

    def _options(self) -> dict[str, Any]:
        agents = (
            "metrics_agent_port",
            "metrics_export_port",
            "runtime_env_agent_port",
            "dashboard_agent_listen_port",
        )
        return {
            "node_ip_address": next(self._addresses),
            "temp_dir": self._folder.name,
            "num_cpus": 1,
            "object_store_memory": OBJECT_STORE_BYTES,
            **dict(zip(agents, free_ports(len(agents)), strict=True)),
        }

    def add(self) -> Node:
        return _patiently(lambda: self.ray.add_node(**self._options()))

    def kill(self, node: Node) -> None:
        """Kills every process of a node at once, the replica's first."""
        raylet = self.raylet(node)
        for process in [*raylet.children(recursive=True), raylet]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.ray.remove_node(node, allow_graceful=False)

    @staticmethod
    def raylet(node: Node) -> psutil.Process:
        """The process that starts all others of the node."""
        return psutil.Process(node.all_processes["raylet"][0].process.pid)

    def close(self) -> None:
        self.ray.shutdown()
        self._folder.cleanup()
