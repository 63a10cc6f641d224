"""Tells which real networks OPENVINO claims whole: `python -m tools.claims.zoo`.

The networks are those of `make zoo`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import onnxruntime

from headrace.plugins.openvino.claims.unclaimed import unclaimed_layers
from headrace.plugins.openvino.compiling import CompilingPlugin
from headrace.runtime.errors import HeadraceError
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions
from headrace.testing.command_line import say
from headrace.testing.services import services
from tools.zoo.collection import networks

_SHOWN = 4


def judged(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Each network with the reasons of the layers that are not claimed."""
    onnxruntime.set_default_logger_severity(4)
    with services() as offered:
        plugin = CompilingPlugin("OPENVINO", offered, {})
        for name, path in networks(folder).items():
            try:
                network = Network.from_file(path, path.parent)
                transformed = plugin.transform_network(network, plugin.config, NetworkOptions())
            except HeadraceError as error:
                yield name, [str(error)]
                continue
            reasons = unclaimed_layers(transformed, "CPU", plugin.capabilities)
            yield name, [f"{node.name} ({node.op_type}): {why}" for node, why in reasons.items()]


def main(folder: Path) -> int:
    claimed = 0
    for name, reasons in judged(folder):
        claimed += not reasons
        say(f"{name}: {'claimed' if not reasons else f'{len(reasons)} layers are not'}")
        for reason in dict.fromkeys(reasons[:_SHOWN]):
            say(f"    {reason}")
    say(f"{claimed} claimed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".cache/zoo")))
