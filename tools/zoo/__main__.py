"""The command line: runs every network on every device, and writes the table."""

from __future__ import annotations

import argparse
import logging
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from queue import SimpleQueue

import onnx

from headrace.testing.command_line import pair, say
from tools.zoo.collection import networks
from tools.zoo.hints import hint_for
from tools.zoo.inputs import generate, ports
from tools.zoo.page import Row, Zoo, failure, markdown
from tools.zoo.reference import Answer, answers, own_error, version
from tools.zoo.results import add, read
from tools.zoo.servers import Servers
from tools.zoo.trial import FATAL, Limits, Outcome, Result, Trial

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
_SLOW = ("TEMPLATE", "OPENCL")
_LOAD_SECONDS, _INFER_SECONDS = 120.0, 60.0


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
    if options.config and options.results:
        parser.error("--config is for a look; --results keeps what devices do without one")
    if options.table and not options.results:
        parser.error("--table needs --results, which it is made from")
    usual = Limits(options.patience * _LOAD_SECONDS, options.patience * _INFER_SECONDS)
    limits = dict.fromkeys(devices, usual)
    limits |= dict.fromkeys(_SLOW, Limits(options.slow, options.slow, options.slow))
    start = time.monotonic()
    with Servers() as servers:
        versions = {
            each.name: each.backend_version
            for each in servers.client().devices(timeout=120.0)
            if each.state == "UP" and each.backend_version
        }
    rows: list[Row] = []
    # The small ones first: most are done early.
    for row in _rows(sorted(chosen.items(), key=_size), devices, limits, options):
        rows.append(row)
        if options.results:
            add(options.results, row)
        say(_line(row))
    seconds = time.monotonic() - start
    if options.table:
        kept = read(options.results)
        zoo = Zoo(
            [kept[name] for name in sorted(kept) if name in found],
            DEVICES,
            versions | {"the right answers": version()},
        )
        options.table.write_text(markdown(zoo), encoding="utf-8")
    failures = [(row, device) for row in rows for device in devices if failure(row, device)]
    for row, device in failures:
        result = row.results[device]
        say(f"{row.network} on {device}: {failure(row, device)}")
        say(f"    {result.detail or result.reason}"[:600])
    counts = Counter(each.outcome.value for row in rows for each in row.results.values())
    say(", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    say(f"{len(failures)} failures; {seconds:.0f} s")
    return int(bool(failures))


def _rows(
    chosen: Iterable[tuple[str, Path]],
    devices: Sequence[str],
    limits: Mapping[str, Limits],
    options: argparse.Namespace,
) -> Iterator[Row]:
    """Every network's row as it is done. So many at a time run on a server of their own each."""
    with ExitStack() as stack:
        free: SimpleQueue[Servers] = SimpleQueue()
        for _ in range(options.jobs):
            free.put(stack.enter_context(Servers(*_only(devices))))

        def row(chosen: tuple[str, Path]) -> Row:
            servers = free.get()
            try:
                return _row(*chosen, devices, limits, servers, options)
            finally:
                free.put(servers)

        pool = stack.enter_context(ThreadPoolExecutor(options.jobs))
        stack.callback(pool.shutdown, cancel_futures=True)
        yield from map(Future.result, as_completed([pool.submit(row, each) for each in chosen]))


def _only(devices: Sequence[str]) -> list[str]:
    """The server's option for the devices that are asked, which starts sooner than all do."""
    names = {name for device in devices for name in re.findall(r"[A-Z]+", device)}
    return [] if "AUTO" in names else ["--devices", ",".join(sorted(names))]


def _size(network: tuple[str, Path]) -> int:
    return network[1].stat().st_size


def _row(
    name: str,
    path: Path,
    devices: Sequence[str],
    limits: Mapping[str, Limits],
    servers: Servers,
    options: argparse.Namespace,
) -> Row:
    requests = generate(ports(path), hint_for(name), options.seed)
    expected = answers(path, requests)
    own = cache(lambda: own_error(path, requests, expected))
    results: dict[str, Result] = {}

    def result(
        device: str, right: Sequence[Answer], config: Mapping[str, str] | None = None
    ) -> Result:
        given = {**dict(options.config), **(config or {})}
        trial = Trial(servers.client(), device, limits[device], servers.is_alive, own, given)
        found = trial.run(path, requests, right)
        # A run that was given up may go on, and its device is then started again.
        if found.outcome in FATAL or found.outcome is Outcome.SLOW:
            servers.discard()
        return found

    for device in devices:
        if device == "OPENCL" and (reason := _too_long(path, options.opencl_layers)):
            results[device] = Result(Outcome.SLOW, reason=reason)
            continue
        results[device] = result(device, expected)
        if device == "CPU" and results[device].outcome is Outcome.AS_ITSELF:
            # CPU is ONNX Runtime: what it changes in the network must be all that differs.
            by_itself = answers(path, requests, exact=False)
            plain = result(device, by_itself, {"DISABLE_TRANSFORMATIONS": "YES"})
            if plain.outcome is not Outcome.RIGHT:
                results[device] = plain
    return Row(name, [each.failure for each in expected], results)


def _too_long(path: Path, most: int) -> str:
    """Why the network is slow on OPENCL without a trial; "" if it is to be tried."""
    layers = len(onnx.load(path, load_external_data=False).graph.node)
    return f"not tried: it has more than {most} layers, and each is compiled" * (layers > most)


def _line(row: Row) -> str:
    cells = [
        f"{device.partition(':')[0]} {result.outcome.value}"
        f"{f' {result.error:.1e}' if result.error else ''} {result.seconds:.1f}s"
        for device, result in row.results.items()
    ]
    return f"{row.network}: {'; '.join(cells)}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.zoo", description="Run real networks on every device."
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(".cache/zoo"), help="folder of the networks"
    )
    parser.add_argument("--device", action="append", help="device to try; repeatable; default: all")
    parser.add_argument(
        "--network", action="append", help="try only networks with names of this pattern"
    )
    parser.set_defaults(network=[])
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        type=pair,
        metavar="KEY=VALUE",
        help="configuration of each load; such results are not added to a table",
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the inputs")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="add the results of this run to FILE"
    )
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="write the page from the results"
    )
    parser.add_argument(
        "--slow",
        type=float,
        default=20.0,
        help="seconds that OPENCL and TEMPLATE have for a network",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=1.0,
        metavar="TIMES",
        help="on a machine with other work: wait so many times as long before a call hangs",
    )
    parser.add_argument(
        "--opencl-layers",
        type=int,
        default=1000,
        metavar="N",
        help="most layers of a network that is tried on OPENCL; larger ones count as slow",
    )
    parser.add_argument("--jobs", type=int, default=1, help="networks to try at a time")
    return parser


if __name__ == "__main__":
    logging.disable()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server is ended, too
    raise SystemExit(main())
