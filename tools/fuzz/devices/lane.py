"""A device, or the reference, in a process that is started again when it ends or hangs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from headrace.runtime.errors import HeadraceError, Unavailable
from headrace.testing.guarded import GuardedProcess
from tools.fuzz.devices.answer import Answer, How, Stage
from tools.fuzz.devices.variant import Variant

_START_SECONDS = 120.0
_EXCEPTION = "exit status"  # in what an end is called, if it was an exception that nobody caught
_ATTEMPTS = 3  # of a device that has started before: the machine may be busy


class Lane:
    """Answers one variant at a time. Not thread-safe.

    Args:
        target, arguments: what the process runs, as `worker.run_device`.
        limit_seconds: the time that a variant may take.

    Attributes:
        version: of the backend; empty before the first variant.
        restarts: how often the process was started again.
    """

    def __init__(
        self, name: str, target: Callable[..., None], arguments: tuple[Any, ...], limit: float
    ) -> None:
        self.name = name
        self.version = ""
        self.restarts = -1
        self._target = target
        self._arguments = arguments
        self._limit_seconds = limit
        self._process: GuardedProcess | None = None

    def start(self) -> None:
        """Starts the process, if none is there.

        Raises:
            Unavailable: the device does not start.
        """
        attempts = 1 if self.restarts < 0 else _ATTEMPTS
        while self._process is None:
            attempts -= 1
            try:
                self._start()
            except Unavailable:
                if not attempts:
                    raise

    def _start(self) -> None:
        process = GuardedProcess(self._target, self._arguments)
        self._process = process
        self.restarts += 1
        seconds = _START_SECONDS * max(1.0, load())
        greeting: Any = Unavailable(f"{self.name} did not start in {seconds:.0f} s")
        try:
            if process.connection.poll(seconds):
                greeting = process.connection.recv()
        except (EOFError, OSError):
            end, words = process.ending(), process.last_words()
            greeting = Unavailable(f"{self.name} ended at its start: {end}\n{words}".strip())
        if isinstance(greeting, HeadraceError):
            self.stop()
            raise greeting
        self.version = greeting

    def ask(self, variant: Variant, patience: float = 1.0) -> Answer:
        """The result of the variant; ENDED or HUNG if that is what the process does. An exception
        in the process before it has begun with the variant is about what came before: for example,
        memory that was not given back. Then the variant gets a new process.

        Args:
            patience: the factor of the time limit, unless the machine's load is a larger factor.
        """
        answer = self._ask(variant, patience)
        early = answer.how is How.ENDED and answer.stage is Stage.START
        if early and answer.text.startswith(_EXCEPTION):
            answer = self._ask(variant, patience)
        return answer

    def _ask(self, variant: Variant, patience: float) -> Answer:
        self.start()
        assert self._process is not None
        connection = self._process.connection
        seconds = self._limit_seconds * max(patience, load())
        deadline = time.monotonic() + seconds
        stage = Stage.START
        try:
            connection.send(variant)
            while connection.poll(max(0.0, deadline - time.monotonic())):
                message = connection.recv()
                if isinstance(message, Answer):
                    if message.how is How.ENDED:  # a device in a process of its own
                        self.stop()
                    return message
                stage = message
        except (EOFError, OSError):
            ending = self._process.ending()
            if ending.startswith(_EXCEPTION):
                ending = " ".join((ending, *self._process.last_words().splitlines()[-1:]))
            self.stop()
            return Answer(How.ENDED, stage, text=ending)
        self.stop()
        return Answer(How.HUNG, stage, text=f"no answer in {self._limit_seconds:g} s")

    def stop(self) -> None:
        """Ends the process; the next variant has a new one."""
        if self._process is not None:
            self._process.kill()
            self._process = None


def load() -> float:
    """How many processes share a processor: on a busy machine, things take that much longer."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)
