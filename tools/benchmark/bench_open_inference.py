"""Server processor time per request of the Open Inference Protocol, beside our own protocol and
beside a bare echo in the same minute; medians of five. bench_requests.py says why three processes
of each are asked.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

from headrace.client import Client
from tests.support.open_inference import infer_request
from tools.benchmark.bench_requests import PROCESSES, ROUNDS, SECONDS, SHAPES, network
from tools.benchmark.servers import HERE, INFER, headrace, load, request, running

MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
CASES = (
    ("tiny", 1, None),
    ("tiny", 32, 1.35),
    ("large", 8, 1.5),
)
"""Network, callers, and what the new protocol may cost in echoes of the same message."""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        echo_server = str(HERE / "echo_server.py")
        servers = [
            (stack.enter_context(running(echo_server)), stack.enter_context(headrace()))
            for _ in range(PROCESSES)
        ]
        files = {}
        for name, operator in (("tiny", "Add"), ("large", "Identity")):
            inputs = {"x": np.ones(SHAPES[name], np.float32)}
            for path, message in (
                (INFER, request(name, inputs)),
                (MODEL_INFER, infer_request(name, inputs).SerializeToString()),
            ):
                files[name, path] = Path(folder) / f"{name}{path.replace('/', '-')}"
                files[name, path].write_bytes(message)
            for _, (address, _) in servers:
                with Client(address) as client:
                    client.load_network(network(operator, SHAPES[name]), device="CPU", name=name)
        print(f"{'case':24} {'echo us':>8} {'Infer us':>9} {'ModelInfer us':>14} {'ratio':>6}")
        for name, callers, target in CASES:
            rounds = []
            for _ in range(ROUNDS):
                costs = []
                for echo, server in servers:
                    message = files[name, MODEL_INFER]
                    floor = load(*echo, "/Echo/Echo", callers, message, SECONDS)
                    own = load(*server, INFER, callers, files[name, INFER], SECONDS)
                    opened = load(*server, MODEL_INFER, callers, message, SECONDS)
                    costs.append([each.microseconds for each in (floor, own, opened)])
                floor, own, opened = map(statistics.mean, zip(*costs, strict=True))
                rounds.append((opened / floor, floor, own, opened))
            ratio, floor, own, opened = map(statistics.median, zip(*rounds, strict=True))
            bound = "" if target is None else f" <= {target}"
            print(
                f"{f'{name}, {callers} callers':24} {floor:8.0f} {own:9.0f} {opened:14.0f} "
                f"{ratio:6.2f}{bound}"
            )


if __name__ == "__main__":
    main()
