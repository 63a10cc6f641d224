"""Image files → arrays, with Pillow.

The pixels stay numbers from 0 to 255 whatever the input's type. Only the network's author knows how
to scale them, and you say so in the preprocessing at load.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from headrace.client.errors import InvalidArgument, invalid
from headrace.client.info import Port
from headrace.wire import dtypes
from headrace.wire.codec import Array

_LAYOUTS: Final = frozenset("".join(order) for order in (*permutations("CHW"), *permutations("HW")))
_MODES: Final = {1: "L", 3: "RGB", 4: "RGBA"}
_MOST_PIXELS: Final = 1 << 27
"""A network may ask for any size, and a larger image could fill the memory."""


class _Placement(NamedTuple):
    """The meaning of each dimension of the input, as in ``NCHW``, and its size by letter."""

    layout: str
    sizes: dict[str, int | str | None]


def read_image(path: Path, port: Port, tell: Callable[[str], None]) -> Array:
    """The image with the channels, size, order of dimensions and type of the input.

    It is resized where the input's height and width are fixed.

    Args:
        tell: called with each change that was made to the image.

    Raises:
        InvalidArgument: the file is no image, or the input cannot hold one.
    """
    try:
        from PIL import Image
    except ImportError:
        message = "images need Pillow; install headrace with its extra 'images'"
        raise _bad(path, port, message) from None
    placement = _placement(path, port)
    dtype = dtypes.numpy_type(dtypes.parse_name(port.dtype))
    try:
        with Image.open(path) as image:
            channels = placement.sizes.get("C", 1)
            mode = _MODES[channels] if isinstance(channels, int) else "RGB"
            pixels = image.convert(mode)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise _bad(path, port, f"cannot be read as an image: {error}") from None
    height, width = placement.sizes["H"], placement.sizes["W"]
    size = (
        width if isinstance(width, int) else pixels.width,
        height if isinstance(height, int) else pixels.height,
    )
    if size[0] * size[1] > _MOST_PIXELS:
        message = f"the network takes images of {size[0]}x{size[1]}; pass a .npy file"
        raise _bad(path, port, message)
    tell(_what_is_done(path, port, pixels.size, size))
    pixels = pixels.resize(size, Image.Resampling.BILINEAR)
    array: Array = np.asarray(pixels)
    if array.ndim == 2:
        array = array[:, :, np.newaxis]
    return _arranged(array, placement.layout).astype(dtype)


def _what_is_done(path: Path, port: Port, size: tuple[int, int], wanted: tuple[int, int]) -> str:
    shown, resized = (f"{width}x{height}" for width, height in (size, wanted))
    resize = f"is resized from {shown} to {resized}" if size != wanted else f"is {shown}"
    scale = (
        ""
        if port.dtype == "uint8"
        else (
            "; if the network takes other values, load it with --preprocessing, as "
            f"""'{{"{port.name}": {{"dtype": "uint8", "scale": 255}}}}' for 0 to 1"""
        )
    )
    return f"{path} {resize}, its values are 0 to 255{scale}"


def _arranged(array: Array, layout: str) -> Array:
    """Height, width, channels → the layout's order, with a batch of one if it has a batch."""
    order = ["HWC".index(letter) for letter in layout if letter != "N"]
    if "C" not in layout:
        array = array[:, :, 0]
    array = array.transpose(order)
    return array[np.newaxis] if layout.startswith("N") else array


def _placement(path: Path, port: Port) -> _Placement:
    shape = port.shape
    if shape is None or port.kind != "tensor" or not _holds_pixels(port.dtype):
        raise _bad(path, port, "an image does not fit an input of this kind; pass a .npy file")
    layout = port.layout.upper() or _guessed_layout(shape)
    letters: dict[str, Any] = dict(zip(layout, shape, strict=False))
    if layout.removeprefix("N") not in _LAYOUTS or len(layout) != len(shape):
        raise _bad(path, port, f"cannot tell height from width in shape {shape}; pass a .npy file")
    if 0 in (letters["H"], letters["W"]):
        raise _bad(path, port, f"shape {shape} holds no pixels; pass a .npy file")
    if not port.layout and 1 in (letters["H"], letters["W"]):
        message = (
            f"shape {shape} does not look like a picture; pass a .npy file, or load with a layout"
        )
        raise _bad(path, port, message)
    batch, channels = letters.get("N", 1), letters.get("C", 1)
    if isinstance(batch, int) and batch != 1:
        raise _bad(path, port, f"the network takes {batch} images at a time; pass a .npy file")
    if isinstance(channels, int) and channels not in _MODES:
        raise _bad(path, port, f"an image has 1, 3 or 4 channels, the network takes {channels}")
    return _Placement(layout, letters)


def _holds_pixels(dtype: str) -> bool:
    """Whether elements of this type can be any number from 0 to 255."""
    return dtype == "uint8" or (
        dtype not in ("string", "unknown")
        and dtypes.numpy_type(dtypes.parse_name(dtype)).itemsize > 1
    )


def _guessed_layout(shape: tuple[Any, ...]) -> str:
    """The layout whose channel dimension has as many as an image can have; NCHW if both have."""
    batch = {4: "N", 3: ""}.get(len(shape))
    if batch is None:
        # If one of two dimensions may have any size, it is a batch. Then the input holds rows of
        # features, and no picture.
        return "HW" if len(shape) == 2 and all(isinstance(size, int) for size in shape) else ""
    if shape[-3] in _MODES:
        return f"{batch}CHW"
    return f"{batch}HWC" if shape[-1] in _MODES else ""


def _bad(path: Path, port: Port, message: str) -> InvalidArgument:
    return invalid(f"inputs[{port.name!r}]", f"{path} for input {port.name}: {message}")
