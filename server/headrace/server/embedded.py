"""The server as Envoy loads it: an ASGI application. The lifespan is the server's."""

from __future__ import annotations

import asyncio
import os
import traceback
from pathlib import Path
from typing import Any

from headrace.runtime.errors import HeadraceError
from headrace.server.command import prepare, run_server, tell
from headrace.server.transport.asgi.call import Event, Receive, Send
from headrace.server.transport.envoy.front_end import LOADED
from headrace.server.transport.envoy.process import Launch, launched, leave


async def application(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Handles a call. First of all, the lifespan: from there on the server runs."""
    if scope["type"] == "lifespan":
        await receive()
        launch = launched(os.environ)
        LOADED.folder = Path(launch.folder)
        code = await _live(launch, send)
        await asyncio.to_thread(leave, launch, code)
    else:
        assert LOADED.application is not None
        await LOADED.application(scope, receive, send)


async def _live(launch: Launch, send: Send) -> int:
    """Runs the server until it is told to stop. Returns the exit code."""
    opened: Event = {"type": "lifespan.startup.complete"}
    arguments, json_output = launch.arguments, launch.json_output
    form = ""
    try:
        settings = prepare(arguments)
        form = settings.log_format
        await run_server(settings, json_output=json_output, on_made=lambda: send(opened))
    except HeadraceError as error:
        tell(error, json_output=json_output, form=form)
        return 1
    except Exception:  # noqa: BLE001 - nobody else would tell it
        traceback.print_exc()
        return 1
    return 0
