"""Classifies real files by a real network over gRPC: ``make demo``.

Starts a server of its own on free ports, loads magika's network, which tells a file's type from its
bytes, sends it files of many kinds, asks what runs where, and stops the server.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from headrace.client import Client, Error, Network, Outputs

REPOSITORY = Path(__file__).resolve().parent.parent
MAGIKA = REPOSITORY / ".cache" / "magika"
START_SECONDS = STOP_SECONDS = 60.0
METRICS = (
    "headrace_device_streams{",
    "headrace_device_queue_depth{",
    "headrace_device_execution_seconds_sum{",
    "headrace_network_load_seconds_sum{",
    'outcome="completed"',
)


class DemoError(Exception):
    """The demo cannot go on; the message says why, in words for its user."""


@dataclass(frozen=True, slots=True)
class Server:
    """The addresses of a running server."""

    grpc: str
    http: str


@contextlib.contextmanager
def server(log: IO[bytes]) -> Iterator[Server]:
    """A server as a process of its own, which writes its log to `log`; stopped by SIGTERM."""
    command = [sys.executable, "-m", "headrace.server", "--port", "0", "--http-port", "0"]
    process = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=log)
    try:
        yield _addresses(process)
        process.send_signal(signal.SIGTERM)
        code = process.wait(STOP_SECONDS)
        if code:
            raise DemoError(f"the server ended with exit status {code} instead of 0")
    except subprocess.TimeoutExpired:
        raise DemoError(f"the server did not stop within {STOP_SECONDS:g} seconds") from None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _addresses(process: subprocess.Popen[bytes]) -> Server:
    stdout = process.stdout
    assert stdout is not None
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
    try:
        line = lines.get(timeout=START_SECONDS)
    except queue.Empty:
        raise DemoError(f"the server was not ready after {START_SECONDS:g} seconds") from None
    if not line:
        raise DemoError(f"the server did not start: exit status {process.wait(STOP_SECONDS)}")
    return Server(**json.loads(line))


def find_files(folder: Path) -> list[Path]:
    """Files of many kinds that any machine with this repository has; two are made in `folder`."""
    return [
        REPOSITORY / "LICENSE",
        REPOSITORY / "README.md",
        REPOSITORY / "Makefile",
        REPOSITORY / "pyproject.toml",
        Path(__file__),
        Path(sys.executable).resolve(),
        MAGIKA / "config.json",
        MAGIKA / "model.onnx",
        _write_zip(folder / "sources.zip"),
        _write_png(folder / "gradient.png"),
    ]


def _write_zip(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("README.md", "LICENSE", "Makefile"):
            archive.write(REPOSITORY / name, name)
    return path


def _write_png(path: Path, size: int = 64) -> Path:
    """A colour gradient, by the PNG specification (ISO/IEC 15948)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    rows = (b"\0" + bytes(c for x in range(size) for c in (4 * x, 4 * y, 128)) for y in range(size))
    pixels = zlib.compress(b"".join(rows))
    signature = b"\x89PNG\r\n\x1a\n"
    path.write_bytes(
        signature + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )
    return path


def features(path: Path, config: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.int32]]:
    """What magika's network sees of a file: the bytes at its two ends, white space stripped.

    Returns:
        int32[1, beg_size + end_size]; places without a byte hold the padding token.
    """
    begin, end, block = config["beg_size"], config["end_size"], config["block_size"]
    with path.open("rb") as file:
        first = file.read(block).lstrip()[:begin]
        file.seek(max(0, path.stat().st_size - block))
        last = file.read(block).rstrip()[-end:]
    row = np.full((1, begin + end), config["padding_token"], np.int32)
    row[0, : len(first)] = list(first)
    row[0, begin + end - len(last) :] = list(last)
    return row


def table(rows: Sequence[Sequence[str]], right: int) -> str:
    """Rows as aligned columns; from column `right` on, to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.rjust(width) if k >= right else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def classify(network: Network, config: Mapping[str, Any], files: Sequence[Path]) -> str:
    """A table of what the network takes each file for."""
    labels = config["target_labels_space"]
    (input_name,), (output_name,) = network.inputs.names, network.outputs.names
    rows = [("file", "label", "score", "queue ms", "execution ms")]
    for path in files:
        outputs: Outputs = network.infer({input_name: features(path, config)})
        scores = outputs[output_name][0]
        best = int(scores.argmax())
        spent = outputs.timings
        times = (f"{1e3 * spent.queue_seconds:.2f}", f"{1e3 * spent.execution_seconds:.2f}")
        rows.append((path.name, labels[best], f"{scores[best]:.3f}", *times))
    return table(rows, right=2)


def describe(client: Client, network: Network, model: Path, device: str) -> str:
    """What the device says of the network and of itself."""
    answer = client.query_network(model, device=device)
    metrics = {
        name: client.get_metric(device, name)
        for name in ("FULL_DEVICE_NAME", "OPTIMIZATION_CAPABILITIES", "RANGE_FOR_STREAMS")
    }
    metrics["OPTIMAL_NUMBER_OF_INFER_REQUESTS"] = network.get_metric(
        "OPTIMAL_NUMBER_OF_INFER_REQUESTS"
    )
    supported, unsupported = len(answer.supported_layers), len(answer.unsupported)
    lines = [f"QueryNetwork: {device} supports {supported} of {supported + unsupported} layers"]
    return "\n".join(lines + [f"GetMetric {name}: {value}" for name, value in metrics.items()])


def metrics_excerpt(address: str, device: str) -> str:
    """A few lines of what Prometheus would read, of one device."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    return "\n".join(
        line
        for line in lines
        if line.startswith("headrace_")
        and (f'device="{device}"' in line or f'device="{device}.' in line)
        and any(wanted in line for wanted in METRICS)
        and 'kind="part"' not in line  # only a device that splits requests has any
    )


def run(device: str, folder: Path, log: IO[bytes]) -> None:
    model, config_file = MAGIKA / "model.onnx", MAGIKA / "config.json"
    if not (model.is_file() and config_file.is_file()):
        raise DemoError(f"{MAGIKA} does not hold magika's network; run 'make demo', which gets it")
    config = json.loads(config_file.read_text("utf-8"))
    files = find_files(folder)
    with server(log) as addresses, Client(addresses.grpc) as client:
        print(f"A server runs: gRPC on {addresses.grpc}, metrics on {addresses.http}.")
        network = client.load_network(model, device=device, name="magika")
        print(f"It loaded magika's network onto {network.device}.\n")
        print(classify(network, config, files))
        print(f"\n{describe(client, network, model, device)}")
        print(f"\n{metrics_excerpt(addresses.http, device)}")
        network.unload()
    print("\nThe server has stopped cleanly.")


def main() -> int:
    parser = argparse.ArgumentParser(description="Classify real files over gRPC.")
    parser.add_argument("--device", default="CPU", help="where the network runs; default: CPU")
    device = parser.parse_args().device
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as name:
        folder = Path(name)
        log_file = folder / "server.log"
        try:
            with log_file.open("wb") as log:
                run(device, folder, log)
        except (DemoError, Error, OSError) as error:
            print(f"The demo failed: {error}", file=sys.stderr)
            said = log_file.read_text("utf-8", "replace").splitlines()[-20:]
            if said:
                print("The last that the server said:", *said, sep="\n  ", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
