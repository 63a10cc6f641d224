"""A device that does not start: meanwhile Ctrl-C is pressed, and its PORT is taken."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping

from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.errors import Unavailable

TAKEN: list[socket.socket] = []


@plugin_api(1)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    TAKEN.append(socket.create_server(("127.0.0.1", int(config["PORT"]))))
    os.kill(os.getpid(), signal.SIGINT)
    raise Unavailable("it was interrupted")
