"""The worker process: ``python -m headrace.runtime.isolation.worker.program CONTROL CANCEL LIFE``.

The arguments are file descriptors: a link for calls, a link with the numbers of requests to cancel,
and a pipe that closes when the server is gone. The main thread reads calls and
cancellations. Calls run on a pool of threads, and each lane has its own thread. The server starts
the worker with SIGINT and SIGTERM blocked.
"""

from __future__ import annotations

import faulthandler
import fcntl
import importlib
import logging
import os
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from headrace.ipc.link import Disconnected, Link, Message, packed
from headrace.ipc.segments import SegmentTable, map_files, write_file
from headrace.runtime.cache.weights import WeightFiles
from headrace.runtime.device.state import DeviceEvent
from headrace.runtime.errors import Unavailable
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.intake.model_files import ModelFiles
from headrace.runtime.isolation.wire.failures import error_from_json, error_to_json
from headrace.runtime.isolation.worker.cancellations import Cancellations
from headrace.runtime.isolation.worker.device import WorkerCall, WorkerDevice
from headrace.runtime.isolation.worker.lane import WorkerLane
from headrace.runtime.network.facts import FACTS, facts_from_json
from headrace.runtime.network.network import Network
from headrace.runtime.system.allocator import tune_allocator
from headrace.runtime.system.interruption import interruptible

_log = logging.getLogger(__name__)

_CALLS_AT_ONCE = 16
"""More than the server loads at once, so that loads that do not end leave room for other calls."""
_OOM_SCORE = 500  # out of 1000, see proc(5); the server has 0, unless somebody has set it
_F_SETSIG = 10  # fcntl(2), Linux; the fcntl module has no name for it

_CALLS: dict[str, Callable[[WorkerDevice, WorkerCall], Any]] = {
    "describe": WorkerDevice.describe,
    "set_config": WorkerDevice.set_config,
    "metric": WorkerDevice.metric,
    "extend": WorkerDevice.extend,
    "query": WorkerDevice.query,
    "load": WorkerDevice.load,
    "unload": WorkerDevice.unload,
    "layers": WorkerDevice.layers,
    "network_metric": WorkerDevice.network_metric,
    "network_config": WorkerDevice.network_config,
    "telemetry": WorkerDevice.telemetry,
}

_Answer: TypeAlias = "tuple[Any, list[int]]"  # the result, and the descriptors to send with it


class Worker:
    """Serves the server until its connection ends. The first call sets `_device`."""

    def __init__(self, control: Link, cancel: Link) -> None:
        self._control = control
        self._cancel = cancel
        self._cancellations = Cancellations()
        self._segments = SegmentTable()
        self._device: WorkerDevice | None = None
        self._models: dict[int, Future[ModelFiles]] = {}  # asked for; single operations are atomic
        self._calls = ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="worker-call")

    def run(self) -> None:
        """Takes calls and cancellations. Returns when the server is gone."""
        with selectors.DefaultSelector() as ready:
            ready.register(self._control, selectors.EVENT_READ, self._take_calls)
            ready.register(self._cancel, selectors.EVENT_READ, self._take_cancellations)
            try:
                while True:
                    for key, _ in ready.select():
                        key.data()
            except Disconnected:
                return

    def _take_cancellations(self) -> None:
        self._cancel.read()
        while (message := self._cancel.take()) is not None:
            self._cancellations.cancel(message.header["cancel"])

    def _take_calls(self) -> None:
        self._control.read()
        while (message := self._control.take()) is not None:
            self._take_call(message)

    def _take_call(self, message: Message) -> None:
        self._segments.forget(message.header.get("forget", ()))
        if message.header["method"] == "lane":
            self._open_lane(message.descriptors[0])
        elif message.header["method"] == "model":
            self._take_model(message)
        elif message.header["method"] == "pulse":
            self._control.send(packed({"call": message.header["call"]}))
        else:
            self._calls.submit(self._answer, message)

    def _open_lane(self, descriptor: int) -> None:
        link = Link(socket.socket(fileno=descriptor))
        lane = WorkerLane(link, self._opened(), self._segments, self._cancellations)
        threading.Thread(target=lane.serve, name="worker-lane", daemon=True).start()

    def _take_model(self, message: Message) -> None:
        told = message.header["arguments"]
        asked = self._models.pop(told["number"])
        if "error" in told:
            asked.set_exception(error_from_json(told["error"]))
        else:
            asked.set_result(ModelFiles.received(told["model"], message.descriptors))

    def _read(self, number: int) -> Network:
        """Asks the server for the graph of a network, and reads it. Raises as a load."""
        asked = self._models[number] = Future()
        self._control.send(packed({"model": number}))
        model = asked.result()
        return Network.from_data(*model.read(), model.limits, spooled=True)

    def _answer(self, message: Message) -> None:
        number = message.header["call"]
        try:
            with ExitStack() as files:
                token = self._cancellations.begin(number)
                try:
                    with interruptible(token):
                        result, sent = self._call(message, token, files)
                finally:
                    self._cancellations.end(number)
                answer = packed({"call": number, "result": result}, (), len(sent))
                self._control.send(answer, sent)
        except Disconnected as error:
            _log.warning("a call was not answered: %s", error)
        except BaseException as error:  # noqa: BLE001 - a plugin may raise anything; tell the server
            self._control.send(packed({"call": number, "error": error_to_json(error)}))

    def _call(self, message: Message, token: CancelToken, files: ExitStack) -> _Answer:
        method = message.header["method"]
        arguments = message.header.get("arguments", {})
        unread, facts = None, arguments.get("facts")
        if facts is not None:
            read = partial(self._read, arguments["number"])
            unread = Network.unread(read, facts_from_json(facts, FACTS))
        call = WorkerCall(arguments, map_files(message.descriptors), token, unread)
        if method == "create":
            self._create(call)
            return None, []
        if method == "close":
            self._close()
            return None, []
        if method == "export":
            native = self._opened().export(call)
            return None, [files.enter_context(write_file((native,)))]
        return _CALLS[method](self._opened(), call), []

    def _create(self, call: WorkerCall) -> None:
        arguments = call.arguments
        weights = arguments["weights"]
        importlib.invalidate_caches()
        self._device = WorkerDevice(
            arguments["name"],
            arguments["path"],
            arguments["config"],
            self._tell_state,
            Path(arguments["folder"]) if arguments["folder"] else None,
            WeightFiles.from_json(weights) if weights else None,
            isolated=arguments["isolated"],
        )

    def _close(self) -> None:
        device, self._device = self._device, None
        if device is not None:
            device.close()

    def _opened(self) -> WorkerDevice:
        if self._device is None:
            raise Unavailable("the device has not been created")
        return self._device

    def _tell_state(self, event: DeviceEvent) -> None:
        self._control.send(packed({"state": event.state.value, "reason": event.reason}))


def main(arguments: list[str]) -> None:
    control, cancel, life = map(int, arguments)
    _end_with(life)
    _end_first()
    faulthandler.enable(all_threads=False)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    tune_allocator()
    # A call that runs Python code lets requests run after half a millisecond.
    sys.setswitchinterval(0.0005)
    control_link, cancel_link = (
        Link(socket.socket(fileno=descriptor)) for descriptor in (control, cancel)
    )
    Worker(control_link, cancel_link).run()
    sys.stderr.flush()
    # A backend's thread or exit handler must not keep the process alive.
    os._exit(0)


def _end_with(life: int) -> None:
    """Has the system kill this process when the pipe's other end is gone. This works whatever the
    threads do then; a backend may hold the interpreter forever."""
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)


def _end_first() -> None:
    """Has the system kill this process, and not the server, if memory runs out."""
    with suppress(OSError):  # a container may hide the file
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))


if __name__ == "__main__":
    main(sys.argv[1:])
