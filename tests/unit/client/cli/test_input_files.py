"""Files as inputs of ``headrace infer``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from headrace.client import errors
from headrace.client.cli.input_files import read_inputs
from headrace.client.info import Port, Ports, Shape

Image = pytest.importorskip("PIL.Image")


def read(arguments: Sequence[object], *ports: Port, **shapes: tuple[int, ...]) -> dict[str, Any]:
    return read_inputs([str(argument) for argument in arguments], Ports(ports), shapes)


def port(dtype: str = "float32", shape: Shape | None = None, layout: str = "") -> Port:
    return Port("x", dtype, shape, layout=layout)


def test_the_name_may_be_left_out_where_there_is_one_input(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(2))
    assert list(read([tmp_path / "a.npy"], port())) == ["x"]
    assert list(read([f"x={tmp_path}/a.npy"], port())) == ["x"]
    with pytest.raises(
        errors.InvalidArgument, match="needs the input's name: NAME=FILE, NAME of x, y"
    ):
        read([tmp_path / "a.npy"], port(), Port("y", "float32", None))


def test_an_equals_sign_may_belong_to_the_files_name(tmp_path: Path) -> None:
    path = tmp_path / "a=b.npy"
    np.save(path, np.ones(2))
    assert read([path], port())["x"].shape == (2,)
    assert read([f"x={path}"], port())["x"].shape == (2,)


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgument, match="no input 'X'; did you mean 'x'"):
        read([f"X={tmp_path}/a.npy"], port())


def test_a_shape_of_an_unknown_input_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(2))
    with pytest.raises(errors.InvalidArgument, match="no input 'y'"):
        read([tmp_path / "a.npy"], port(), y=(2,))


def test_two_files_for_one_input_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(2))
    np.savez(tmp_path / "b.npz", x=np.ones(2))
    with pytest.raises(errors.InvalidArgument, match="two files for the input 'x'"):
        read([f"x={tmp_path}/a.npy", tmp_path / "b.npz"], port())


def test_a_bfloat16_array_in_an_npz_gets_its_type_back(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(2, ml_dtypes.bfloat16))
    assert read([tmp_path / "a.npz"], port("bfloat16"))["x"].dtype == ml_dtypes.bfloat16


def test_npz_holds_inputs_by_name_or_one_alone(tmp_path: Path) -> None:
    both = tmp_path / "both.npz"
    np.savez(both, x=np.zeros(1), y=np.ones(2))
    y = Port("y", "float64", None)
    assert {name: array.shape for name, array in read([both], port(), y).items()} == {
        "x": (1,),
        "y": (2,),
    }
    assert read([f"y={both}"], port(), y)["y"].shape == (2,)
    one = tmp_path / "one.npz"
    np.savez(one, other=np.zeros(3))
    assert read([f"x={one}"], port())["x"].shape == (3,)
    with pytest.raises(errors.InvalidArgument, match="holds x, y, but not z"):
        read([f"z={both}"], Port("z", "float32", None))


def test_types_that_numpy_lacks_survive_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1, 2], ml_dtypes.bfloat16))
    assert read([tmp_path / "a.npy"], port("bfloat16"))["x"].dtype == ml_dtypes.bfloat16


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "a.npz", x=np.array([{}], dtype=object))
    for name in ("a.npy", "a.npz"):
        with pytest.raises(
            errors.InvalidArgument, match=r"cannot read .*; save strings as an array of str"
        ):
            read([f"x={tmp_path}/{name}"], port())


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.png"])
def test_broken_and_missing_files_are_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for content in (None, b"", b"garbage"):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(errors.InvalidArgument, match=name):
            read([f"x={path}"], port(shape=(1, 3, 8, 8)))


def test_raw_files_take_the_inputs_type_and_shape(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(np.arange(6, dtype=np.float32).tobytes())
    assert read([path], port(shape=(2, 3)))["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert read([path], port(shape=("N", 3)))["x"].shape == (2, 3)
    assert read([path], port(shape=None), x=(3, 2))["x"].shape == (3, 2)
    assert read([path], port(shape=("N", "T")))["x"].shape == (1, 6)
    assert read([path], port(shape=("N", "T", 3)))["x"].shape == (1, 2, 3)
    assert read([path.rename(tmp_path / "a.wav")], port(), x=(6,))["x"].shape == (6,)


@pytest.mark.parametrize("name", ["speech.wav", "table.csv", "a.pt", "list.json", "a.NPYX"])
def test_a_file_of_another_kind_is_not_taken_for_raw_elements(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(bytes(24))
    message = r"files are not read; pass .npy, .npz, an image, or raw elements as .bin"
    with pytest.raises(errors.InvalidArgument, match=message):
        read([path], port(shape=(None, 3)))


@pytest.mark.parametrize(
    ("dtype", "shape", "message"),
    [
        ("float32", (2, 4), r"has 24 bytes, but \(2, 4\) of float32 takes 32"),
        ("float32", ("N", 4), r"has 24 bytes, but \(1, 4\) of float32 takes 16"),
        ("float32", ("N", "M", "L"), r"leaves its shape open; pass --shape x="),
        ("float32", (3, "M", "L"), r"leaves its shape open; pass --shape x="),
        ("float32", ("N", 3, 224, 224), r"has 24 bytes, but \(1, 3, 224, 224\) of float32 takes"),
        ("float32", None, r"leaves its shape open"),
        ("float32", (None, 0), r"has 24 bytes, but \(0, 0\)"),
        ("string", (6,), r"pass a \.npy file"),
    ],
)
def test_raw_files_that_do_not_fit_are_refused(
    tmp_path: Path, dtype: str, shape: Shape | None, message: str
) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(24))
    with pytest.raises(errors.InvalidArgument, match=message):
        read([path], port(dtype, shape))
    with pytest.raises(errors.InvalidArgument, match="No such file"):
        read([f"x={tmp_path}/none.bin"], port(shape=(1,)))


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "p.png"
    pixels = np.zeros((4, 6, 3), np.uint8)
    pixels[..., 0] = 200
    Image.fromarray(pixels).save(path)
    return path


@pytest.mark.parametrize(
    ("dtype", "shape", "layout", "expected"),
    [
        ("float32", (1, 3, 8, 10), "", (1, 3, 8, 10)),
        ("uint8", ("N", 8, 10, 3), "", (1, 8, 10, 3)),
        ("float16", (3, None, None), "", (3, 4, 6)),
        ("uint8", (1, "h", "w", 4), "", (1, 4, 6, 4)),
        ("uint8", (1, 1, 2, 2), "", (1, 1, 2, 2)),
        ("float32", (5, 7), "", (5, 7)),
        ("float32", ("N", None, None, None), "NHWC", (1, 4, 6, 3)),
        ("float32", (1, 3, 2, 3), "NWHW", None),
        ("float32", ("N", 8), "", None),  # rows of features
        ("float32", (None, 8), "HW", (4, 8)),
    ],
)
def test_an_image_takes_the_inputs_form(
    picture: Path, dtype: str, shape: Shape, layout: str, expected: tuple[int, ...] | None
) -> None:
    if expected is None:
        with pytest.raises(errors.InvalidArgument, match="cannot tell height from width"):
            read([picture], port(dtype, shape, layout))
        return
    array = read([picture], port(dtype, shape, layout))["x"]
    assert (array.dtype, array.shape) == (np.dtype(dtype), expected)


@pytest.mark.parametrize(
    ("dtype", "shape", "told"),
    [
        ("float32", (None, 3, 8, 5), "is resized from 6x4 to 5x8, its values are 0 to 255; if"),
        ("float32", (1, 3, 4, 6), "is 6x4, its values are 0 to 255; if the network takes other"),
        ("uint8", (1, 3, "H", "W"), "is 6x4, its values are 0 to 255"),
    ],
)
def test_what_is_done_to_an_image_is_told(
    picture: Path, dtype: str, shape: Shape, told: str
) -> None:
    notes: list[str] = []
    read_inputs([str(picture)], Ports([port(dtype, shape)]), {}, notes.append)
    (note,) = notes
    assert note.startswith(f"{picture} {told}")
    assert ("--preprocessing" in note) == (dtype != "uint8")


def test_pixels_stay_numbers_to_255(picture: Path) -> None:
    array = read([picture], port("float32", (1, 3, 8, 10)))["x"]
    assert array[0, :, 3, 3].tolist() == [200, 0, 0]


@pytest.mark.parametrize(
    ("dtype", "shape", "message"),
    [
        ("string", (1, 3, 8, 8), "does not fit an input of this kind"),
        ("int8", (1, 3, 8, 8), "does not fit an input of this kind"),
        ("float32", None, "does not fit an input of this kind"),
        ("float32", (1, 7, 8, 8), "cannot tell height from width"),
        ("float32", (10,), "cannot tell height from width"),
        ("float32", (1, 16), "does not look like a picture"),
        ("float32", (2, 3, 8, 8), "takes 2 images at a time"),
        ("float32", (1, 3, 0, 8), "holds no pixels"),
        ("uint8", ("N", 8, 0, 3), "holds no pixels"),
        ("uint8", (0, 0), "holds no pixels"),
        ("uint8", (1, 3, 12_000, 12_000), "takes images of 12000x12000"),
        ("uint8", (1, 3, "H", 1 << 40), "takes images of 1099511627776x4"),
    ],
)
def test_inputs_that_hold_no_image_say_why(
    picture: Path, dtype: str, shape: Shape | None, message: str
) -> None:
    with pytest.raises(errors.InvalidArgument, match=message):
        read([picture], port(dtype, shape))


def test_what_no_file_can_be_is_told(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(2))
    (tmp_path / "b.npy").write_bytes(b"garbage")
    with pytest.raises(errors.InvalidArgument, match="has a shape of its own"):
        read([tmp_path / "a.npy"], port(), x=(2,))
    with pytest.raises(errors.InvalidArgument, match=r"it is not a \.npy file"):
        read([tmp_path / "b.npy"], port())
    with pytest.raises(errors.InvalidArgument, match="'x=' does not name a file"):
        read(["x="], port())
