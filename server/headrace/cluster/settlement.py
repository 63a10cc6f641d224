"""Holds the reply to a change back until every replica has the change."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from headrace.cluster.keeping import KeeperClient
from headrace.cluster.store import COMMITS, Commit
from headrace.runtime.errors import FailedPrecondition
from headrace.server.access.identity import Role
from headrace.server.services.methods import Kind, Method


def settling(methods: list[Method], keeper: KeeperClient) -> list[Method]:
    """The methods, of which those that change something wait for all replicas."""
    return [
        method._replace(handler=_settled(method.handler, keeper))
        if method.role is Role.MANAGE and method.kind in (Kind.UNARY, Kind.CLIENT_STREAM)
        else method
        for method in methods
    ]


def _settled(handler: Callable[..., Any], keeper: KeeperClient) -> Callable[..., Any]:
    @wraps(handler)
    async def handle(*arguments: Any) -> Any:
        commits: list[Commit] = []
        token = COMMITS.set(commits)
        try:
            reply = await handler(*arguments)
        finally:
            COMMITS.reset(token)
        await settle(commits, keeper)
        return reply

    return handle


async def settle(commits: list[Commit], keeper: KeeperClient) -> None:
    """Waits until every live replica has the changes.

    Raises:
        FailedPrecondition: replicas cannot have them. The error names each, and says why. The
            changes stay in the desired state, and these replicas try again.
    """
    for key, revision in commits:
        problems = await keeper.settle(key, revision)
        if problems:
            shown = key.partition("/")[2]
            told = "; ".join(map(str, problems[:8]))
            raise FailedPrecondition(
                f"the cluster has taken {shown!r}, but {len(problems)} of its replicas do not "
                f"serve it: {told}",
                field="name",
                metadata={problem.member.name: problem.reason for problem in problems[:8]},
            )
