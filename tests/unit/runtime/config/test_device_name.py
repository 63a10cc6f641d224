from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.config.device_name import (
    MAX_DEPTH,
    MAX_LENGTH,
    MAX_MEMBERS,
    VIRTUAL_TYPES,
    DeviceName,
    Member,
    resolve,
    unknown_device,
)
from headrace.runtime.errors import InvalidArgument, NotFound

AVAILABLE = {"CPU": ["0"], "OPENCL": ["0", "1"], "HETERO": [], "MULTI": [], "AUTO": [], "BATCH": []}


@pytest.mark.parametrize(
    "text",
    [
        "CPU",
        "CPU.0",
        "OPENCL.GPU-3f.1_a",
        "AUTO",
        "AUTO:-B",
        "AUTO:A,-B.1",
        "HETERO:A,B",
        "MULTI:A(4),B(2)",
        "BATCH:A(8)",
        "MULTI:[BATCH:CPU(8)](4),[HETERO:A,B](2)",
    ],
)
def test_a_canonical_name_reads_back_as_it_was_written(text: str) -> None:
    assert str(DeviceName.parse(text)) == text


def test_a_name_becomes_its_parts() -> None:
    assert DeviceName.parse("MULTI:[BATCH:CPU.1(8)](4),TEMPLATE") == DeviceName(
        "MULTI",
        members=(
            Member(DeviceName("BATCH", members=(Member(DeviceName("CPU", "1"), 8),)), 4),
            Member(DeviceName("TEMPLATE")),
        ),
    )


def test_lower_case_names_are_accepted_and_ids_keep_their_case() -> None:
    assert str(DeviceName.parse("hetero:opencl.aB,cpu")) == "HETERO:OPENCL.aB,CPU"


def test_brackets_that_are_not_needed_are_dropped() -> None:
    assert str(DeviceName.parse("MULTI:[CPU](4)")) == "MULTI:CPU(4)"


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("", "at its end", "a device's name"),
        ("0CPU", "at position 1", "a device's name"),
        ("CPU ", "at position 4", "the end of the name"),
        ("CPU.", "at its end", "a device's id"),
        ("CPU..", "at position 5", "a device's id"),
        ("CPU.0:A", "at position 6", "takes none"),
        ("CPU:A", "at position 4", "no list after CPU:"),
        ("HETRO:A", "at position 6", "no list after HETRO (did you mean HETERO?):"),
        ("CPU(8)", "at position 4", "the end of the name"),
        ("HETERO.0", "at position 7", "no id"),
        ("HETERO:", "at its end", "a device's name"),
        ("HETERO:A,", "at its end", "a device's name"),
        ("HETERO:A,,B", "at position 10", "a device's name"),
        ("HETERO:A(2)", "at position 9", "no count in HETERO"),
        ("HETERO:-A", "at position 8", "no '-' in HETERO"),
        ("HETERO:A,A", "at its end", "each device once"),
        ("AUTO:-A(2)", "at position 8", "no count in AUTO"),
        ("MULTI:A(0)", "at position 9", "a count from 1"),
        ("MULTI:A(70000)", "at position 9", "a count from 1"),
        ("MULTI:A(4", "at position 9", "a count from 1"),
        ("MULTI:BATCH:A(8)", "at position 12", "brackets around"),
        ("MULTI:[BATCH:A(8)", "at its end", "',' or ']'"),
        ("BATCH:A(8),B(8)", "at its end", "one device for BATCH"),
        ("CPÜ", "at position 3", "the end of the name"),
        ("CPU\n", "at position 4", "the end of the name"),
    ],
)
def test_a_bad_name_is_refused_showing_where_and_what_was_expected(
    text: str, position: str, expected: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        DeviceName.parse(text)
    assert caught.value.field == "device"
    assert position in caught.value.message
    assert expected in caught.value.message


def test_length_depth_and_members_are_bounded() -> None:
    with pytest.raises(InvalidArgument, match="longer than"):
        DeviceName.parse("A" * (MAX_LENGTH + 1))
    with pytest.raises(InvalidArgument, match="nested at most"):
        DeviceName.parse("HETERO:[" * MAX_DEPTH + "HETERO:A" + "]" * MAX_DEPTH)
    with pytest.raises(InvalidArgument, match=f"at most {MAX_MEMBERS} devices"):
        DeviceName.parse("HETERO:" + ",".join(f"A{k}" for k in range(MAX_MEMBERS + 1)))


def test_physical_devices_are_listed_in_order_at_any_depth() -> None:
    name = DeviceName.parse("MULTI:[BATCH:CPU(8)],[HETERO:A.1,B],C")
    assert [str(device) for device in name.physical()] == ["CPU", "A.1", "B", "C"]
    assert [str(d) for d in DeviceName.parse("AUTO:A,-B").physical()] == ["A"]


@pytest.mark.parametrize(
    ("text", "resolved"),
    [
        ("OPENCL", "OPENCL"),
        ("HETERO:OPENCL,CPU", "HETERO:OPENCL.0,OPENCL.1,CPU"),
        ("MULTI:OPENCL(4),CPU(2)", "MULTI:OPENCL.0(4),OPENCL.1(4),CPU(2)"),
        ("MULTI:OPENCL(4),OPENCL.0(1)", "MULTI:OPENCL.1(4),OPENCL.0(1)"),
        ("MULTI:CPU,CPU.0", "MULTI:CPU.0"),
        ("BATCH:OPENCL(8)", "BATCH:OPENCL(8)"),
        ("AUTO", "AUTO"),
        ("AUTO:-OPENCL", "AUTO:-OPENCL"),
        ("AUTO:OPENCL,-OPENCL.0", "AUTO:OPENCL.1,-OPENCL.0"),
        ("MULTI:[HETERO:OPENCL,CPU](2)", "MULTI:[HETERO:OPENCL.0,OPENCL.1,CPU](2)"),
    ],
)
def test_a_type_in_a_list_means_all_its_devices(text: str, resolved: str) -> None:
    assert str(resolve(DeviceName.parse(text), AVAILABLE)) == resolved


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("CPY", "did you mean 'CPU'"),
        ("HETERO:OPENC,CPU", "did you mean 'OPENCL'"),
        ("OPENCL.7", "did you mean 'OPENCL"),
        ("AUTO:-OPENCLL", "did you mean 'OPENCL'"),
        ("MULTI:[BATCH:CPUU(8)](2)", "did you mean 'CPU'"),
        ("GPU", "did you mean 'OPENCL'"),
        ("HETERO:gpu,CPU", "did you mean 'OPENCL'"),
    ],
)
def test_an_unknown_type_or_id_says_what_was_meant(text: str, hint: str) -> None:
    with pytest.raises(NotFound, match=hint) as caught:
        resolve(DeviceName.parse(text), AVAILABLE)
    assert caught.value.field == "device"


def test_what_others_call_a_gpu_is_ours_by_another_name() -> None:
    known = ["CPU", "CUDA", "OPENCL", "OPENVINO"]
    error = unknown_device("GPU", known)
    assert error.message == (
        "unknown device 'GPU'; did you mean 'OPENVINO.GPU' or 'OPENCL' or 'CUDA'?"
    )
    for name in ("GPU", "TPU"):
        assert unknown_device(name, ["CPU"]).message == f"unknown device {name!r}; known: CPU"


def test_a_type_whose_only_device_has_no_id_stays_in_the_list() -> None:
    name = DeviceName.parse("MULTI:CPU,OWN")
    assert resolve(name, {**AVAILABLE, "OWN": [""]}) == name


def test_excluding_every_listed_device_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="excludes every device"):
        resolve(DeviceName.parse("AUTO:OPENCL,-OPENCL.0,-OPENCL.1"), AVAILABLE)


_types = st.text(string.ascii_uppercase, min_size=1, max_size=8).filter(
    lambda name: name not in VIRTUAL_TYPES
)
_ids = st.from_regex(r"\A([A-Za-z0-9][A-Za-z0-9._-]{0,8})?\Z")


def _lists(devices: st.SearchStrategy[DeviceName]) -> st.SearchStrategy[DeviceName]:
    counts = st.none() | st.integers(1, 65536)

    def unique(members: st.SearchStrategy[Member]) -> st.SearchStrategy[tuple[Member, ...]]:
        return st.lists(members, min_size=1, max_size=3, unique_by=lambda m: m.device).map(tuple)

    plain = st.builds(Member, devices)
    counted = st.builds(Member, devices, counts)
    excluding = st.builds(Member, devices, st.none(), st.booleans())
    return st.one_of(
        st.builds(DeviceName, st.just("HETERO"), st.just(""), unique(plain)),
        st.builds(DeviceName, st.just("MULTI"), st.just(""), unique(counted)),
        st.builds(DeviceName, st.just("AUTO"), st.just(""), unique(excluding)),
        st.builds(DeviceName, st.just("BATCH"), st.just(""), counted.map(lambda m: (m,))),
    )


_simple = st.builds(DeviceName, _types, _ids)
_names = st.one_of(_simple, _lists(_simple), _lists(st.one_of(_simple, _lists(_simple))))


@given(_names)
def test_every_name_survives_formatting_and_parsing(name: DeviceName) -> None:
    assert DeviceName.parse(str(name)) == name


@given(st.text("abAB.:,()[]-019HETROMULIAC \n", max_size=40))
def test_any_text_is_either_refused_or_has_one_canonical_form(text: str) -> None:
    try:
        name = DeviceName.parse(text)
    except InvalidArgument:
        return
    assert DeviceName.parse(str(name)) == name
    without_brackets = str.maketrans("", "", "[]")
    canonical = str(name).translate(without_brackets)
    assert canonical.casefold() == text.translate(without_brackets).casefold()
