"""A network on the device: three stages that turn a job's inputs into its outputs."""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from headrace.sdk import (
    CompiledPlugin,
    Configuration,
    CorrectedEvaluator,
    ExecutableNetwork,
    InvalidArgument,
    Job,
    LayerProfile,
    Network,
    answer,
)

_JOB: ContextVar[Job] = ContextVar("the job that this thread computes")


class TemplateNetwork(ExecutableNetwork):
    """The evaluator keeps nothing between runs, so all streams share one."""

    def __init__(self, network: Network, config: Configuration, plugin: CompiledPlugin) -> None:
        super().__init__(network, config, plugin.executor(config), streams=plugin.share(config))
        self._evaluator = Evaluator(ir.to_proto(network.model))
        self._origins = {layer.name: layer.origins for layer in network.layers}

    def _preprocess(self, job: Job) -> None:
        job.backend = {port.name: job.inputs.get(port.name) for port in self.inputs}

    def _infer(self, job: Job) -> None:
        before = _JOB.set(job)
        try:
            with np.errstate(all="ignore"):  # 1 / 0 is infinity, without a warning
                job.backend = self._evaluator.run(job.output_names, job.backend)
        finally:
            _JOB.reset(before)
            device, origins = self.place.device, self._origins
            job.layers = [replace(x, device=device, origins=origins[x.layer]) for x in job.layers]

    def _postprocess(self, job: Job) -> None:
        types = {port.name: port.dtype for port in self.outputs}
        outputs = zip(job.output_names, job.backend, strict=True)
        job.outputs = {name: answer(output, types[name]) for name, output in outputs}

    def _close(self) -> None:
        del self._evaluator  # it has a copy of the weights


class Evaluator(CorrectedEvaluator):
    """Checks before each node whether the job is still wanted, and times the network's layers."""

    def __init__(self, proto: Any, **options: Any) -> None:
        super().__init__(proto, **options)
        timed = isinstance(self.proto_, onnx.ModelProto)  # a body's time counts for its layer
        self.run_layers_by(partial(_run, timed))


def _run(timed: bool, run: Any, node: onnx.NodeProto, *inputs: Any, **options: Any) -> Any:
    job = _JOB.get()
    if job.token.error is not None:
        raise job.token.error
    start = time.perf_counter()
    try:
        return run(*inputs, **options)
    except Exception as error:  # each operator refuses values in its own way
        message = f"layer {node.name!r} ({node.op_type}) does not take these values: {error}"
        raise InvalidArgument(message, field="inputs") from error
    finally:
        if timed and job.profile:
            seconds = time.perf_counter() - start
            job.layers.append(LayerProfile(node.name, node.op_type, "", "reference", seconds))
