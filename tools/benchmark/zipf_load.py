"""Triton's client, which knows nothing of headrace: callers in closed loops, each of which asks for
one network of many at random, by Zipf's law.

Usage: zipf_load.py ADDRESS NETWORKS FEATURES CALLERS SECONDS. The networks are ``net0`` and so on,
and the first is asked for most. Prints JSON: the errors, and the seconds of each network's
requests.
"""

from __future__ import annotations

import json
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

EXPONENT = 1.1


def ask(
    address: str, networks: int, features: int, seed: int, until: float
) -> tuple[list[tuple[int, float]], list[str]]:
    """What one caller has seen: network and seconds of each request, and the errors."""
    choose, weights = random.Random(seed), [(1 + each) ** -EXPONENT for each in range(networks)]
    taken: list[tuple[int, float]] = []
    errors: list[str] = []
    value = triton.InferInput("x", [1, features], "FP32")
    value.set_data_from_numpy(np.ones((1, features), np.float32))
    with triton.InferenceServerClient(address) as client:
        while time.monotonic() < until:
            (network,) = choose.choices(range(networks), weights)
            start = time.monotonic()
            try:
                client.infer(f"net{network}", [value])
            except InferenceServerException as error:
                errors.append(f"net{network}: {error}")
            else:
                taken.append((network, time.monotonic() - start))
    return taken, errors


def main() -> None:
    address = sys.argv[1]
    networks, features, callers = map(int, sys.argv[2:5])
    until = time.monotonic() + float(sys.argv[5])
    seconds: list[list[float]] = [[] for _ in range(networks)]
    errors: list[str] = []
    with ThreadPoolExecutor(callers) as pool:
        calls = [pool.submit(ask, address, networks, features, n, until) for n in range(callers)]
        for call in calls:
            taken, wrong = call.result()
            errors += wrong
            for network, took in taken:
                seconds[network].append(took)
    print(json.dumps({"errors": errors, "seconds": seconds}))


if __name__ == "__main__":
    main()
