"""Server processor time per tiny request with traces, beside a server without.

Each round asks all servers in turns. The figures are medians of the rounds. Name a folder with
another version of headrace as the argument to compare with it, too.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from tests.support.collector import collector_over_grpc
from tools.benchmark.bench_access import compare
from tools.benchmark.bench_requests import load_tiny
from tools.benchmark.servers import headrace

ROUNDS = 9


@contextmanager
def version_in(folder: str) -> Iterator[None]:
    """Servers that start inside run the headrace of this folder."""
    roots = [str(Path(folder) / root) for root in ("proto", "server", "plugins", "client")]
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(roots)):
        yield


def main() -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        collector = stack.enter_context(collector_over_grpc())
        exporting = ("--otlp-endpoint", collector.url, "--trace-sample-ratio")
        servers = {"not traced": stack.enter_context(headrace())}
        for folder in sys.argv[1:]:
            with version_in(folder):
                servers[f"not traced, in {folder}"] = stack.enter_context(headrace())
        for label, sampled in (("1 % traced", "0.01"), ("100 % traced", "1")):
            servers[label] = stack.enter_context(headrace(*exporting, sampled))
        message = load_tiny(Path(name), *(address for address, _ in servers.values()))
        compare({name: (server, "") for name, server in servers.items()}, message, ROUNDS)


if __name__ == "__main__":
    main()
