"""Server processor time per tiny request with a token or a JWT, beside an open server.

Each round asks all servers in turns. The figures are medians of the rounds.
"""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np

from headrace.server.access.token_file import add_token
from headrace.v1 import inference_engine_pb2 as pb
from headrace.v1 import inference_engine_pb2_grpc as rpc
from tests.support.tokens import AUDIENCE, Signer, key_set
from tools.benchmark.bench_requests import network
from tools.benchmark.servers import INFER, headrace, load, request

ROUNDS = 7
SECONDS = 0.7
CASES = (("unary, 32 callers", INFER, 32), ("1 stream, 32 in flight", "stream:1", 32))


def main() -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, signer = Path(name), Signer()
        tokens, keys, file = folder / "tokens.toml", folder / "keys.json", folder / "request"
        keys.write_text(key_set([signer]))
        controlled = ("--tokens", str(tokens), "--jwt-jwks", str(keys), "--jwt-audience", AUDIENCE)
        token, jwt = add_token(tokens, "bench", ["manage"]), signer.sign(("manage",))
        audited = (*controlled, "--audit-log", str(folder / "audit"))
        servers = {
            "everybody": ("", stack.enter_context(headrace())),
            "token": (token, stack.enter_context(headrace(*controlled))),
            "JWT": (jwt, stack.enter_context(headrace(*controlled))),
            "token, audit log": (token, stack.enter_context(headrace(*audited))),
        }
        model = network("Add", (1, 16)).SerializeToString()
        wanted = pb.LoadNetworkRequest(name="tiny", device="CPU", model=pb.ModelSource(data=model))
        for credential, (address, _) in servers.values():
            with grpc.insecure_channel(address) as channel:
                stub = rpc.InferenceEngineStub(channel)  # type: ignore[no-untyped-call]
                stub.LoadNetwork(wanted, metadata=(("authorization", f"Bearer {credential}"),))
        file.write_bytes(request("tiny", {"x": np.ones((1, 16), np.float32)}))
        print(f"{'case':24} {'who may call':18} {'us':>6} {'ratio':>6}")
        for case, mode, callers in CASES:
            rounds = [
                {
                    who: load(
                        *server, mode, callers, file, SECONDS, {"HEADRACE_TOKEN": credential}
                    ).microseconds
                    for who, (credential, server) in servers.items()
                }
                for _ in range(ROUNDS)
            ]
            for who in servers:
                ratio = statistics.median(each[who] / each["everybody"] for each in rounds)
                spent = statistics.median(each[who] for each in rounds)
                print(f"{case:24} {who:18} {spent:6.0f} {ratio:6.2f}")


if __name__ == "__main__":
    main()
