"""Results of InferStream, encoded."""

from __future__ import annotations

from headrace.runtime.execution.job import Job
from headrace.server.services.inference import build_reply, encode_small, finish
from headrace.server.shared_memory.lease import Lease
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.message import Attachments
from headrace.wire.stream import EncodedResult


def result_from(name: str, reply: pb.InferReply, parts: Attachments) -> EncodedResult:
    """The result that a reply is."""
    return EncodedResult(name, reply.SerializeToString(), parts)


def result_of(name: str, job: Job) -> EncodedResult:
    """The result of a completed job."""
    small = encode_small(name, job)
    if small is not None:
        return EncodedResult(name, small)
    return result_from(name, *build_reply(name, job))


async def finished(name: str, lease: Lease, message: pb.InferRequest, job: Job) -> EncodedResult:
    """The result of a completed job with tensors in shared memory. Ends the lease."""
    with lease:
        return result_from(name, *await finish(name, lease, message, job))


def size_of(result: EncodedResult) -> int:
    """The bytes of a result."""
    size = len(result.reply or b"")
    for part in result.attachments:
        size += memoryview(part).nbytes
    return size
