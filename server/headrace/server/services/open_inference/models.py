"""Describes the server and its models in the messages of the protocol's .proto."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version as version_of
from typing import Any, Final

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.core import Core
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import HeadraceError, NotLoaded
from headrace.runtime.execution.job import Outcome
from headrace.runtime.loading.entry import SERVING
from headrace.runtime.loading.registry import NetworkEntry, NetworkState
from headrace.runtime.metrics.statistics import Stages, Total
from headrace.runtime.network.network import Port
from headrace.server.access.networks import Networks
from headrace.server.repository.model_config import PLATFORM
from headrace.server.services.open_inference.configuration import model_config
from headrace.server.services.open_inference.datatypes import datatype_of
from headrace.server.services.open_inference.settings import log_settings

NAME: Final = "headrace"
_EXTENSIONS: Final = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
_SHARED_MEMORY: Final = "system_shared_memory"


class Models:
    """Thread-safe: gRPC and REST call it on threads of their own.

    Args:
        unready: returns why the server takes no requests, or None if it does.
        shared_memory: whether clients may register regions.
    """

    def __init__(
        self,
        core: Core,
        networks: Networks,
        unready: Callable[[], str | None],
        *,
        shared_memory: bool = False,
    ) -> None:
        self._core = core
        self._networks = networks
        self._unready = unready
        self._version = version_of("headrace")
        self._extensions = (*_EXTENSIONS, _SHARED_MEMORY) if shared_memory else _EXTENSIONS

    # -- the server --

    def live(self) -> oip.ServerLiveResponse:
        """Whether the server answers. Always true."""
        return oip.ServerLiveResponse(live=True)

    def ready(self) -> oip.ServerReadyResponse:
        """Whether the server takes requests."""
        return oip.ServerReadyResponse(ready=self._unready() is None)

    def server_metadata(self) -> oip.ServerMetadataResponse:
        """The server's name, its version, and the extensions of the protocol that it serves."""
        return oip.ServerMetadataResponse(
            name=NAME, version=self._version, extensions=self._extensions
        )

    def log_settings(self, given: Mapping[str, bool | int | str]) -> oip.LogSettingsResponse:
        """As `settings.log_settings`.

        Raises:
            PermissionDenied: the caller wants to change a setting and is not an operator.
        """
        if given:
            self._networks.check_operator("the log")
        return log_settings(given)

    # -- a model --

    def model_ready(self, name: str, version: str = "") -> oip.ModelReadyResponse:
        """Whether a model takes requests: it is loaded, its device works, and so do the models
        that it runs.

        A model that does not exist is not ready. One that its first request loads is.
        """
        try:
            entry = self._networks.acquire(name, version)
        except NotLoaded:
            return oip.ModelReadyResponse(ready=self._unready() is None)
        except HeadraceError:
            return oip.ModelReadyResponse(ready=False)
        try:
            ready = self._works(entry)
        finally:
            self._networks.release(entry)
        return oip.ModelReadyResponse(ready=ready and self._unready() is None)

    def model_metadata(self, name: str, version: str = "") -> oip.ModelMetadataResponse:
        """A model's inputs and outputs.

        Raises:
            NotFound, Unavailable, FailedPrecondition: as `NetworkRegistry.acquire`.
            Unimplemented: the protocol cannot describe an input or output of the model.
        """
        with self._executable(name, version) as (_, executable):
            return oip.ModelMetadataResponse(
                name=name,
                versions=[entry.key.version for entry in self._taking(name)],
                platform=PLATFORM,
                inputs=[_metadata(port, "input") for port in executable.inputs],
                outputs=[_metadata(port, "output") for port in executable.outputs],
            )

    def model_config(self, name: str, version: str = "") -> oip.ModelConfigResponse:
        """A model's configuration as Triton describes it. Raises as `model_metadata`."""
        with self._executable(name, version) as (entry, executable):
            return oip.ModelConfigResponse(config=model_config(entry, executable, name))

    def statistics(self, name: str = "", version: str = "") -> oip.ModelStatisticsResponse:
        """Counts and times of one version, of all versions of a model, or of all models.

        Raises:
            NotFound: there is no such model or version.
            Unavailable, FailedPrecondition: the model is not loaded.
        """
        if version or name:
            with suppress(NotLoaded), self._executable(name, version):  # raises if there is none
                pass
            entries = self._taking(name)
        else:
            entries = [e for e in self._networks.entries() if e.state is NetworkState.READY]
        reply = oip.ModelStatisticsResponse()
        for entry in entries:
            executable = entry.executable
            if executable is not None and version in ("", entry.key.version):
                message = reply.model_stats.add(name=self._networks.shown(entry.key.name))
                _fill(message, entry, executable)
        return reply

    # -- inside --

    @contextmanager
    def _executable(
        self, name: str, version: str
    ) -> Iterator[tuple[NetworkEntry, ExecutableNetwork]]:
        entry = self._networks.acquire(name, version)
        try:
            assert entry.executable is not None
            yield entry, entry.executable
        finally:
            self._networks.release(entry)

    def _taking(self, name: str) -> list[NetworkEntry]:
        """The versions that take requests."""
        versions = self._networks.versions(name)
        return [entry for entry in versions if entry.state in SERVING]

    def _works(self, entry: NetworkEntry) -> bool:
        executable = entry.executable
        if executable is None or executable.unready():
            return False
        return executable.works(self._core.devices_up())


def _metadata(port: Port, kind: str) -> Any:
    parameters = {"classes": json.dumps(port.classes)} if port.classes else {}
    return oip.ModelMetadataResponse.TensorMetadata(
        name=port.name,
        datatype=datatype_of(port.dtype, f"{kind} {port.name!r}"),
        shape=[-1]
        if port.shape is None
        else [size if isinstance(size, int) else -1 for size in port.shape],
        parameters={k: oip.InferParameter(string_param=v) for k, v in parameters.items()},
    )


def _fill(message: Any, entry: NetworkEntry, executable: ExecutableNetwork) -> None:
    totals = executable.statistics.totals()
    message.version = entry.key.version
    if totals.last_end:
        ago = time.monotonic() - totals.last_end
        message.last_inference = round((time.time() - ago) * 1000)
    completed = totals.outcomes[Outcome.COMPLETED].count
    runs, message.inference_count = totals.runs, totals.rows
    batched = entry.record.request.presentation.max_batch_size > 0
    if executable.counts_rows and not batched:  # one inference a request, whatever its shape
        runs, message.inference_count = ({1: totals.stages} if completed else {}), completed
    message.execution_count = sum(run.inference.count for run in runs.values())
    stats = message.inference_stats
    failed = [totals.outcomes[outcome] for outcome in Outcome if outcome is not Outcome.COMPLETED]
    fail = Total(sum(total.count for total in failed), sum(total.seconds for total in failed))
    _duration(stats.success, totals.outcomes[Outcome.COMPLETED])
    _duration(stats.fail, fail)
    _duration(stats.queue, totals.queue)
    _duration(stats.cache_hit, totals.kept)
    _duration(stats.cache_miss, totals.not_kept)
    _stages(stats, totals.stages)
    for rows, run in sorted(runs.items()):
        _stages(message.batch_stats.add(batch_size=rows), run)
    response = message.response_stats["0"]  # of the first and only response
    _duration(response.compute_infer, totals.stages.inference)
    _duration(response.compute_output, totals.stages.completion)
    _duration(response.success, totals.outcomes[Outcome.COMPLETED])
    _duration(response.fail, fail)
    _duration(response.cancel, totals.outcomes[Outcome.CANCELLED])


def _stages(message: Any, stages: Stages) -> None:
    _duration(message.compute_input, stages.preparation)
    _duration(message.compute_infer, stages.inference)
    _duration(message.compute_output, stages.completion)


def _duration(message: Any, total: Total) -> None:
    message.count, message.ns = total.count, total.nanoseconds
