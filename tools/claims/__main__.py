"""Writes the list of layers that OPENVINO claims on a kind of device.

    python -m tools.claims --device CPU

tries single layers with fixed sizes as OPENVINO compiles them. The layers are those of ONNX's
backend cases and of `seeds.txt`, and their neighbours: of other operator sets, element types,
ranks, attributes and values, and with other inputs constant. ONNX Runtime says what is right.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path

import onnx
import onnxruntime

from headrace.plugins.openvino import claims
from headrace.plugins.openvino.claims.forms import QUANTITIES
from headrace.plugins.openvino.claims.table import Claims, written
from headrace.plugins.openvino.library import openvino
from headrace.plugins.openvino.start import installed_version
from headrace.testing.command_line import say
from tools.claims.layer import Layer
from tools.claims.neighbours import in_sets, masked, neighbours, pool_of
from tools.claims.pool import try_all
from tools.claims.reference import Reference
from tools.claims.seeds import seeds
from tools.claims.summary import rows
from tools.claims.trial import Trial, Verdict

_REFUSALS = 12
_BATCH = 32
_SAID = 2000
_HEAD = '''\
"""The layers that OPENVINO claims on devices of the kind {kind}. Written by `make claims`; do not
edit. `table` explains the lines.
"""

from typing import Final

VERSION: Final = "{version}"
"""The OpenVINO that computed them right, on: {name}."""

REFERENCE: Final = "{reference}"
"""What said what is right."""

ALLOWED: Final = """
{rows}
"""
'''


def layers(patterns: Sequence[str] = ()) -> Iterator[list[Layer]]:
    """The layers to try, or those of the operators that match a pattern, in batches that can share
    a network."""
    with Reference() as reference:
        yield from _chosen(patterns, reference.is_valid)


def _chosen(patterns: Sequence[str], is_valid: Callable[[Layer], bool]) -> Iterator[list[Layer]]:
    known = seeds()
    pools = pool_of(known)
    for operator in sorted({seed.operator for seed in known}):
        if _matches(operator, patterns):
            mine = [seed for seed in known if seed.operator == operator]
            # Seeds need not be valid: few sizes are known before their inputs become constants.
            others = chain(
                (each for seed in mine for older in in_sets(seed) for each in masked(older)),
                (
                    each
                    for seed in telling(mine, lambda _: None, 1, lambda _: True)
                    for each in neighbours(seed, pools[operator])
                ),
            )
            chosen = [
                *(each for seed in mine for each in masked(seed)),
                *telling(others, types_of, 2, is_valid),
            ]
            for opset in sorted({layer.opset for layer in chosen}, reverse=True):
                alike = [layer for layer in chosen if layer.opset == opset]
                for start in range(0, len(alike), _BATCH):
                    yield alike[start : start + _BATCH]


def telling(
    candidates: Iterable[Layer],
    kind_of: Callable[[Layer], object],
    times: int,
    is_valid: Callable[[Layer], bool],
) -> Iterator[Layer]:
    """The valid layers that have something that few of their kind before them have: in each kind,
    each set, each choice of constants, of attributes, of numbers of axes and of outputs, and each
    way to make a layer from another is there so many times."""
    tried: Counter[object] = Counter()
    refused: Counter[object] = Counter()
    for layer in candidates:
        kind = kind_of(layer)
        traits = {(kind, each) for each in _traits(layer)}
        if any(tried[each] < times and refused[each] < _REFUSALS for each in traits):
            valid = is_valid(layer)
            (tried if valid else refused).update(traits)
            if valid:
                yield layer


def types_of(layer: Layer) -> object:
    """The types of the inputs, and those that attributes choose for outputs."""
    inputs = tuple(None if value is None else value.dtype for value in layer.inputs)
    return inputs, layer.attribute("to"), layer.attribute("dtype")


def _traits(layer: Layer) -> Iterator[tuple[str, object]]:
    attributes = (each for each in layer.node.attribute if each.name not in QUANTITIES)
    yield "set", layer.opset
    yield "constants", layer.constants
    yield "attributes", frozenset(each.SerializeToString() for each in attributes)
    yield "axes", tuple(None if value is None else value.ndim for value in layer.inputs)
    yield "outputs", tuple(map(bool, layer.node.output))
    yield "way", layer.way.rpartition(" ")[2]


def path_of(kind: str) -> Path:
    name = "allowed" if kind == "CPU" else f"allowed_{kind.lower()}"
    return Path(next(iter(claims.__path__))) / f"{name}.py"


def main() -> int:
    """Exit status 0."""
    parser = argparse.ArgumentParser(prog="python -m tools.claims", description=__doc__)
    add = parser.add_argument
    add("--device", default="CPU", help="OpenVINO's name of a device")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    add(
        "--operator",
        action="append",
        default=[],
        metavar="PATTERN",
        help="try these operators alone, and keep what the list says of others",
    )
    add("--report", type=Path, metavar="FILE", help="write the trials that were not right")
    options = parser.parse_args()
    trials: list[Trial] = []
    notes: list[str] = []

    def report(layer: Layer, trial: Trial) -> None:
        trials.append(trial)
        if len(trials) % _SAID == 0:
            say(f"{len(trials)} tried")
        if trial.verdict is not Verdict.RIGHT and (trial.form or trial.detail):
            how = f"{trial.verdict.value} {trial.form} {trial.detail}"
            notes.append(" ".join(f"{how} {layer.seed} [{layer.way}]".split()))

    try_all(layers(options.operator), options.device, options.jobs, report)
    counts = Counter(each.verdict for each in trials)
    say(", ".join(f"{counts[each]} {each.value}" for each in Verdict))
    if options.report:
        options.report.write_text("\n".join(sorted(notes)), encoding="utf-8")
    kind = options.device.partition(".")[0]
    before = _before(path_of(kind))
    kept = [
        row
        for row in Claims(before).rows.values()
        if options.operator and not _matches(row.operator, options.operator)
    ]
    found = written([*kept, *rows(trials)])
    text = _HEAD.format(
        kind=kind,
        version=installed_version(),
        name=openvino.Core().get_property(options.device, "FULL_DEVICE_NAME"),
        reference=f"onnx {onnx.__version__}, ONNX Runtime {onnxruntime.__version__}",
        rows=found,
    )
    path_of(kind).write_text(text, encoding="utf-8")
    for line in _changes(before, found):
        say(line)
    return 0


def _matches(operator: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(operator, each) for each in patterns)


def _before(path: Path) -> str:
    if not path.exists():
        return ""
    return path.read_text(encoding="utf-8").partition('ALLOWED: Final = """')[2].strip(' \n"')


def _changes(before: str, after: str) -> Iterator[str]:
    """A line for each operator and choice of types that is claimed otherwise than before."""
    old, new = Claims(before).rows, Claims(after).rows
    for key in sorted(old.keys() | new.keys()):
        was, now = old.get(key), new.get(key)
        if was != now:
            what = "no longer" if now is None else "newly" if was is None else "otherwise"
            yield f"{what} claimed: {now or was}"


if __name__ == "__main__":
    raise SystemExit(main())
