"""What splits of the zoo's networks take on HETERO:OPENVINO,CPU, and whether layers' times cross.

It takes all networks of `make zoo`, in ``.cache/zoo``, of which both devices run a layer, with the
shapes of the zoo's first request. For each it says how many of the layers that both run are fastest
on which, and what a request takes on HETERO: split by priority, on each device alone, and split
where layers and copies cost least, as the load has measured it. Then the network that was kept runs
in turns beside each device that runs all of it, without HETERO. Each of these devices has loaded it
a second time: what the second load takes beside the first shows the noise.

What was found is kept in a file, and a network that is there is not measured again, unless it
failed. So a run can be ended at any time and goes on later; the small networks come first. A load
takes at most `LOAD_SECONDS`.
All that is in the file is printed as a table in Markdown.

Usage: bench_placement [RESULTS [NETWORK...]]
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.plugin_source import installed_plugins
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.virtual import timing
from tools.benchmark.in_turns import ZOO, Turns, again, inputs_of, load, read, shown, unload
from tools.zoo.collection import networks
from tools.zoo.inputs import Array

RESULTS: Final = Path(".cache/placement.json")
DEVICES: Final = ("OPENVINO", "CPU")
KEPT: Final = f"HETERO:{','.join(DEVICES)}"
TARGET: Final = 1.02
LOAD_SECONDS: Final = 90.0
SPENT_SECONDS: Final = 2.5


def shares(core: Core, name: str, inputs: Mapping[str, Array]) -> dict[str, bool]:
    """The devices that run a layer of the network, and whether each runs all of it."""
    found = {}
    for device in DEVICES:
        answer = core.query_network(
            DeviceName.parse(device), {}, NetworkOptions(), partial(read, name, inputs)
        ).result()
        if answer.supported_layers:
            found[device] = not answer.unsupported
    return found


def measure(core: Core, name: str) -> dict[str, Any]:
    """What is known of one network."""
    inputs = inputs_of(name)
    runs = shares(core, name, inputs)
    if len(runs) < len(DEVICES):
        return {"why": f"only {', '.join(runs)} runs layers of it"}
    loaded: dict[str, ExecutableNetwork] = {}
    try:
        loaded[KEPT] = load(core, KEPT, {"PLACEMENT": "MEASURED"}, partial(read, name, inputs))
        placement: dict[str, Any] = json.loads(str(loaded[KEPT].get_metric("PLACEMENT")))
        notes = [note for note in loaded[KEPT].notes if "were not measured" in note]
        whole = [device for device, runs_all in runs.items() if runs_all]
        for device in whole:
            for name_of in (device, again(device)):
                loaded[name_of] = load(core, device, {}, partial(read, name, inputs), name_of)
        for network in loaded.values():
            timing.settle(network, inputs, CancelToken())
        turns = Turns(
            {device: (network, 1) for device, network in loaded.items()},
            inputs,
            spent_seconds=SPENT_SECONDS,
        )
    finally:
        for device in loaded:
            unload(core, device)
    best = turns.fastest(whole)
    return {
        **placement,
        "why": "; ".join(notes),
        "seconds": {device: turns.seconds(device) for device in loaded},
        "ratio": turns.compare(best, KEPT),
        "noise": turns.compare(best, again(best)),
    }


def line(name: str, found: Mapping[str, Any]) -> str:
    """A row of the table."""
    if "ratio" not in found:
        return _row(name, found["why"], "", "", "", "", "", "")
    seconds, splits = found["seconds"], found["candidates"]
    return _row(
        name,
        ", ".join(str(found["fastest_layers"].get(device, 0)) for device in DEVICES),
        "; ".join(
            f"{split['split']} {_milliseconds(split['latency_seconds'])} in {split['subgraphs']}"
            for split in splits
            if split["latency_seconds"] is not None
        )
        or found["why"],
        next((split["split"] for split in splits if split["chosen"]), ""),
        _milliseconds(seconds[KEPT]),
        ", ".join(_milliseconds(seconds.get(device)) for device in DEVICES),
        shown(timing.SpeedRatio(*found["ratio"])),
        shown(timing.SpeedRatio(*found["noise"])),
    )


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.3g}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    compared = [found for found in results.values() if "ratio" in found]
    crossing = [found for found in compared if len(found["fastest_layers"]) > 1]
    kept = Counter(
        split["split"] for found in compared for split in found["candidates"] if split["chosen"]
    )
    titles = (
        "network",
        f"layers fastest on {', on '.join(DEVICES)}",
        "splits: milliseconds, subgraphs",
        "kept",
        "it alone, ms",
        f"{', '.join(DEVICES)} alone, ms",
        "time to the best device's",
        "its second load's",
    )
    return "\n".join(
        [
            _row(*titles),
            _row(*["---"] * len(titles)),
            *(line(name, found) for name, found in sorted(results.items())),
            "",
            f"Of {len(results)} networks, two devices can split {len(compared)}.",
            f"In {len(crossing)} of these some layers are fastest on one, some on the other.",
            f"Kept: {'; '.join(f'{split} {count}' for split, count in kept.most_common())}.",
            _told("The time to the best device's", [found["ratio"][0] for found in compared]),
            _told("That of its second load", [found["noise"][0] for found in compared]),
        ]
    )


def _told(what: str, ratios: Sequence[float]) -> str:
    reached = sum(ratio <= TARGET for ratio in ratios)
    return (
        f"{what} is {statistics.median(ratios):.3f} in the median, at most {TARGET} in {reached} "
        f"of {len(ratios)}, and at most {max(ratios):.3f}."
    )


def main(path: Path, names: Sequence[str]) -> None:
    results = json.loads(path.read_text()) if path.exists() else {}
    sources = installed_plugins()
    core = Core(
        [sources[name] for name in ("BATCH", "CPU", "HETERO", "OPENVINO")],
        blob_key=b"benchmark",
        max_load_seconds=LOAD_SECONDS,
    )
    try:
        for name in names:
            if "why" in results.get(name, {}) and not results[name].get("failed"):
                continue
            try:
                results[name] = measure(core, name)
            except Exception as error:  # noqa: BLE001 - the others are measured all the same
                results[name] = {"why": str(error)[:200], "failed": True}
            path.write_text(json.dumps(results))
            print(line(name, results[name]), file=sys.stderr, flush=True)
    finally:
        core.stop()
    print(table(results))


if __name__ == "__main__":
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    small_first = sorted(networks(ZOO), key=lambda name: (ZOO / name).stat().st_size)
    main(file, sys.argv[2:] or small_first)
