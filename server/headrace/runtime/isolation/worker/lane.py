"""The worker's end of a lane: takes one request after another, and answers each."""

from __future__ import annotations

import logging
import math
import threading
import time
from contextlib import suppress
from typing import Any

from headrace.runtime.execution.job import Job, Ticket
from headrace.runtime.isolation.wire.channel import Disconnected, Message, packed
from headrace.runtime.isolation.wire.descriptions import profile_to_json
from headrace.runtime.isolation.wire.failures import error_to_json
from headrace.runtime.isolation.wire.forms import Form, Forms, key_of
from headrace.runtime.isolation.wire.lane import Lane
from headrace.runtime.isolation.wire.shared_memory import Segment, SegmentTable, rounded
from headrace.runtime.isolation.wire.values import Numbers, encode, pack_seconds
from headrace.runtime.isolation.worker.cancellations import Cancellations
from headrace.runtime.isolation.worker.device import WorkerDevice

_log = logging.getLogger(__name__)

_ADMITTED = Ticket("the server")
_GATHER_SECONDS = 0.5e-3
"""How long an answer may wait for the answers to the requests that came with its own."""
_LATE_SECONDS = 10e-3
"""How long it waits at most, if one of these requests runs longer than that."""


class WorkerLane:
    """Serves one connection on its own thread, until the server closes it. A second thread sends
    the answers that wait for a long run. `_sending` guards what the lane has gathered.

    Args:
        lane: the connection to the server.
        device, segments, cancellations: the worker's, shared by all its lanes.
    """

    def __init__(
        self,
        lane: Lane,
        device: WorkerDevice,
        segments: SegmentTable,
        cancellations: Cancellations,
    ) -> None:
        self._lane = lane
        self._device = device
        self._segments = segments
        self._cancellations = cancellations
        self._settled = threading.Lock()  # held until the current job is settled
        self._sending = threading.Lock()
        self._gathered = threading.Event()  # answers may wait that nobody has sent
        self._late: threading.Thread | None = None
        self._ended = threading.Event()
        self._forms = Forms()

    def serve(self) -> None:
        due = math.inf  # when the answers that have gathered must go
        try:
            while True:
                self._answer(self._lane.receive())
                now = time.monotonic()
                due = min(due, now + _GATHER_SECONDS)
                if now >= due or not self._lane.has_more():
                    self._flush()
                    due = math.inf
                else:
                    self._watch()
        except Disconnected:
            pass
        finally:
            self._ended.set()
            self._gathered.set()
            with self._sending:
                self._lane.close()

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
                self._flush()

    def _flush(self) -> None:
        with self._sending:
            self._lane.flush()

    def _gather(self, message: bytes) -> None:
        with self._sending:
            self._lane.gather(message)

    def _answer(self, message: Message) -> None:
        header = message.header
        if header["forget"]:
            self._segments.forget(header["forget"])
        for number, descriptor in zip(header["new"], message.descriptors, strict=True):
            self._segments.add(Segment.attach(number, descriptor))
        try:
            numbers, body = Numbers.take(message.body)
            job = self._run(header, numbers, body)
            if job.error is None:
                self._send(job, numbers)
            else:
                self._gather(packed({"error": error_to_json(job.error)}, (), 0))
        except Disconnected:
            raise
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; tell the server
            self._gather(packed({"error": error_to_json(error)}, (), 0))

    def _run(self, header: dict[str, Any], numbers: Numbers, body: memoryview) -> Job:
        network = self._device.network(header["network"])
        segment = self._segments.get(numbers.given).array if numbers.given else None
        inputs = Form.within(header, "inputs").read(body, segment, writable=False)
        token = self._cancellations.begin(numbers.request)
        job = Job(
            inputs,
            lambda _: self._settled.release(),
            output_names=tuple(header["outputs"]),
            priority=numbers.priority,
            token=token,
            ticket=_ADMITTED,
            profile=header["profile"],
            may_run_inline=True,
        )
        self._settled.acquire()
        try:
            network.submit(job)
        except BaseException:
            self._settled.release()
            self._cancellations.end(numbers.request)
            raise
        self._settled.acquire()
        self._settled.release()
        self._cancellations.end(numbers.request)
        return job

    def _send(self, job: Job, numbers: Numbers) -> None:
        seconds = pack_seconds(job.execution_seconds)
        key = None if job.layers else key_of(job.outputs)
        message = self._forms.message(key, seconds, job.outputs)
        if message is not None:
            self._gather(message)
            return
        outputs = encode(job.outputs)
        reply: dict[str, Any] = {"outputs": outputs.description}
        if job.layers:
            reply["layers"] = [profile_to_json(each) for each in job.layers]
        body = [seconds, *outputs.body]
        if not outputs.segment_bytes:
            message = packed(reply, body, 0)
            self._forms.learn(key, seconds, outputs, message)
            self._gather(message)
            return
        reply["taken"] = outputs.segment_bytes
        segment = self._segments.get(numbers.offered) if numbers.offered else None
        if segment is not None and segment.size >= outputs.segment_bytes:
            outputs.place(segment.array)
            with self._sending:
                self._lane.send({**reply, "segment": segment.number}, body)
            return
        segment = Segment.create(numbers.spare, rounded(outputs.segment_bytes))
        try:
            outputs.place(segment.array)
            self._segments.add(segment)
            assert segment.descriptor is not None
            reply["segment"] = segment.number
            with self._sending:
                self._lane.send(reply, body, (segment.descriptor,))
        finally:
            segment.known()
