"""A device on which a load kills the server at the end of a stage, when it is told to.

It is CPU otherwise. The variable ``TEST_KILL`` names the file that says at the end of which stage.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from headrace.plugins.cpu.plugin import CpuPlugin
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.system.load_stages import LoadStages


@plugin_api(1)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    order, timed = Path(os.environ["TEST_KILL"]), LoadStages.timed

    @contextmanager
    def killed(stages: LoadStages, stage: str) -> Iterator[None]:
        with timed(stages, stage):
            yield
            if order.exists() and order.read_text() == stage:
                os.kill(os.getpid(), signal.SIGKILL)

    LoadStages.timed = killed  # type: ignore[method-assign, assignment]
    return CpuPlugin(name, services, config)
