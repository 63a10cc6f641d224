"""Server processor time per tiny request with traces, beside a server without.

Each round asks all servers in turns. The figures are medians of the rounds. Name a folder with
another version of headrace as the argument to compare with it, too.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import grpc
import numpy as np

from headrace.v1 import inference_engine_pb2 as pb
from headrace.v1 import inference_engine_pb2_grpc as rpc
from tests.support.collector import collector_over_grpc
from tools.benchmark.bench_requests import network
from tools.benchmark.servers import INFER, headrace, load, request

ROUNDS = 9
SECONDS = 0.7
CASES = (("unary, 32 callers", INFER, 32), ("1 stream, 32 in flight", "stream:1", 32))
OFF = "off"


@contextmanager
def version_in(folder: str) -> Iterator[None]:
    """Servers that start inside run the headrace of this folder."""
    roots = [str(Path(folder) / root) for root in ("proto", "server", "plugins", "client")]
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(roots)):
        yield


def main() -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        file = Path(name) / "request"
        collector = stack.enter_context(collector_over_grpc())
        exporting = ("--otlp-endpoint", collector.url, "--trace-sample-ratio")
        servers = {OFF: stack.enter_context(headrace())}
        for folder in sys.argv[1:]:
            with version_in(folder):
                servers[f"off, in {folder}"] = stack.enter_context(headrace())
        for label, sampled in (("1 %", "0.01"), ("100 %", "1")):
            servers[label] = stack.enter_context(headrace(*exporting, sampled))
        model = network("Add", (1, 16)).SerializeToString()
        wanted = pb.LoadNetworkRequest(name="tiny", device="CPU", model=pb.ModelSource(data=model))
        for address, _ in servers.values():
            with grpc.insecure_channel(address) as channel:
                rpc.InferenceEngineStub(channel).LoadNetwork(wanted)  # type: ignore[no-untyped-call]
        file.write_bytes(request("tiny", {"x": np.ones((1, 16), np.float32)}))
        print(f"{'case':24} {'traced':26} {'us':>6} {'ratio':>6}")
        for case, mode, callers in CASES:
            rounds = [
                {
                    what: load(*server, mode, callers, file, SECONDS).microseconds
                    for what, server in servers.items()
                }
                for _ in range(ROUNDS)
            ]
            for what in servers:
                ratio = statistics.median(each[what] / each[OFF] for each in rounds)
                spent = statistics.median(each[what] for each in rounds)
                print(f"{case:24} {what:26} {spent:6.0f} {ratio:6.2f}", flush=True)


if __name__ == "__main__":
    main()
