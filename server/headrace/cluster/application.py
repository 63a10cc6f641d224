"""The Ray Serve application: the replicas as a deployment, and the keeper as a detached actor."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any, Final

import ray
from ray import serve
from ray.serve.config import gRPCOptions

from headrace.cluster.desired import Value
from headrace.cluster.devices import with_devices
from headrace.cluster.ingress import host
from headrace.cluster.keeper import Keeper
from headrace.cluster.keeping import CommitResult, Update
from headrace.cluster.members import Problem, ReplicaAddress, ReplicaStatus
from headrace.cluster.replica import Replica, check_settings
from headrace.cluster.shared.objects import Objects
from headrace.runtime.errors import InvalidArgument, Unavailable
from headrace.server.logs import configure_logging
from headrace.server.settings.settings import Settings
from headrace.server.settings.sources import load_settings

_log = logging.getLogger(__name__)

SERVICER: Final = "headrace.cluster.ingress.add_to_server"
PORT: Final = 9000
_NAMESPACE: Final = "headrace"
_COMMIT_SECONDS: Final = 30.0
_MOST_CALLS: Final = 100_000  # each replica has a question open, and each change waits


class RayKeeper:
    """The keeper in its actor, which Ray starts again if it ends. Thread-safe.

    Args:
        application: the name of Serve's application.
        store: as `Objects`.
    """

    def __init__(self, application: str, store: str) -> None:
        # A keeper has one store for life.
        suffix = hashlib.sha256(store.encode()).hexdigest()[:8]
        options = {
            "name": f"keeper-{application}-{suffix}",
            "namespace": _NAMESPACE,
            "lifetime": "detached",
            "get_if_exists": True,
            "max_restarts": -1,
            "max_task_retries": -1,
            "max_concurrency": _MOST_CALLS,
            "num_cpus": 0,
            # On the head node, so that no partition lies between it and what starts it again.
            "resources": {"node:__internal_head__": 0.001},
        }
        self._actor = ray.remote(Keeper).options(**options).remote(store)

    def key(self) -> bytes:
        key: bytes = ray.get(self._actor.key.remote(), timeout=_COMMIT_SECONDS)
        return key

    def commit(self, key: str, value: Value | None, expected: int) -> CommitResult:
        # Not tried again behind the caller's back, because the caller may have given up.
        call = self._actor.commit.options(max_task_retries=0).remote(key, value, expected)
        try:
            done: CommitResult = ray.get(call, timeout=_COMMIT_SECONDS)
        except ray.exceptions.RayError as error:
            raise _unreachable(error) from error
        return done

    async def follow(self, member: ReplicaAddress, status: ReplicaStatus, known: str) -> Update:
        update: Update = await self._ask("follow", member, status, known)
        return update

    async def report(self, member: ReplicaAddress, status: ReplicaStatus) -> None:
        await self._ask("report", member, status)

    async def enter(self, member: ReplicaAddress, status: ReplicaStatus) -> bool:
        return bool(await self._ask("enter", member, status))

    async def settle(self, key: str, revision: int) -> list[Problem]:
        problems: list[Problem] = await self._ask("settle", key, revision)
        return problems

    async def release(self, name: str) -> None:
        await self._ask("release", name)

    async def leave(self, name: str) -> None:
        await self._ask("leave", name)

    async def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            return await getattr(self._actor, method).remote(*arguments)
        except ray.exceptions.RayError as error:
            raise _unreachable(error) from error


def _unreachable(error: Exception) -> Unavailable:
    _log.warning("the cluster's keeper did not answer: %s", error)
    return Unavailable(
        "the cluster's desired state cannot be read or changed at the moment; look at what is "
        "loaded, and try again"
    )


class Headrace:
    """A replica in Serve's hands.

    Args:
        store: as `Objects`.
        settings: settings of the server, by name.
    """

    def __init__(self, store: str, settings: Mapping[str, str]) -> None:
        from ray.serve._private.constants import RAY_SERVE_ENABLE_HA_PROXY

        if not RAY_SERVE_ENABLE_HA_PROXY:
            raise RuntimeError(
                "set RAY_SERVE_ENABLE_HA_PROXY=1 in the environment of `ray start` on every node: "
                "without HAProxy, Serve's own proxy stands before the replicas"
            )
        context = ray.get_runtime_context()
        cpus = float(context.get_assigned_resources().get("CPU", 0))
        effective = with_devices(_settings(settings), context.get_accelerator_ids(), cpus)
        configure_logging(effective.log_level, effective.log_format, sys.stderr)
        mine = serve.get_replica_context()
        keeper = RayKeeper(mine.app_name, store)
        self._replica = Replica(
            effective,
            Objects(store),
            keeper,
            keeper.key(),
            name=mine.replica_id.unique_id,
            node=context.get_node_id()[:8],
            host=ray.util.get_node_ip_address(),
        )
        host(self._replica)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """What `scaling.by_waiting_time` decides with."""
        return self._replica.measure()


deployment: Any = serve.deployment(name="Headrace", graceful_shutdown_timeout_s=60)(Headrace)


def app(arguments: dict[str, str]) -> serve.Application:
    """The application.

    Args:
        arguments: ``store``, and settings of the server by name, for example ``devices``.

    Raises:
        HeadraceError: an argument cannot be used.
    """
    settings = dict(arguments)
    store = settings.pop("store", "")
    if not store:
        raise InvalidArgument(
            "give the store that all nodes reach: store=/srv/headrace, or s3://bucket/folder",
            field="store",
        )
    check_settings(_settings(settings))
    if not ray.is_initialized():
        _start()
    return deployment.bind(store, settings)


def _settings(given: Mapping[str, str]) -> Settings:
    # Serve tells the replicas nothing of the machine's free ports, and there may be several.
    return load_settings({"port": "0", "http_port": "0", **given}, os.environ)


def _start() -> None:
    """Starts Serve with gRPC, for `serve run` without a configuration file, which cannot."""
    address = os.environ.get("RAY_ADDRESS", "auto")
    ray.init(address=address, namespace=serve_namespace())
    serve.start(grpc_options=gRPCOptions(port=PORT, grpc_servicer_functions=[SERVICER]))


def serve_namespace() -> str:
    """The namespace of Ray in which Serve lives."""
    from ray.serve._private.constants import SERVE_NAMESPACE

    return str(SERVE_NAMESPACE)
