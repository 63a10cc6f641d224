"""`headrace tune` beside the default and beside a full sweep, on networks of the zoo.

Usage: bench_tune [--seconds N] [--devices CPU,OPENVINO] [--no-sweep] [NETWORK ...]. The
networks are those of `make zoo`, in ``.cache/zoo``: those of bench_auto.py by default, which take
forty minutes. Each is loaded on the first device, and may go to the others. The same ways to load
it are tried in the same server by

- tune, with N seconds (15) of measurements at most;
- a full sweep: each way is asked by 1, 2, 4 and up to 64 callers, by each as long as tune measures
  its last two ways at one number of callers.

The target of the 99th percentile is twice what the default has with as many callers as suit it.
Afterwards the default, what tune chose and the sweep's best run in turns. The figures are the
medians of all turns of what they answer a second within the target: what is late in a turn counts
nothing there. If it is the default that is late, the machine was busy, and the network does not
count. ``gain`` is tune's over the default's, ``to best`` tune's over the greatest of the three, and
``time`` what tune took of the sweep's time, loads included.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from headrace.client import aio
from headrace.client.cli.tune.candidates import Variant, candidates
from headrace.client.cli.tune.figures import CallersFigures
from headrace.client.cli.tune.halving import Trial, chosen, rounds
from headrace.client.cli.tune.measurement import Measurement
from tools.benchmark.bench_auto import DEVICES, NETWORKS
from tools.benchmark.in_turns import ZOO, inputs_of
from tools.benchmark.servers import headrace

CALLERS: Final = (1, 2, 4, 8, 16, 32, 64)
TURNS: Final = 3
TURN_SECONDS: Final = 2.0
ALLOWANCE: Final = 2.0


class Sweep(Measurement):
    """Measures with all numbers of callers."""

    def _callers(
        self, trial: Trial, found: Sequence[CallersFigures], start: int, most: int
    ) -> int | None:
        return CALLERS[len(found)] if len(found) < len(CALLERS) else None


class Row(NamedTuple):
    gain: float
    to_best: float
    time: float


async def default_p99(measurement: Measurement, device: str, seconds: float) -> float:
    """The 99th percentile of the default with as many callers as suit it."""
    trial = Trial(Variant(device, {}))
    await measurement.measure(trial, seconds)
    if trial.reason:
        raise RuntimeError(trial.reason)
    return trial.turns[0][0].p99


async def in_turns(
    measurement: Measurement, variants: Mapping[str, Variant], target: float
) -> dict[str, float]:
    """What each answers a second within the target: the median of all turns."""
    trials = {name: Trial(variant) for name, variant in variants.items()}
    for _ in range(TURNS):
        for trial in trials.values():
            await measurement.measure(trial, TURN_SECONDS)

    def within(trial: Trial, turn: int) -> float:
        best = trial.best(target, turn)
        return best.throughput if best.p99 <= target else 0.0

    return {
        name: statistics.median(within(trial, turn) for turn in range(len(trial.turns)))
        for name, trial in trials.items()
    }


async def row(
    client: aio.Client, devices: Sequence[str], name: str, seconds: float, *, with_sweep: bool
) -> Row:
    inputs: Any = inputs_of(name)
    network = await client.load_network(ZOO / name, device=devices[0], name="m")
    try:
        blob = await network.export()
        feeds = [inputs]
        alone = Measurement(client, blob, feeds, math.inf, 0.0)
        p99 = await default_p99(alone, devices[0], seconds / 3)
        target = ALLOWANCE * p99
        measurement = Measurement(client, blob, feeds, target, 0.0)
        ranges = {
            device: await client.get_metric(device, "RANGE_FOR_STREAMS") for device in devices
        }
        streams = {device: int(getattr(most, "maximum", 1)) for device, most in ranges.items()}
        all_ways = candidates(devices[0], streams)

        begin, longest = time.monotonic(), 0.0
        trials = [Trial(each) for each in all_ways]
        for trial, share in rounds(trials, seconds, target):
            await measurement.measure(trial, share)
            longest = max(longest, share)
        tuned = chosen(trials, target).candidate
        tune_seconds = time.monotonic() - begin

        begin = time.monotonic()
        swept = [Trial(each) for each in (all_ways if with_sweep else [])]
        sweep = Sweep(client, blob, feeds, target, 0.0)
        for trial in swept:
            await sweep.measure(trial, longest)
        usable = [each for each in swept if not each.reason]
        best = max(
            usable, key=lambda each: each.best(target).score(target), default=trials[0]
        ).candidate
        sweep_seconds = time.monotonic() - begin if with_sweep else math.nan

        variants = {"default": all_ways[0], "tune": tuned, "sweep": best}
        distinct = {str(each): each for each in variants.values()}
        found = await in_turns(measurement, distinct, target)
    finally:
        await network.unload()
    figures = {name: found[str(each)] for name, each in variants.items()}
    greatest = max(figures.values())
    answer = Row(
        figures["tune"] / figures["default"] if figures["default"] else math.nan,
        figures["tune"] / greatest if greatest else math.nan,
        tune_seconds / sweep_seconds,
    )
    told = " ".join(f"{figures[each]:8.4g}" for each in variants)
    print(
        f"{name[-40:]:40} {1e3 * target:8.2f} {told} {answer.gain:6.2f} {answer.to_best:8.2f} "
        f"{answer.time:6.2f}  {tuned}; sweep: {best}",
        flush=True,
    )
    return answer


async def measured(
    address: str, devices: Sequence[str], names: Sequence[str], seconds: float, *, with_sweep: bool
) -> list[Row]:
    async with aio.Client(address) as client:
        return [await row(client, devices, name, seconds, with_sweep=with_sweep) for name in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--devices", default=",".join(DEVICES))
    parser.add_argument("--no-sweep", dest="sweep", action="store_false")
    wanted = parser.parse_args()
    print(
        f"{'answers a second':40} {'p99 ms':>8} {'default':>8} {'tune':>8} {'sweep':>8} "
        f"{'gain':>6} {'to best':>8} {'time':>6}  chosen"
    )
    with tempfile.TemporaryDirectory() as folder:
        options = ("--devices", f"{wanted.devices},BATCH", "--cache-dir", folder)
        devices = wanted.devices.split(",")
        with headrace(*options) as (address, _):
            rows = asyncio.run(
                measured(address, devices, wanted.networks, wanted.seconds, with_sweep=wanted.sweep)
            )
    kept = [each for each in rows if not math.isnan(each.gain)]
    if len(kept) < len(rows):
        print(f"of {len(rows) - len(kept)} networks the default missed the target: not counted")
    if not kept:
        return
    gains, to_best, times = ([getattr(each, name) for each in kept] for name in Row._fields)
    print(
        f"gain: median {statistics.median(gains):.2f}, least {min(gains):.2f}; to the best: median "
        f"{statistics.median(to_best):.2f}, least {min(to_best):.2f}; of the sweep's time: "
        f"median {statistics.median(times):.2f}, most {max(times):.2f}"
    )


if __name__ == "__main__":
    main()
