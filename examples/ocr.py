"""Reads the text of pages: PP-OCR's three networks, and what lies between them, as one pipeline.

    pip install '.[server]' rapidocr==3.10.0
    python examples/ocr.py pages                  # writes the model repository `pages`
    headrace serve --config pages/headrace.toml --model-repository pages/networks

The networks and the functions between them are those of the package rapidocr. The functions run on
a device of their own, OCR, which this module makes.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import parser

from headrace.sdk import FunctionsPlugin, Plugin, Services, plugin_api

# Their inputs and outputs. Texts of no line are empty, so all that follows `found` may be left out.
MODELS = {
    "prepare": """
        prepare (uint8[H,W,3] page) => (float[1,3,h,w] image) { image = ocr.Prepare(page) }""",
    "cut": """
        cut (uint8[H,W,3] page, float[1,1,h,w] map) =>
            (bool found, int32[N,4,2] boxes, uint8[N,M,L,3] crops, int32[N,2] sizes,
             float[N,3,48,192] small)
        { found, boxes, crops, sizes, small = ocr.Cut(page, map) }""",
    "turn": """
        turn (uint8[N,M,L,3] crops, int32[N,2] sizes, float[N,2] directions) =>
            (int64[N] order, seq(float[G,3,48,K]) groups)
        { order, groups = ocr.Turn(crops, sizes, directions) }""",
    "best": """
        best (float[N,T,C] scores) => (int64[N,T] characters, float[N,T] sure)
        {
            characters = ArgMax <axis = 2, keepdims = 0> (scores)
            sure = ReduceMax <axes = [2], keepdims = 0> (scores)
        }""",
    "spell": """
        spell (seq(int64[G,T]) characters, seq(float[G,T]) sure, int64[N] order) =>
            (string[N] texts, float[N] sureness)
        { texts, sureness = ocr.Spell(characters, sure, order) }""",
}
LINES = """
[[step]]
name = "recognise"
model = "rec.onnx"
inputs = {x = "lines"}
outputs = {scores = "fetch_name_0"}

[[step]]
name = "best"       # of 18,710 characters at each place
model = "best.onnx"
inputs = {scores = "scores"}
outputs = {characters = "characters", sure = "sure"}

[outputs]
characters = "characters"
sure = "sure"
"""
PAGE = """
[[step]]
name = "prepare"
model = "prepare.onnx"
device = "OCR"
inputs = {page = "page"}
outputs = {image = "image"}

[[step]]
name = "detect"
model = "det.onnx"
inputs = {x = "image"}
outputs = {map = "fetch_name_0"}

[[step]]
name = "cut"
model = "cut.onnx"
device = "OCR"
inputs = {page = "page", map = "map"}
outputs = {found = "found", boxes = "boxes", crops = "crops", sizes = "sizes", small = "small"}

[[step]]
name = "direct"
model = "cls.onnx"
when = "found"
inputs = {x = "small"}
outputs = {directions = "save_infer_model/scale_0.tmp_1"}

[[step]]
name = "turn"
model = "turn.onnx"
device = "OCR"
when = "found"
inputs = {crops = "crops", sizes = "sizes", directions = "directions"}
outputs = {order = "order", groups = "groups"}

[[step]]
name = "read"
network = "lines"
each = "groups"
inputs = {lines = "groups"}
outputs = {characters = "characters", sure = "sure"}

[[step]]
name = "spell"
model = "spell.onnx"
device = "OCR"
when = "found"
inputs = {characters = "characters", sure = "sure", order = "order"}
outputs = {texts = "texts", sureness = "sureness"}

[outputs]
boxes = "boxes"
texts = "texts"
sureness = "sureness"
"""
GROUP = 6  # lines, as many as rapidocr reads at once
LEAST_WIDTH = 320
CONFIG = """
[plugins.OCR]
factory = "ocr:create_plugin"
"""


@plugin_api(1)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    """The device OCR."""
    functions: dict[str, Callable[..., Any]]
    functions = {"Prepare": prepare, "Cut": cut, "Turn": turn, "Spell": spell}
    return FunctionsPlugin(name, services, config, "ocr", functions)


def prepare(page: Any) -> Any:
    """uint8[H,W,3] → float32[1,3,h,w], as the detector takes it."""
    return parts().detector.get_preprocess()(page)


def cut(page: Any, chances: Any) -> tuple[Any, ...]:
    """The lines of text of a page, found in the map of chances that the detector makes.

    Returns: whether there are lines; their corners; them, cut out, straightened and filled up to
        the largest; their heights and widths; them as the network for directions takes them.
    """
    from rapidocr.utils.process_img import get_rotate_crop_image

    ocr = parts()
    boxes, _ = ocr.detector.postprocess_op(chances, page.shape[:2])
    if not len(boxes):
        boxes, sizes = np.zeros((0, 4, 2)), np.zeros((0, 2))
        return np.array(False), boxes, np.zeros((0, 1, 1, 3)), sizes, np.zeros((0, 3, 48, 192))
    boxes = ocr.detector.sorted_boxes(boxes)
    found = [get_rotate_crop_image(page, box.copy()) for box in boxes]
    sizes = np.array([crop.shape[:2] for crop in found], np.int32)
    crops = np.zeros((len(found), *sizes.max(0), 3), np.uint8)
    for at, crop in enumerate(found):
        crops[at, : crop.shape[0], : crop.shape[1]] = crop
    small = np.stack([ocr.classifier.resize_norm_img(crop) for crop in found])
    return np.array(True), boxes, crops, sizes, small


def turn(crops: Any, sizes: Any, directions: Any) -> tuple[Any, list[Any]]:
    """The lines upright, from the shortest to the longest, in groups as the network that reads
    takes them. Returns: the place of each line among all; the groups."""
    ocr = parts()
    lines = [crop[:height, :width] for crop, (height, width) in zip(crops, sizes, strict=True)]
    for at, (label, score) in enumerate(ocr.classifier.postprocess_op(directions)):
        if label == "180" and score > ocr.classifier.cls_thresh:
            lines[at] = np.ascontiguousarray(lines[at][::-1, ::-1])
    ratios = np.array([line.shape[1] / line.shape[0] for line in lines])
    order = np.argsort(ratios)
    groups = []
    for begin in range(0, len(lines), GROUP):
        group = order[begin : begin + GROUP]
        widest = max(*ratios[group], LEAST_WIDTH / 48)
        groups.append(np.stack([ocr.recognizer.resize_norm_img(lines[at], widest) for at in group]))
    return order, groups


def spell(characters: list[Any], sure: list[Any], order: Any) -> tuple[Any, Any]:
    """The texts of the lines, from the best character at each place, and how sure they are."""
    decode = parts().recognizer.postprocess_op.decode
    texts, sureness = np.empty(len(order), object), np.empty(len(order), np.float32)
    place = iter(order)
    for group, chances in zip(characters, sure, strict=True):
        found, _ = decode(group, chances, remove_duplicate=True)
        for text, score in found:
            at = next(place)
            texts[at], sureness[at] = text, score
    return texts, sureness


class Parts:
    """What rapidocr does before and after its networks, without the networks."""

    def __init__(self) -> None:
        from rapidocr.ch_ppocr_cls.main import TextClassifier
        from rapidocr.ch_ppocr_cls.utils import ClsPostProcess
        from rapidocr.ch_ppocr_det.main import TextDetector
        from rapidocr.ch_ppocr_det.utils import DBPostProcess
        from rapidocr.ch_ppocr_rec.main import TextRecognizer
        from rapidocr.ch_ppocr_rec.utils import CTCLabelDecode
        from rapidocr.main import RapidOCR

        options = RapidOCR().cfg
        self.detector = TextDetector.__new__(TextDetector)
        self.detector.limit_side_len = options.Det.limit_side_len
        self.detector.limit_type = options.Det.limit_type
        self.detector.mean, self.detector.std = options.Det.mean, options.Det.std
        self.detector.postprocess_op = DBPostProcess(
            options.Det.thresh,
            options.Det.box_thresh,
            options.Det.max_candidates,
            options.Det.unclip_ratio,
            options.Det.score_mode,
            options.Det.use_dilation,
        )
        self.classifier = TextClassifier.__new__(TextClassifier)
        self.classifier.cls_image_shape = options.Cls.cls_image_shape
        self.classifier.cls_thresh = options.Cls.cls_thresh
        self.classifier.postprocess_op = ClsPostProcess(options.Cls.label_list)
        self.recognizer = TextRecognizer.__new__(TextRecognizer)
        self.recognizer.rec_image_shape = options.Rec.rec_img_shape
        self.recognizer.postprocess_op = CTCLabelDecode(_characters())


@cache
def parts() -> Parts:
    return Parts()


def _models() -> Path:
    import rapidocr

    return Path(rapidocr.__file__).parent / "models"


def _characters() -> list[str]:
    model = onnx.load(_models() / "PP-OCRv6_rec_small.onnx")
    (text,) = (each.value for each in model.metadata_props if each.key == "character")
    return text.splitlines()


def write(folder: Path) -> None:
    """Writes the model repository and the server's configuration."""
    page, lines = folder / "networks/page", folder / "networks/lines"
    page.mkdir(parents=True)
    lines.mkdir()
    for name, place in (
        ("PP-OCRv6_det_small.onnx", page / "det.onnx"),
        ("ch_ppocr_mobile_v2.0_cls_mobile.onnx", page / "cls.onnx"),
        ("PP-OCRv6_rec_small.onnx", lines / "rec.onnx"),
    ):
        shutil.copy(_models() / name, place)
    for name, text in MODELS.items():
        head = '<ir_version: 8, opset_import: ["" : 17, "ocr" : 1]>'
        model = parser.parse_model(f"{head}{text}")
        onnx.save(model, (lines if name == "best" else page) / f"{name}.onnx")
    (page / "pipeline.toml").write_text(PAGE)
    (lines / "pipeline.toml").write_text(LINES)
    (folder / "headrace.toml").write_text(CONFIG)
    shutil.copy(__file__, folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
