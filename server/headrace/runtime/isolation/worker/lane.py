"""The worker's end of a lane: takes one request after another, and answers each."""

from __future__ import annotations

import logging
import math
import threading
from typing import Any

from headrace.runtime.execution.job import Job, Ticket
from headrace.runtime.isolation.wire.channel import Channel, Disconnected, Message
from headrace.runtime.isolation.wire.descriptions import profile_to_json
from headrace.runtime.isolation.wire.failures import error_to_json
from headrace.runtime.isolation.wire.shared_memory import Segment, SegmentTable, rounded
from headrace.runtime.isolation.wire.values import Encoded, Numbers, decode, encode
from headrace.runtime.isolation.worker.cancellations import Cancellations
from headrace.runtime.isolation.worker.device import WorkerDevice

_log = logging.getLogger(__name__)

_ADMITTED = Ticket("the server")


class WorkerLane:
    """Serves one connection on its own thread, until the server closes it.

    Args:
        channel: the connection to the server's stream thread, which waits for each answer.
        device, segments, cancellations: the worker's, shared by all its lanes.
    """

    def __init__(
        self,
        channel: Channel,
        device: WorkerDevice,
        segments: SegmentTable,
        cancellations: Cancellations,
    ) -> None:
        self._channel = channel
        self._device = device
        self._segments = segments
        self._cancellations = cancellations
        self._settled = threading.Lock()  # held until the current job is settled

    def serve(self) -> None:
        try:
            while True:
                self._answer(self._channel.receive())
        except Disconnected:
            pass
        finally:
            self._channel.close()

    def _answer(self, message: Message) -> None:
        header = message.header
        self._segments.forget(header["forget"])
        for number, descriptor in zip(header["new"], message.descriptors, strict=True):
            self._segments.add(Segment.attach(number, descriptor))
        try:
            numbers, body = Numbers.take(message.body)
            job = self._run(header, numbers, body)
            if job.error is None:
                outputs = encode(job.outputs)
                self._send(outputs, numbers, [profile_to_json(each) for each in job.layers])
            else:
                self._channel.send({"error": error_to_json(job.error)})
        except Disconnected:
            raise
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; tell the server
            self._channel.send({"error": error_to_json(error)})

    def _run(self, header: dict[str, Any], numbers: Numbers, body: memoryview) -> Job:
        network = self._device.network(header["network"])
        segment = self._segments.get(numbers.given).array if numbers.given else None
        inputs = decode(header["inputs"], body, segment, writable=False)
        token = self._cancellations.begin(numbers.request)
        job = Job(
            inputs,
            lambda _: self._settled.release(),
            output_names=tuple(header["outputs"]),
            deadline=numbers.deadline if numbers.deadline < math.inf else None,
            priority=numbers.priority,
            token=token,
            ticket=_ADMITTED,
            profile=header["profile"],
            trace=header["trace"],
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

    def _send(self, outputs: Encoded, numbers: Numbers, layers: list[Any]) -> None:
        reply: dict[str, Any] = {"outputs": outputs.description}
        if layers:
            reply["layers"] = layers
        if not outputs.segment_bytes:
            self._channel.send(reply, outputs.body)
            return
        reply["taken"] = outputs.segment_bytes
        segment = self._segments.get(numbers.offered) if numbers.offered else None
        if segment is not None and segment.size >= outputs.segment_bytes:
            outputs.place(segment.array)
            self._channel.send({**reply, "segment": segment.number}, outputs.body)
            return
        segment = Segment.create(numbers.spare, rounded(outputs.segment_bytes))
        try:
            outputs.place(segment.array)
            self._segments.add(segment)
            assert segment.descriptor is not None
            reply["segment"] = segment.number
            self._channel.send(reply, outputs.body, (segment.descriptor,))
        finally:
            segment.known()
