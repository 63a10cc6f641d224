"""PP-OCR as one pipeline, `examples/ocr.py`, reads what the package rapidocr reads by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

rapidocr = pytest.importorskip("rapidocr", reason="it is in .venv-libraries alone")

REPOSITORY = Path(__file__).parents[2]
SECONDS = 600
PAGES = 20
WORDS = ["water", "gate", "wheel", "2026", "turbine", "bridge", "canal", "page", "line", "machine"]


def page(number: int) -> Any:
    """uint8[736,736,3]: lines of one to five words in several sizes. Every fourth page is upside
    down."""
    from PIL import Image, ImageDraw, ImageFont

    chosen = np.random.default_rng(number)
    picture = Image.new("RGB", (736, 736), "white")
    draw = ImageDraw.Draw(picture)
    top = 20
    while top < 650:
        size = int(chosen.integers(22, 40))
        text = " ".join(chosen.choice(WORDS, chosen.integers(1, 6)))
        draw.text(
            (30, top), text, (0, 0, int(chosen.integers(0, 128))), ImageFont.load_default(size)
        )
        top += 3 * size
    pixels = np.array(picture)
    return np.ascontiguousarray(pixels[::-1, ::-1]) if number % 4 == 3 else pixels


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from headrace.client import Client

    folder = tmp_path_factory.mktemp("ocr")
    example = [sys.executable, str(REPOSITORY / "examples/ocr.py"), str(folder)]
    subprocess.run(example, check=True, timeout=SECONDS)
    command = [sys.executable, "-m", "headrace.server", "--json", "--port", "0", "--http-port", "0"]
    places = ["--config", "headrace.toml", "--model-repository", "networks"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *places],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(folder)},
        )
    try:
        assert process.stdout is not None
        with process.stdout as output:
            line = output.readline()
        assert line, (folder / "log").read_text()
        with Client(json.loads(line)["grpc"]) as client:
            yield client.network("page")
        process.terminate()
        assert process.wait(SECONDS) == 0
        assert "Traceback" not in (folder / "log").read_text()
    finally:
        process.kill()
        process.wait(SECONDS)


@pytest.fixture(scope="module")
def library() -> Any:
    return rapidocr.RapidOCR(params={"Global.text_score": 0.0})


@pytest.mark.parametrize("number", range(PAGES))
def test_a_page_has_the_texts_the_places_and_the_scores_of_the_library(
    network: Any, library: Any, number: int
) -> None:
    picture = page(number)
    ours, theirs = network.infer({"page": picture}, timeout=SECONDS), library(picture)
    kept = [at for at, text in enumerate(ours["texts"]) if text.strip()]
    assert len(kept) > 3
    assert [ours["texts"][at] for at in kept] == list(theirs.txts)
    np.testing.assert_array_equal(ours["boxes"][kept], theirs.boxes)
    np.testing.assert_allclose(ours["sureness"][kept], theirs.scores, atol=1e-5)


def test_a_page_without_text_has_no_lines(network: Any) -> None:
    page = np.full((480, 640, 3), 255, np.uint8)
    found = network.infer({"page": page}, timeout=SECONDS)
    assert [len(found[name]) for name in ("texts", "boxes", "sureness")] == [0, 0, 0]
