"""Writes a model repository as Triton has it: models with their configurations, and the kinds of
ensembles that Triton tests itself, with small networks that compute the same. As a program it
writes into the folder that it is given."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from headrace.testing.case import parse

SIZE: Final = 16
LABELS: Final = tuple(f"label {number}" for number in range(SIZE))
_FP32: Final = "TYPE_FP32"
_INT32: Final = "TYPE_INT32"
_NAMES: Final = {_FP32: "float", _INT32: "int32"}


def _ports(kind: str, dtype: str, dims: str, *names: str, more: str = "") -> str:
    return "".join(
        f'{kind} {{ name: "{name}" data_type: {dtype} dims: [ {dims} ] {more} }}\n'
        for name in names
    )


def _add_sub(dtype: str, rows: str, *, more: str = "") -> tuple[str, str]:
    """A configuration, and a model that adds and subtracts, of any number of rows or of two."""
    kind = f"{_NAMES[dtype]}[{rows},{SIZE}]"
    batch, dims = (8, str(SIZE)) if rows == "n" else (0, f"{rows}, {SIZE}")
    config = (
        f'platform: "onnxruntime_onnx"\nmax_batch_size: {batch}\n'
        + _ports("input", dtype, dims, "INPUT0", "INPUT1")
        + _ports("output", dtype, dims, "OUTPUT0", more='label_filename: "labels.txt"')
        + _ports("output", dtype, dims, "OUTPUT1")
        + more
    )
    model = f"""add_sub ({kind} INPUT0, {kind} INPUT1) => ({kind} OUTPUT0, {kind} OUTPUT1) {{
        OUTPUT0 = Add(INPUT0, INPUT1)
        OUTPUT1 = Sub(INPUT0, INPUT1)
    }}"""
    return config, model


def _nop(rows: str, *, more: str = "") -> tuple[str, str]:
    kind = f"int32[{rows},{SIZE}]"
    batch, dims = (8, str(SIZE)) if rows == "n" else (0, f"{rows}, {SIZE}")
    config = (
        f'backend: "onnxruntime"\nmax_batch_size: {batch}\n'
        + _ports("input", _INT32, dims, "IN")
        + _ports("output", _INT32, dims, "OUT")
        + more
    )
    return config, f"nop ({kind} IN) => ({kind} OUT) {{ OUT = Identity(IN) }}"


def _step(model: str, inputs: dict[str, str], outputs: dict[str, str], version: int = -1) -> str:
    maps = "".join(
        f'{kind} {{ key: "{key}" value: "{value}" }}\n'
        for kind, table in (("input_map", inputs), ("output_map", outputs))
        for key, value in table.items()
    )
    return f'step {{ model_name: "{model}" model_version: {version}\n{maps} }}\n'


def _ensemble(*steps: str, dtype: str = _INT32, batch: int = 8, more: str = "") -> str:
    dims = str(SIZE) if batch else f"2, {SIZE}"
    return (
        f'platform: "ensemble"\nmax_batch_size: {batch}\n'
        + _ports("input", _INT32, dims, "INPUT0", "INPUT1")
        + _ports("output", dtype, dims, "OUTPUT0", more=more)
        + _ports("output", dtype, dims, "OUTPUT1")
        + f"ensemble_scheduling {{ {''.join(steps)} }}"
    )


_ENDS: Final = {"OUTPUT0": "OUTPUT0", "OUTPUT1": "OUTPUT1"}
_STARTS: Final = {"INPUT0": "INPUT0", "INPUT1": "INPUT1"}
_MIDDLE: Final = {"INPUT0": "left", "INPUT1": "right"}
_CAST: Final = (
    f"""cast (int32[n,{SIZE}] IN) => (float[n,{SIZE}] OUT) {{ OUT = Cast<to = 1>(IN) }}"""
)
_COLUMN: Final = "column (float[n] x) => (float[n] y) { y = Neg(x) }"

MODELS: Final = {
    "add_sub": _add_sub(_INT32, "n"),
    "add_sub_float": _add_sub(
        _FP32,
        "n",
        more="""
            instance_group { count: 2 kind: KIND_CPU }
            dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100
                priority_levels: 3 default_priority_level: 2 }
            model_warmup { name: "zeros" batch_size: 2
                inputs { key: "INPUT0" value { data_type: TYPE_FP32 dims: 16 zero_data: true } }
                inputs { key: "INPUT1" value { data_type: TYPE_FP32 dims: 16 random_data: true } } }
            version_policy { latest { num_versions: 1 } }
        """,
    ),
    "add_sub_nobatch": _add_sub(_INT32, "2"),
    "nop": _nop("n", more="response_cache { enable: true }"),
    "nop_nobatch": _nop("2"),
    "cast": (
        'backend: "onnxruntime"\nmax_batch_size: 8\ndefault_model_filename: "cast.onnx"',
        _CAST,
    ),
    "column": (
        "max_batch_size: 4\n"
        + _ports("input", _FP32, "1", "x", more="reshape { shape: [ ] }")
        + _ports("output", _FP32, "1", "y", more="reshape { shape: [ ] }"),
        _COLUMN,
    ),
}
"""The configuration and the model of each network."""

_NOPS: Final = (
    _step("nop", {"IN": "INPUT0"}, {"OUT": "left"}),
    _step("nop", {"IN": "INPUT1"}, {"OUT": "right"}),
)
ENSEMBLES: Final = {
    "simple": _ensemble(_step("add_sub", _STARTS, _ENDS)) + "response_cache { enable: true }",
    "labelled": _ensemble(_step("add_sub", _STARTS, _ENDS, 1), more='label_filename: "others.txt"'),
    "sequence": _ensemble(
        _step("nop", {"IN": "INPUT0"}, {"OUT": "first"}),
        _step("nop", {"IN": "first"}, {"OUT": "second"}),
        _step("add_sub", {"INPUT0": "second", "INPUT1": "INPUT1"}, _ENDS),
    ),
    "fan": _ensemble(
        *_NOPS,
        _step("add_sub", _MIDDLE, {"OUTPUT0": "sum", "OUTPUT1": "difference"}),
        _step("nop", {"IN": "sum"}, {"OUT": "OUTPUT0"}),
        _step("nop", {"IN": "difference"}, {"OUT": "OUTPUT1"}),
    ),
    "mixed_types": _ensemble(
        _step("cast", {"IN": "INPUT0"}, {"OUT": "left"}),
        _step("cast", {"IN": "INPUT1"}, {"OUT": "right"}),
        _step("add_sub_float", _MIDDLE, _ENDS),
        dtype=_FP32,
    ),
    "batch_and_nobatch": _ensemble(
        _step("nop_nobatch", {"IN": "INPUT0"}, {"OUT": "left"}),
        _step("nop", {"IN": "INPUT1"}, {"OUT": "right"}),
        _step("add_sub", _MIDDLE, _ENDS),
    ),
    "nobatch_and_batch": _ensemble(*_NOPS, _step("add_sub_nobatch", _MIDDLE, _ENDS), batch=0),
}
"""The configurations of the ensembles. All add and subtract their inputs."""


def write(root: Path) -> None:
    for name, (config, text) in MODELS.items():
        folder = root / name
        file = "cast.onnx" if name == "cast" else "model.onnx"
        (folder / "1").mkdir(parents=True)
        (folder / "1" / file).write_bytes(parse(text).SerializeToString())
        (folder / "config.pbtxt").write_text(f'name: "{name}"\n{config}')
        (folder / "labels.txt").write_text("\n".join(LABELS))
    for name, config in ENSEMBLES.items():
        folder = root / name
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(f'name: "{name}"\n{config}')
        (folder / "others.txt").write_text("\n".join(f"other {each}" for each in LABELS))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
