"""Programs in C++ that use gRPC's library; Debian's g++ and libgrpc++-dev build them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def compiled(source: Path, folder: Path, *more: str | Path) -> Path:
    """The program of a source, in a folder. Skips the test if it cannot be compiled here.

    Args:
        more: other sources, and options of the compiler.
    """
    if missing := [tool for tool in ("g++", "pkg-config") if shutil.which(tool) is None]:
        pytest.skip(f"{', '.join(missing)} not found: apt-get install g++ pkg-config")
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "grpc++", "protobuf"],
        capture_output=True,
        text=True,
        check=False,
    )
    if flags.returncode:
        pytest.skip("gRPC for C++ not found: apt-get install libgrpc++-dev libprotobuf-dev")
    program = folder / source.stem
    command = ["g++", "-std=c++20", source, *more, "-o", program, *flags.stdout.split()]
    subprocess.run([*command, "-lpthread"], check=True)
    return program
