"""The worker's end of a lane: takes one request after another, and answers each."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from headrace.ipc.link import Disconnected, Link, Message, packed
from headrace.ipc.segments import Array, Segment, SegmentTable, rounded
from headrace.runtime.execution.job import Job, Ticket
from headrace.runtime.isolation.wire.descriptions import profile_to_json
from headrace.runtime.isolation.wire.failures import error_to_json
from headrace.runtime.isolation.wire.forms import Forms, ValueReader, ValueWriter, key_of
from headrace.runtime.isolation.wire.values import (
    ANSWER,
    GIVEN_IS_NEW,
    OFFERED_IS_NEW,
    RequestFacts,
)
from headrace.runtime.isolation.worker.cancellations import Cancellations
from headrace.runtime.isolation.worker.device import WorkerDevice
from headrace.runtime.network.values import Value

_log = logging.getLogger(__name__)

_ADMITTED = Ticket("the server")
_MOST_LIKELY = 16
_GATHER_SECONDS = 0.5e-3
"""How long an answer may wait for the answers to the requests that came with its own."""
_LATE_SECONDS = 10e-3
"""How long it waits at most, if one of these requests runs longer than that."""


class WorkerLane:
    """Serves one link on its own thread, until the server closes it. A second thread sends the
    answers that wait for a long run.

    Args:
        link: to the server.
        device, segments, cancellations: the worker's, shared by all its lanes.
    """

    def __init__(
        self,
        link: Link,
        device: WorkerDevice,
        segments: SegmentTable,
        cancellations: Cancellations,
    ) -> None:
        self._link = link
        self._device = device
        self._segments = segments
        self._cancellations = cancellations
        self._settled = threading.Lock()  # held until the current job is settled
        self._gathered = threading.Event()  # answers may wait that nobody has sent
        self._late: threading.Thread | None = None
        self._ended = threading.Event()
        self._forms = Forms()
        self._likely: dict[int, ValueWriter] = {}  # wrote the last large answer, by networks

    def serve(self) -> None:
        due = math.inf  # when the answers that have gathered must go
        try:
            while True:
                message = self._link.receive()
                if "forget" in message.header:
                    self._segments.forget(message.header["forget"])
                    continue
                self._answer(message)
                now = time.monotonic()
                due = min(due, now + _GATHER_SECONDS)
                if now >= due or not self._link.has_more():
                    self._link.send()
                    due = math.inf
                else:
                    self._watch()
        except Disconnected:
            pass
        finally:
            self._ended.set()
            self._gathered.set()
            self._link.close()

    def _watch(self) -> None:
        """Has the second thread send what has gathered, if this one does not."""
        if not self._gathered.is_set():
            self._gathered.set()
        if self._late is None:
            self._late = threading.Thread(
                target=self._send_late, name="headrace-late-answers", daemon=True
            )
            self._late.start()

    def _send_late(self) -> None:
        with suppress(Disconnected):  # the first thread hears of it, too
            while self._gathered.wait() and not self._ended.wait(_LATE_SECONDS):
                self._gathered.clear()
                self._link.send()

    def _answer(self, message: Message) -> None:
        header = message.header
        facts, body = RequestFacts.take(message.body)
        if facts.new:
            news = ((GIVEN_IS_NEW, facts.given), (OFFERED_IS_NEW, facts.offered))
            new = [number for flag, number in news if facts.new & flag]
            for number, descriptor in zip(new, message.descriptors, strict=True):
                self._segments.add(Segment.attach(number, descriptor))
        try:
            job = self._run(header, facts, body)
            if job.error is None:
                self._send(job, facts, header["network"])
            else:
                self._link.gather(packed({"error": error_to_json(job.error)}))
        except Disconnected:
            raise
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; tell the server
            self._link.gather(packed({"error": error_to_json(error)}))

    def _run(self, header: dict[str, Any], facts: RequestFacts, body: memoryview) -> Job:
        network = self._device.network(header["network"])
        segment = self._segments.get(facts.given).array if facts.given else None
        inputs = ValueReader.within(header, "inputs").read(body.toreadonly(), segment)
        token = self._cancellations.begin(facts.number)
        job = Job(
            inputs,
            lambda _: self._settled.release(),
            output_names=tuple(header["outputs"]),
            priority=facts.priority,
            token=token,
            ticket=_ADMITTED,
            profile=header["profile"],
            may_run_inline=True,
        )
        likely = self._likely.get(header["network"]) if facts.offered else None
        if likely is not None:
            offered = self._segments.get(facts.offered)
            if likely.segment_bytes <= offered.size:
                job.room = likely.room(offered.array)
        self._settled.acquire()
        try:
            network.submit(job)
        except BaseException:
            self._settled.release()
            self._cancellations.end(facts.number)
            raise
        self._settled.acquire()
        self._settled.release()
        self._cancellations.end(facts.number)
        return job

    def _send(self, job: Job, facts: RequestFacts, network: int) -> None:
        room, outputs = job.room or {}, job.outputs
        key = None if job.layers else key_of(outputs)
        if room and (key is None or self._forms.known.get(key) is not self._likely.get(network)):
            # The outputs may go where the device has computed others of them.
            outputs, room = {name: _apart(output, room) for name, output in outputs.items()}, {}
        writer = self._forms.known.get(key) if key is not None else None
        if writer is None:
            profile = {"layers": [profile_to_json(layer) for layer in job.layers]}
            writer = self._forms.writer(key, outputs, "outputs", profile if job.layers else {})
        size = writer.segment_bytes
        if not size:
            self._link.gather(writer.message(ANSWER.pack(job.execution_seconds, 0, 0), outputs))
            return
        segment = self._segment(facts, size)
        made = () if segment.descriptor is None else (segment.descriptor,)
        told = ANSWER.pack(job.execution_seconds, segment.number, size)
        message = writer.message(told, outputs, segment.array, len(made), room)
        if not made:
            self._link.gather(message)
        else:
            try:
                self._link.send(message, made)
            finally:
                segment.known()
        if writer.plain:
            if len(self._likely) >= _MOST_LIKELY:
                self._likely.clear()
            self._likely[network] = writer

    def _segment(self, facts: RequestFacts, size: int) -> Segment:
        """The shared memory for an answer's large outputs: that which the server offered, or a new
        segment if they do not fit there."""
        if facts.offered:
            offered = self._segments.get(facts.offered)
            if offered.size >= size:
                return offered
        made = Segment.create(facts.number, rounded(size))
        self._segments.add(made)
        return made


def _apart(value: Value, room: Mapping[str, Array]) -> Value:
    """The value, copied if it lies in the room."""
    if any(np.may_share_memory(value, array) for array in room.values()):
        return np.array(value)
    return value
