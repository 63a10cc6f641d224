"""Asks again and again, until its standard input ends; then says what came of it, as JSON.

Usage: victim.py ADDRESS TOKEN
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections import Counter

import grpc

from headrace.testing.networks import add
from tests.integration.harness import infer_request

CALL_SECONDS = 20.0
PAUSE_SECONDS = 0.02


def main() -> None:
    address, token = sys.argv[1:]
    call = grpc.insecure_channel(address).unary_unary("/headrace.v1.InferenceEngine/Infer")
    message = infer_request("add", add().inputs).SerializeToString()
    outcomes: Counter[str] = Counter()
    longest = 0.0
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], PAUSE_SECONDS)[0]:
        began = time.monotonic()
        try:
            call(message, metadata=(("authorization", f"Bearer {token}"),), timeout=CALL_SECONDS)
            outcomes["OK"] += 1
        except grpc.RpcError as error:
            outcomes[f"{error.code().name}: {error.details()}"] += 1
        longest = max(longest, time.monotonic() - began)
    print(json.dumps({"outcomes": outcomes, "longest": longest}))


if __name__ == "__main__":
    main()
