"""Header compression, by the sections of RFC 7541. Where h2spec has a case, a row says which."""

from __future__ import annotations

import contextlib
from functools import partial

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.http2.blocks import BlockDecoder, block, literal
from headrace.http2.calls import RequestHead
from headrace.http2.compression import BadBlock, Decoder, TooManyFields
from headrace.http2.connection import CallOpened
from headrace.http2.faults import ConnectionFault, StreamFault
from tests.support.http2_ends import (
    CALL,
    HEADERS,
    LAST_HEADERS,
    Client,
    Server,
    frame,
    of,
    settings,
)

SHORT = block(CALL)  # changes no table

GOOD = [
    ("an indexed field", "generic/5/1", b"\xba"),
    ("a field for the table", "generic/5/2", b"\x40\x0auser-agent\x06h2spec"),
    (
        "a field for the table in Huffman's code",
        "generic/5/3",
        b"\x40\x87\xb5\x05\xb1\x61\xcc\x5a\x93\x84\x9c\x48\xac\xa4",
    ),
    ("a field for the table with a known name", "generic/5/4", b"\x7a\x06h2spec"),
    ("a field that is not for the table", "generic/5/9", b"\x00\x06x-test\x06h2spec"),
    (
        "the same in Huffman's code",
        "generic/5/10",
        b"\x00\x85\xf2\xb2\x4a\x84\xff\x84\x9c\x48\xac\xa4",
    ),
    ("the same with a known name", "generic/5/8", b"\x0f\x2b\x06h2spec"),
    ("a field that is never for a table", "generic/5/13", b"\x10\x06x-test\x06h2spec"),
    ("the same with a known name", "generic/5/11", b"\x1f\x2b\x06h2spec"),
    (
        "the same in Huffman's code",
        "generic/5/14",
        b"\x10\x85\xf2\xb2\x4a\x84\xff\x84\x9c\x48\xac\xa4",
    ),
]
BAD = [
    ("an index beyond both tables", "hpack/2.3.3/1", SHORT + b"\xff\x00"),
    ("a name beyond both tables", "hpack/2.3.3/2", SHORT + b"\x7f\x7e\x06h2spec"),
    ("a size of the table after a field", "hpack/4.2/1", SHORT + b"\x21"),
    (
        "padding of Huffman's code longer than 7 bits",
        "hpack/5.2/1",
        SHORT + b"\x00\x85\xf2\xb2\x4a\x84\xff\x85\x9c\x48\xac\xa4\xff",
    ),
    (
        "padding of Huffman's code by zeros",
        "hpack/5.2/2",
        SHORT + b"\x00\x85\xf2\xb2\x4a\x87\xff\xff\xff\xff\x83\x9c\x48\xa0",
    ),
    (
        "the end of strings within Huffman's code",
        "hpack/5.2/3",
        SHORT + b"\x00\x85\xf2\xb2\x4a\x84\xff\x85\x1f\xff\xff\xff\xff",
    ),
    ("the index 0", "hpack/6.1/1", SHORT + b"\x80"),
    ("a size of the table above what was agreed", "hpack/6.3/1", b"\x3f\xff\x1f" + SHORT),
    ("a third size of the table", "", b"\x20\x3f\xe1\x1f\x20" + SHORT),
    ("an integer without an end", "", SHORT + b"\xff\x80\x80\x80\x80\x80\x80\x80\x80\x01"),
    ("a size of the table without an end", "", b"\x3f" + b"\x80" * 50),
    ("an integer that is cut short", "", SHORT + b"\xff"),
    ("a string that is cut short", "", SHORT + b"\x00\x06x-te"),
    ("a string with a length beyond the block", "", SHORT + b"\x00\x7f\xff\xff\x03x"),
    ("a field that is cut short", "", SHORT + b"\x40"),
]


@pytest.mark.parametrize(("what", "_case", "field"), GOOD, ids=[row[0] for row in GOOD])
def test_a_field_is_read(what: str, _case: str, field: bytes) -> None:
    server = Server()
    call = hpack.Encoder().encode([*CALL, (b"user-agent", b"other")])
    (opened,) = of(CallOpened, server.read(frame(HEADERS, LAST_HEADERS, 1, call + field)))
    known = dict(opened.head.metadata)
    assert "h2spec" in known.values() or what == "an indexed field"


@pytest.mark.parametrize("sizes", [b"\x20", b"\x3f\xe1\x1f", b"\x20\x3f\xe1\x1f"])
def test_a_block_may_begin_with_sizes_of_the_table(sizes: bytes) -> None:
    """h2spec generic/5/15 and 16."""
    server = Server()
    assert of(CallOpened, server.read(frame(HEADERS, LAST_HEADERS, 1, sizes + SHORT)))


@pytest.mark.parametrize(("_", "_case", "sent"), BAD, ids=[row[0] for row in BAD])
def test_a_block_that_cannot_be_decoded_ends_the_connection(
    _: str, _case: str, sent: bytes
) -> None:
    server = Server()
    server.read(frame(HEADERS, LAST_HEADERS, 1, sent))
    assert server.fault == "COMPRESSION_ERROR"


def test_what_hpack_encodes_is_decoded_alike_with_all_its_means() -> None:
    """3.2 and 4.4: entries leave a table that is full, or whose size shrinks."""
    server = Server()
    encoder = hpack.Encoder()
    for call in range(200):
        if call % 50 == 49:
            encoder.header_table_size = (0, 100, 1000, 4096)[call // 50]
        more = [(b"x-%d" % (call * each % 23), b"v%d" % each * (call % 97)) for each in range(5)]
        sent = encoder.encode([*CALL, *more], huffman=bool(call % 3))
        events = server.serve(frame(HEADERS, LAST_HEADERS, 2 * call + 1, sent))
        (opened,) = of(CallOpened, events)
        assert [(k.encode(), v.encode()) for k, v in opened.head.metadata] == more


PARTS = [
    b"\x82",
    b"\xbe",
    b"\xbf",
    b"\xff\x03",
    b"\x80",
    b"\x20",
    b"\x3f\x45",
    b"\x3f\xe1\x1f",
    b"\x40\x01a\x01b",
    b"\x42\x03GET",
    b"\x7e\x01c",
    b"\x00\x01x\x00",
    b"\x10\x01y\x01z",
    b"\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff",
    b"\x0f\x2b\x06h2spec",
    b"\x40\x01q\x7f\x21" + b"v" * 160,
    b"\x44\x7f\xf1\x1e" + b"w" * 4080,
]
blocks = st.lists(
    st.builds(
        lambda parts, noise, at: b"".join(parts)[:at] + noise + b"".join(parts)[at:],
        st.lists(st.sampled_from(PARTS), max_size=12),
        st.just(b"") | st.binary(max_size=3),
        st.integers(0, 50),
    ),
    max_size=6,
)


@given(sent=blocks)
def test_blocks_are_decoded_as_hpack_decodes_them(sent: list[bytes]) -> None:
    ours, theirs = Decoder(20_000), hpack.Decoder(20_000)
    for each in sent:
        expected: list[tuple[bytes, bytes]] | None = None
        with contextlib.suppress(hpack.HPACKError):
            expected = [(name, value) for name, value in theirs.decode(each, raw=True)]
        try:
            fields, size = ours.decode(each)
        except (BadBlock, TooManyFields):
            # Only more changes of the size than a block may have are refused by us alone.
            assert expected is None or each.count(b"\x20") + each.count(b"\x3f") > 2
            return
        assert fields == expected
        assert size == sum(len(name) + len(value) + 32 for name, value in fields)


# -- blocks that are remembered --


def test_a_repeated_block_is_not_decoded_again() -> None:
    decoder = BlockDecoder(10_000)
    first = decoder.decode(SHORT, RequestHead)
    assert decoder.fields == len(CALL)
    assert decoder.decode(SHORT, RequestHead) is first
    assert decoder.fields == 0


def test_a_block_is_decoded_again_after_the_table_has_changed() -> None:
    decoder = BlockDecoder(10_000)
    # 62 is the newest entry of the table.
    decoder.decode(SHORT + b"\x40\x01a\x01b", RequestHead)
    assert decoder.decode(SHORT + b"\xbe", RequestHead).metadata == (("a", "b"),)
    decoder.decode(SHORT + b"\x40\x01c\x01d", RequestHead)
    assert decoder.decode(SHORT + b"\xbe", RequestHead).metadata == (("c", "d"),)


def test_a_malformed_block_that_changes_the_table_counts_as_well() -> None:
    decoder = BlockDecoder(10_000)
    decoder.decode(SHORT + b"\x40\x01a\x01b", RequestHead)
    assert decoder.decode(SHORT + b"\xbe", RequestHead).metadata == (("a", "b"),)
    with pytest.raises(StreamFault):
        decoder.decode(b"\x40\x01c\x01d", RequestHead)  # a request without a path
    assert decoder.decode(SHORT + b"\xbe", RequestHead).metadata == (("c", "d"),)


def test_a_table_that_is_emptied_and_filled_alike_counts_as_changed() -> None:
    decoder = BlockDecoder(10_000)
    decoder.decode(SHORT + b"\x40\x01a\x01b", RequestHead)
    decoder.decode(SHORT + b"\xbe", RequestHead)
    decoder.decode(b"\x20" + SHORT, RequestHead)
    with pytest.raises(ConnectionFault):
        decoder.decode(SHORT + b"\xbe", RequestHead)


def test_a_block_is_remembered_for_what_it_was_decoded_as() -> None:
    class Other:
        def __init__(self, fields: object) -> None:
            self.fields = fields

    decoder = BlockDecoder(10_000)
    decoder.decode(SHORT, RequestHead)
    assert isinstance(decoder.decode(SHORT, Other), Other)
    assert isinstance(decoder.decode(SHORT, RequestHead), RequestHead)


def test_few_bytes_of_blocks_are_remembered() -> None:
    decoder = BlockDecoder(100_000)
    for call in range(200):
        decoder.decode(SHORT + literal(b"x", b"%d" % call * 100), RequestHead)
        assert sum(map(len, decoder.known)) <= 32 << 10
    assert decoder.known
    decoder.decode(SHORT + literal(b"x", b"y" * 50_000), RequestHead)
    assert max(map(len, decoder.known)) <= 8192


def test_what_remembered_blocks_mean_takes_little_however_short_they_are() -> None:
    decoder = BlockDecoder(24_000)
    decoder.decode(SHORT + b"\x40" + literal(b"x", b"v" * 3000)[1:], RequestHead)
    for call in range(2000):  # 62, the newest entry of the table, is a byte in a block
        head = decoder.decode(SHORT + b"\xbe" * 2 + literal(b"i", b"%d" % call), RequestHead)
        assert [len(value) for _, value in head.metadata[:2]] == [3000, 3000]
        kept = decoder.known.values()
        assert sum(len(value) for each in kept for _, value in each.metadata) <= 32 << 10
    assert decoder.known


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 254, 255, 16_384, 70_000])
def test_a_literal_is_read_by_hpack(length: int) -> None:
    """5.1, 5.2, 6.2.2."""
    found = list(hpack.Decoder(1 << 20).decode(literal(b"x" * 130, b"y" * length), raw=True))
    assert found == [(b"x" * 130, b"y" * length)]


@pytest.mark.parametrize("ways", ["answer", "finish", "open", "call"])
def test_a_peer_that_wants_a_smaller_table_is_told_by_the_next_block(ways: str) -> None:
    """4.2: decoders insist on it, as nghttp2's, even if no block ever uses the table."""
    decoder = hpack.Decoder()
    end = Server() if ways in ("answer", "finish") else Client()
    for stream, size in ((1, 4096), (3, 100), (5, 4096), (7, 0)):
        end.read(settings((1, size)))
        decoder.max_allowed_table_size = size
        if isinstance(end, Client):
            send = end.wire.open if ways == "open" else partial(end.wire.call, message=b"")
            send(block=literal(b"some", b"field"), now=end.now)
        elif ways == "answer":
            end.wire.answer(end.open(stream, end=True), b"")
        else:
            end.wire.finish(end.open(stream, end=True))
        blocks = [each.payload for each in end.sent_of(HEADERS)]
        assert blocks
        for each in blocks:
            assert decoder.decode(each)
