"""A network on a provider."""

from __future__ import annotations

from headrace.plugins.cpu.backend.session import OnnxRuntimeSession
from headrace.plugins.cpu.executable_network import AcceleratorNetwork
from headrace.plugins.cpu.running.runs import Runs
from headrace.plugins.provider.running.runs import CheckedRuns


class ProviderNetwork(AcceleratorNetwork):
    """Its requests are checked, also those whose layers are timed."""

    def _timed_runs(self, timed: OnnxRuntimeSession) -> Runs:
        assert isinstance(self._runs, CheckedRuns)
        return self._runs.instead(super()._timed_runs(timed))
