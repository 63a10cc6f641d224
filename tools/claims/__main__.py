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
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import onnx
import onnxruntime

from headrace.plugins.openvino import claims
from headrace.plugins.openvino.claims.table import Claims, written
from headrace.plugins.openvino.library import openvino
from headrace.plugins.openvino.start import installed_version
from headrace.testing.command_line import say
from tools.claims.layer import Layer
from tools.claims.neighbours import masked, neighbours, pool_of
from tools.claims.pool import try_all
from tools.claims.seeds import seeds
from tools.claims.summary import rows
from tools.claims.trial import Trial, Verdict

_MOST_SEEDS = 20
_MOST = 60
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
    a network. Each operator has some hundred in each of its sets, as different as possible."""
    known = seeds()
    pools = pool_of(known)
    for operator in sorted({seed.operator for seed in known}):
        if _matches(operator, patterns):
            mine = [seed for seed in known if seed.operator == operator]
            step = -(-len(mine) // _MOST_SEEDS)
            made = (each for seed in mine[::step] for each in neighbours(seed, pools[operator]))
            always = [each for seed in mine for each in masked(seed)]
            for chosen in _chosen(always, made):
                for start in range(0, len(chosen), _BATCH):
                    yield chosen[start : start + _BATCH]


def _chosen(always: Sequence[Layer], candidates: Iterable[Layer]) -> Iterator[list[Layer]]:
    """The layers to try in each operator set: those that always are, and some of the others."""
    alike: Counter[object] = Counter()
    sets: dict[int, list[tuple[int, bool, int, Layer]]] = {}
    for order, layer in enumerate(candidates):
        kind = _kind(layer)
        alike[kind] += 1
        typed = "types" in layer.way
        sets.setdefault(layer.opset, []).append((alike[kind], typed, order, layer))
    for opset in sorted({layer.opset for layer in always} | sets.keys(), reverse=True):
        found = sorted(sets.get(opset, ()), key=lambda each: each[:3])[:_MOST]
        yield [layer for layer in always if layer.opset == opset]
        yield [layer for *_, layer in found if layer.way]


def _kind(layer: Layer) -> object:
    """What layers have in common of which others are tried first."""
    types = tuple(None if value is None else value.dtype for value in layer.inputs)
    chosen = tuple(map(layer.attribute, ("to", "dtype")))
    return layer.opset, types, chosen, layer.constants, layer.way.rpartition(" ")[2]


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
