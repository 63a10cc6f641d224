"""The command line: runs every network on every device, and writes the table."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from tests.zoo.collection import networks
from tests.zoo.hints import hint_for
from tests.zoo.inputs import generate, ports
from tests.zoo.page import Row, Zoo, failure, markdown
from tests.zoo.reference import answers, version
from tests.zoo.results import merged, read, write
from tests.zoo.servers import Servers
from tests.zoo.trial import FATAL, Limits, Result, Trial

DEVICES = (
    "CPU",
    "AUTO",
    "TEMPLATE",
    "OPENVINO",
    "OPENCL",
    "HETERO:OPENVINO,CPU",
    "MULTI:CPU,OPENVINO",
    "BATCH:CPU(4)",
)
# TEMPLATE is a reference that is written to be read, and OPENCL compiles each kernel first.
_SLOW = {"TEMPLATE": Limits(30.0, 20.0, may_be_slow=True)}
_USUAL = Limits(120.0, 60.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0; 1 if there is a failure; 2 for wrong usage."""
    parser = _parser()
    options = parser.parse_args(arguments)
    found = networks(options.folder)
    chosen = {
        name: path
        for name, path in found.items()
        if any(fnmatchcase(name, pattern) for pattern in options.network or ["*"])
    }
    devices = options.device or [*DEVICES]
    if not chosen:
        parser.error(
            f"no network in {options.folder} fits {' '.join(options.network)}: run `make zoo`"
        )
    if options.table and not options.results:
        parser.error("--table needs --results, which it is made from")
    limits = {**_SLOW, "OPENCL": Limits(options.opencl, options.opencl, may_be_slow=True)}
    start = time.monotonic()
    kept = (
        {each: row for each, row in read(options.results).items() if each in found}
        if options.results
        else {}
    )
    rows: list[Row] = []
    with Servers() as servers:
        versions = {
            each.name: each.backend_version
            for each in servers.client().devices(timeout=120.0)
            if each.state == "UP" and each.backend_version
        }
        # The small ones first: most are done early.
        for name, path in sorted(chosen.items(), key=lambda each: each[1].stat().st_size):
            row = _row(name, path, devices, limits, servers, options)
            rows.append(row)
            kept[name] = merged(kept.get(name), row)
            if options.results:
                write(options.results, kept)
            _say(_line(row))
    seconds = time.monotonic() - start
    if options.table:
        everything = [kept[name] for name in sorted(kept)]
        zoo = Zoo(everything, DEVICES, versions | {"the right answers": version()})
        options.table.write_text(markdown(zoo), encoding="utf-8")
    failures = [(row, device) for row in rows for device in devices if failure(row, device)]
    for row, device in failures:
        result = row.results[device]
        _say(f"{row.network} on {device}: {failure(row, device)}")
        _say(f"    {result.detail or result.reason}"[:600])
    counts = Counter(each.outcome.value for row in rows for each in row.results.values())
    _say(", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    _say(f"{len(failures)} failures; {seconds:.0f} s")
    return int(bool(failures))


def _row(
    name: str,
    path: Path,
    devices: Sequence[str],
    limits: dict[str, Limits],
    servers: Servers,
    options: argparse.Namespace,
) -> Row:
    requests = generate(ports(path), hint_for(name), options.seed)
    expected = answers(path, requests)
    results: dict[str, Result] = {}
    for device in devices:
        client = servers.client()
        trial = Trial(client, device, limits.get(device, _USUAL), servers.is_alive)
        results[device] = trial.run(path, requests, expected)
        if results[device].outcome in FATAL:
            servers.discard()  # what is under way there shall not disturb the next device
    return Row(name, [each.failure for each in expected], results)


def _line(row: Row) -> str:
    cells = [
        f"{device.partition(':')[0]} {result.outcome.value}"
        f"{f' {result.error:.1e}' if result.error else ''} {result.seconds:.1f}s"
        for device, result in row.results.items()
    ]
    return f"{row.network}: {'; '.join(cells)}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.zoo", description="Run real networks on every device."
    )
    parser.add_argument("--folder", type=Path, default=Path(".cache/zoo"), help="of the networks")
    parser.add_argument("--device", action="append", help="as a client names it; default: all")
    parser.add_argument("--network", action="append", help="pattern of names; default: all")
    parser.set_defaults(network=[])
    parser.add_argument("--seed", type=int, default=1, help="of the inputs")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="add this run's to those of earlier ones there"
    )
    parser.add_argument("--table", type=Path, metavar="FILE", help="write it, from the results")
    parser.add_argument(
        "--opencl", type=float, default=20.0, help="seconds that a step may take on OPENCL"
    )
    return parser


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.disable()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server is ended, too
    raise SystemExit(main())
