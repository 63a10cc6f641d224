"""Which libraries a library needs, read from its file: to load it so as to find out has effects,
and those of ONNX Runtime's providers must not be loaded by anybody else."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

_HEADER: Final = struct.Struct("<4sBB58x")
_PROGRAM_TABLE: Final = struct.Struct("<32xQ14xHH")  # e_phoff, e_phentsize, e_phnum
_PROGRAM: Final = struct.Struct("<II4Q")  # p_type, p_flags, p_offset, p_vaddr, p_paddr, p_filesz
_ENTRY: Final = struct.Struct("<qQ")  # d_tag, d_val
_LOAD, _DYNAMIC = 1, 2
_END, _NEEDED, _STRINGS, _STRINGS_SIZE = 0, 1, 5, 10


def needed(path: Path) -> list[str]:
    """The names of DT_NEEDED, in order, as the System V ABI has them.

    Raises:
        ValueError: the file is not a 64-bit library in little-endian order.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(64)
        if len(start) < 64 or _HEADER.unpack(start) != (b"\x7fELF", 2, 1):
            raise ValueError(f"{path} is not a library for this machine")
        offset, size, count = _PROGRAM_TABLE.unpack_from(start)
        file.seek(offset)
        table = file.read(size * count)
        programs = [_PROGRAM.unpack_from(table, size * index) for index in range(count)]
        entries: list[tuple[int, int]] = []
        for kind, _, place, _, _, length in programs:
            if kind == _DYNAMIC:
                file.seek(place)
                entries += _ENTRY.iter_unpack(file.read(length - length % _ENTRY.size))
        known = dict(entries)
        address = known.get(_STRINGS)
        for kind, _, place, begin, _, length in programs:
            if kind == _LOAD and address is not None and begin <= address < begin + length:
                file.seek(place + address - begin)
                strings = file.read(known.get(_STRINGS_SIZE, 0))
                return [
                    strings[value : strings.index(b"\0", value)].decode()
                    for tag, value in entries[: _position_of_end(entries)]
                    if tag == _NEEDED
                ]
    return []


def _position_of_end(entries: list[tuple[int, int]]) -> int:
    return next((place for place, (tag, _) in enumerate(entries) if tag == _END), len(entries))
