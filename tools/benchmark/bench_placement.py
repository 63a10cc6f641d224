"""What splits of networks of the zoo take on HETERO:OPENVINO,CPU, and whether layers' times cross.

For each network: how many layers are fastest on which device, of those that both run, and what a
request takes split by priority, on each device alone, and split where layers and copies cost least.
The last column is the split that was kept, beside the best single device that runs the network.

The networks are those of `make zoo`, in ``.cache/zoo``. Names after the command choose others.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[2]))

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.plugin_source import installed_plugins
from headrace.runtime.errors import HeadraceError
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import LoadRequest
from tools.benchmark.bench_auto import NETWORKS, ZOO

DEVICE: Final = "HETERO:OPENVINO,CPU"
TARGET: Final = 1.02


def measured(core: Core, path: Path) -> dict[str, Any]:
    """The metric PLACEMENT of a network."""
    request = LoadRequest("m", DeviceName.parse(DEVICE), {"PLACEMENT": "MEASURED"})
    entry = core.load_network(request, partial(Network.from_file, path, path.parent)).result()
    assert entry.executable is not None
    found: dict[str, Any] = json.loads(str(entry.executable.get_metric("PLACEMENT")))
    core.unload_network("m").result()
    return found


def row(core: Core, name: str) -> float:
    try:
        found = measured(core, ZOO / name)
    except HeadraceError as error:
        print(f"{name[-44:]:44} {error}"[:100], flush=True)
        return 1.0
    splits = [each for each in found["candidates"] if each["latency_seconds"] is not None]
    kept = next((each["latency_seconds"] for each in splits if each["chosen"]), math.nan)
    single = [each["latency_seconds"] for each in splits if len(each["layers"]) == 1]
    ratio = kept / min(single, default=kept)
    figures = "; ".join(
        f"{each['split']} {each['latency_seconds'] * 1e3:.3f} ms in {each['subgraphs']}"
        for each in splits
    )
    fastest = ", ".join(f"{device} {count}" for device, count in found["fastest_layers"].items())
    print(f"{name[-44:]:44} fastest: {fastest or '-'}; {figures}; kept {ratio:.3f}", flush=True)
    return ratio


def main(names: Sequence[str]) -> None:
    sources = installed_plugins()
    core = Core(
        [sources[name] for name in ("BATCH", "CPU", "HETERO", "OPENVINO")], blob_key=b"benchmark"
    )
    try:
        worst = max(row(core, name) for name in names)
        print(f"the most of what is kept to the best single device: {worst:.3f}, target {TARGET}")
    finally:
        core.stop()


if __name__ == "__main__":
    main(sys.argv[1:] or NETWORKS)
