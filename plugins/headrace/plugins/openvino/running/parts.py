"""A network of which OPENVINO runs parts, and CPU the others, as HETERO has split it."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import Cancelled
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job, nobody_waits
from headrace.runtime.network.network import Layer
from headrace.runtime.network.values import Value


class Parts:
    """Runs requests of all shapes, as a `Compilation` runs those of one. Thread-safe.

    Args:
        network: the network on HETERO. It is closed with this.
    """

    def __init__(self, network: ExecutableNetwork) -> None:
        self._network = network
        self._token = CancelToken()
        self.text = f"{len(network.subgraphs())} parts on OpenVINO and CPU"

    def run(self, job: Job, device: str, *, trial: bool = False) -> dict[str, Value]:
        """As `Compilation.run`."""
        mine = Job(
            job.inputs,
            nobody_waits,
            output_names=job.output_names,
            token=job.token,
            profile=job.profile and not trial,
        )
        self._network.compute(mine)
        if mine.layers:
            job.layers = mine.layers
        return mine.outputs

    def settled(
        self, inputs: Mapping[str, Value], output_names: tuple[str, ...], runs: int
    ) -> Parts:
        """Runs a request so often that each part has been compiled and tried for its shapes. Call
        it on the thread that compiles: there the parts do not wait for later requests.

        Raises:
            Whatever a part raises.
        """
        for _ in range(runs):
            job = Job(inputs, nobody_waits, output_names=output_names, token=self._token)
            self._network.compute(job)
            if self._token.error is not None:
                raise self._token.error
        return self

    def stop(self) -> None:
        """Ends the runs of `settled`, whose network is unloaded."""
        self._token.cancel(Cancelled("the network is unloaded"))

    @property
    def graph(self) -> dict[str, Layer]:
        """As that of a `Compilation`."""
        return {layer.name: layer for layer in self._network.layers()}

    def export(self) -> bytes:
        """Nothing: HETERO soon splits it again."""
        return b""

    def close(self) -> None:
        self._network.close()
