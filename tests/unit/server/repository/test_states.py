"""The table of states in network.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.runtime.errors import HeadraceError
from headrace.server.repository.description import read_description
from headrace.server.repository.model_config import ModelSettings


def states(folder: Path, text: str) -> str:
    (folder / "network.toml").write_text(text, "utf-8")
    return read_description("vad", folder, ModelSettings()).request.config["STATES"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('[states]\nh = "hn"\nc = "cn"', "h=hn,c=cn"),
        ('[states.h]\noutput = "hn"\nshape = [2, "N", -1]', "h=hn=2xNx?"),
        ('[states.h]\noutput = "hn"\ninitial = 0.5', "h=hn==0.5"),
        (
            '[states]\nc = "cn"\nh = {output = "hn", shape = [1], initial = -inf}',
            "c=cn,h=hn=1=-inf",
        ),
    ],
)
def test_a_state_is_an_output_or_a_table(tmp_path: Path, text: str, value: str) -> None:
    assert states(tmp_path, text) == value


@pytest.mark.parametrize(
    ("text", "field", "why"),
    [
        ("h = 1", "network.toml: states.h", "must be text in quotes"),
        ('h = {output = "hn", shape = 2}', "network.toml: states.h.shape", "a list of sizes"),
        ('h = {output = "hn", shape = [-2]}', "network.toml: states.h.shape", "a list of sizes"),
        ('h = {output = "hn", initial = "a"}', "network.toml: states.h.initial", "a number"),
        ('h = {output = "hn", initial = true}', "network.toml: states.h.initial", "a number"),
        ('h = {output = "hn", sizes = [2]}', "network.toml: states.h", "key 'sizes'"),
        ("h = {shape = [2]}", "config['STATES']", "must not be empty"),
    ],
)
def test_what_is_no_state_is_refused_by_its_key(
    tmp_path: Path, text: str, field: str, why: str
) -> None:
    with pytest.raises(HeadraceError, match=why) as caught:
        states(tmp_path, f"[states]\n{text}")
    assert caught.value.field == field
