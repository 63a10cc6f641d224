"""What the stages of a request cost, each alone in a loop."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tools.benchmark.report.section import Effort, Goal, Pictures, micros, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "Stages of a request"
NAMES = {"tiny": "tiny network", "large": "600 KB, identity"}


def measure(effort: Effort) -> Any:
    command = [sys.executable, "-m", "tools.benchmark.stages"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(out)


def text(found: Any, pictures: Pictures) -> str:
    def paint(axes: Axes) -> None:
        left = dict.fromkeys(NAMES, 0.0)
        for stage in found["tiny"]:
            widths = [found[name][stage] for name in NAMES]
            axes.barh(list(NAMES.values()), widths, left=list(left.values()), label=stage)
            left = {name: left[name] + found[name][stage] for name in NAMES}
        axes.invert_yaxis()
        axes.set_xlabel("µs of processor time")
        axes.legend(
            ncols=3, fontsize="small", frameon=False, loc="lower center", bbox_to_anchor=(0.4, 1)
        )

    rows = [(stage, *(micros(found[name][stage]) for name in NAMES)) for stage in found["tiny"]]
    rows.append(("all of them", *(micros(sum(found[name].values())) for name in NAMES)))
    return (
        "Processor time of each stage alone in a loop. A request runs on the event loop or hops to "
        "a stream of the device, so not every request takes all of them. In a busy server the "
        "processor's caches are cold, and a stage costs up to three times as much. The rest of a "
        "request's time is gRPC's, the event loop's and the kernel's.\n\n"
        f"{table(('stage', *NAMES.values()), rows)}\n"
        f"{pictures.draw('stages', 'Processor time by stage', paint, (6.4, 2.2))}"
    )


def goals(found: Any) -> list[Goal]:
    return []
