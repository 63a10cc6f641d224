"""perf_analyzer, the binary in tritonclient's wheel: its requests succeed, and the server's
statistics agree with what it counts itself.

perf_analyzer counts the responses between the ends of its windows. After each end it asks for the
server's statistics, and the answer comes when some more requests have run. So the two counts differ
by what runs in the time of two such calls, however long the windows are. If they differ by more
than they may, the test makes the windows longer: a wrong count stays as wrong as it was, but the
ends weigh less.
"""

from __future__ import annotations

import ctypes.util
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton

from tests.clients.conftest import Serving

AGREEMENT = 0.02
WINDOW_SECONDS = (3, 12)
SECONDS = 200

needs_perf_analyzer = pytest.mark.skipif(
    ctypes.util.find_library("b64") is None and not list(Path("/usr/lib").rglob("libb64.so.0d")),
    reason="perf_analyzer needs Debian's package libb64-0d",
)
pytestmark = [pytest.mark.timeout(2 * SECONDS), needs_perf_analyzer]


@pytest.fixture(scope="module")
def models(serving: Serving) -> Iterator[Any]:
    with triton.InferenceServerClient(serving.grpc) as client:
        for name in ("add", "double"):
            config = {"max_batch_size": 8} if name == "double" else {}
            files = {"file:1/model.onnx": serving.models[name]}
            client.load_model(name, config=json.dumps(config), files=files)
        yield client


def library_path(binaries: Path) -> str:
    """Where CUDA's runtime is, which the binary is linked to though no GPU is needed."""
    found = list(binaries.parent.rglob("libcudart.so*"))
    assert found, "install nvidia-cuda-runtime-cu12"
    return str(found[0].parent)


def analyze(
    serving: Serving, binaries: Path, protocol: str, *options: str, seconds: int = 1
) -> str:
    """What perf_analyzer prints after windows of so many seconds."""
    address = serving.grpc if protocol == "grpc" else serving.http
    command = [str(binaries / "perf_analyzer"), "-i", protocol, "-u", address, "-v"]
    # Any variation is stable enough: it is not the speed that is tested.
    command += ["--measurement-interval", str(1000 * seconds), "--stability-percentage", "999"]
    command += options
    ran = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "LD_LIBRARY_PATH": library_path(binaries)},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "rror" not in ran.stdout + ran.stderr, ran.stdout + ran.stderr
    return ran.stdout


def counts(printed: str, what: str) -> list[int]:
    return [int(number) for number in re.findall(rf"{what}: (\d+)", printed)]


def check(serving: Serving, binaries: Path, protocol: str, *options: str) -> None:
    """The client's and the server's counts agree at each level of load."""
    for seconds in WINDOW_SECONDS:
        printed = analyze(serving, binaries, protocol, "-m", "add", *options, seconds=seconds)
        asked, served = (
            counts(printed, "Request count"),
            counts(printed, "Successful request count"),
        )
        assert len(asked) == len(served) == (2 if "1:32:31" in options else 1), printed
        assert min(asked) > 0
        assert counts(printed, "Inference count") == served
        assert counts(printed, "Execution count") == served
        apart = [abs(1 - ours / theirs) for ours, theirs in zip(served, asked, strict=True)]
        print(f"{seconds} s: the client counts {asked}, the server {served}")
        if max(apart) <= AGREEMENT:
            return
    pytest.fail(f"the counts differ by {max(apart):.1%}: {printed}")


@pytest.mark.parametrize(
    "options",
    [
        ("--concurrency-range", "1:32:31"),
        ("--concurrency-range", "4", "--async"),
        ("--concurrency-range", "8", "--streaming"),
        ("--request-rate-range", "100"),
        (
            "--concurrency-range",
            "4",
            "--shared-memory",
            "system",
            "--output-shared-memory-size",
            "24",
        ),
        (
            "--concurrency-range",
            "4",
            "--streaming",
            "--shared-memory",
            "system",
            "--output-shared-memory-size",
            "24",
        ),
    ],
    ids=" ".join,
)
def test_over_grpc(models: Any, serving: Serving, binaries: Path, options: tuple[str, ...]) -> None:
    check(serving, binaries, "grpc", *options)


@pytest.mark.parametrize(
    "options",
    [
        ("--concurrency-range", "1:32:31"),
        ("--request-rate-range", "100"),
        (
            "--concurrency-range",
            "4",
            "--shared-memory",
            "system",
            "--output-shared-memory-size",
            "24",
        ),
    ],
    ids=" ".join,
)
def test_over_http(models: Any, serving: Serving, binaries: Path, options: tuple[str, ...]) -> None:
    check(serving, binaries, "http", *options)


def test_kept_replies_are_told_apart_from_those_that_ran(
    models: Any, serving: Serving, binaries: Path
) -> None:
    config = json.dumps({"response_cache": {"enable": True}})
    models.load_model("kept", config=config, files={"file:1/model.onnx": serving.models["add"]})
    printed = analyze(serving, binaries, "grpc", "-m", "kept")
    (hits,) = counts(printed, "Cache hit count")
    (stats,) = models.get_inference_statistics("kept").model_stats
    told = stats.inference_stats
    assert told.cache_miss.count == stats.execution_count == 1  # all requests are the same
    assert told.cache_hit.count >= hits > 0
    models.unload_model("kept")


def test_a_batch_has_as_many_inferences_as_rows(
    models: Any, serving: Serving, binaries: Path
) -> None:
    printed = analyze(serving, binaries, "grpc", "-m", "double", "-b", "4", "--shape", "x:16")
    (requests,), (rows,) = (
        counts(printed, "Successful request count"),
        counts(printed, "Inference count"),
    )
    assert rows == 4 * requests
