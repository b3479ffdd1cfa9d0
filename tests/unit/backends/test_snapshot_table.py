"""The canonical table: what it looks like, how little of it is read, and what is refused."""

from __future__ import annotations

import io
import random
import tracemalloc
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from headrace.backends.table import (
    Rows,
    TableWriter,
    groups_of,
    pack_time,
    read_table,
    rows_by_group,
    unpack_time,
)
from headrace.checkpoint.handles import StateFile
from headrace.errors import DamagedCheckpointError, UnsupportedFormatError
from headrace.state.key_groups import key_group
from headrace.state.keys import stored_form


class CountingStore:
    """Holds one file in memory and counts the bytes that are read of it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.taken = 0

    def open(self, file: StateFile) -> Any:
        store = self

        class Reader(io.BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                found = super().read(size)
                store.taken += len(found)
                return found

        return Reader(self.data)


def table(keys: list[Any], values: list[bytes], groups: int = 16, *, compression: bool = False) -> tuple[bytes, bytes]:
    writer = TableWriter(compression=compression)
    rows = rows_by_group(Rows(keys, None, None, values), groups_of(keys, groups))
    data = b"".join(block for group in sorted(rows) for block in writer.group(group, [(0, rows[group])]))
    return data, writer.index()


def read(data: bytes, index: bytes, groups: range = range(16), shapes: int = 1) -> tuple[dict[Any, bytes], int]:
    store = CountingStore(data)
    found = {}
    for group, _, rows in read_table(StateFile(len(data), ""), index, shapes, store, groups):  # type: ignore[arg-type]
        assert rows.values is not None
        for key, value in zip(rows.keys, rows.values, strict=True):
            assert key_group(key, 16) == group
            found[key] = value
    return found, store.taken


MIXED = [stored_form(key) for key in (1, "1", 1.0, True, b"1", (1, "a"), 2**63, 2**64, 2**99, "\ud800", "")]


@pytest.mark.parametrize("compression", [False, True])
def test_keys_of_every_kind_come_back(compression: bool) -> None:
    values = [str(i).encode() for i in range(len(MIXED))]
    assert read(*table(MIXED, values, compression=compression))[0] == dict(zip(MIXED, values, strict=True))


@pytest.mark.parametrize(
    "keys",
    [
        list(range(-50, 50)),
        [f"k{i}" for i in range(100)],
        MIXED,
        ["é", "ü" * 40, "", "a", "e\u0301"],
        [1, "2"],
        ["2", 1],
        ["a", b"b"],
        [b"b", "a"],
        [1, 2**70],
        [],
    ],
)
def test_groups_of_a_column_are_those_of_its_keys(keys: list[Any]) -> None:
    assert groups_of(keys, 128).tolist() == [key_group(key, 128) for key in keys]


def test_rows_keep_their_order_within_a_group() -> None:
    rows = rows_by_group(Rows(list("abcdef"), None, None, [b"%d" % i for i in range(6)]), np.array([1, 0, 1, 0, 1, 5]))
    assert {group: found.keys for group, found in rows.items()} == {0: ["b", "d"], 1: ["a", "c", "e"], 5: ["f"]}
    assert rows[1].values == [b"0", b"2", b"4"]


@pytest.mark.parametrize("compression", [False, True])
def test_a_reader_takes_its_own_groups_and_no_other_bytes(compression: bool) -> None:
    keys = [f"key-{i}" for i in range(4000)]
    data, index = table(keys, [b"v" * 50] * len(keys), compression=compression)
    found, taken = read(data, index, range(4, 6))
    assert set(found) == {key for key in keys if key_group(key, 16) in (4, 5)}
    assert taken < len(data) / 6


def test_large_values_are_cut_into_small_blocks() -> None:
    keys = list(range(40))
    data, _ = table(keys, [bytes(1 << 20)] * 40, groups=1)
    sizes = []
    offset = 0
    while offset < len(data):
        size = int.from_bytes(data[offset : offset + 4], "big")
        sizes.append(size)
        offset += 8 + size
    assert len(sizes) >= 10
    assert max(sizes) < 5 << 20


def test_a_compressed_table_is_smaller_and_holds_the_same() -> None:
    keys = [f"key-{i}" for i in range(4000)]
    values = [f'{{"sensor": {i % 7}, "unit": "celsius"}}'.encode() for i in range(len(keys))]
    plain, packed = table(keys, values), table(keys, values, compression=True)
    assert len(packed[0]) < len(plain[0]) / 2
    assert read(*packed)[0] == read(*plain)[0]


@pytest.mark.parametrize("value", [bytes(40 << 20), random.Random(1).randbytes(1000)], ids=["too good", "too bad"])
def test_what_shrinks_beyond_belief_or_not_at_all_is_stored_plain(value: bytes) -> None:
    data, index = table(["k"], [value], compression=True)
    assert len(data) > len(value)
    assert read(data, index)[0] == {"k": value}


def packed_block(body: bytes, raw_size: int) -> tuple[bytes, bytes]:
    """A table of one block of key group 0, with checksums that fit, as a forger would make it."""
    data = raw_size.to_bytes(4, "big") + body
    block = len(data).to_bytes(4, "big") + crc32(data).to_bytes(4, "big") + data
    return block, msgspec.msgpack.encode((2, [(0, 0, len(block))]))


def test_a_bomb_is_refused_by_the_size_it_declares_or_by_what_comes_out_of_it() -> None:
    zstd = pa.Codec("zstd")
    gigabyte = zstd.compress(bytes(1 << 30), asbytes=True)
    assert len(gigabyte) < 1 << 20
    tracemalloc.start()
    try:
        for raw_size in (1 << 30, (1 << 32) - 1, 33 << 20, len(gigabyte), 4 << 20):
            with pytest.raises(DamagedCheckpointError):
                read(*packed_block(gigabyte, raw_size))
        small = zstd.compress(bytes(30 << 20), asbytes=True)
        with pytest.raises(DamagedCheckpointError, match="claims to hold"):
            read(*packed_block(small, 30 << 20))
        for body in (b"", b"no zstd at all"):
            with pytest.raises(DamagedCheckpointError):
                read(*packed_block(body, 100))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("compression", [False, True])
def test_mutated_tables_are_refused_with_a_typed_error(compression: bool) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    dice = random.Random(seed)
    keys = [f"key-{i}" for i in range(60)]
    data, index = table(keys, [b"value"] * 60, compression=compression)
    whole = read(data, index)[0]
    for _ in range(2_000):
        which = bytearray(data if dice.random() < 0.7 else index)
        is_data = len(which) == len(data)
        for _ in range(dice.randrange(1, 4)):
            which[dice.randrange(len(which))] = dice.randrange(256)
        try:
            found = read(bytes(which), index)[0] if is_data else read(data, bytes(which))[0]
        except (DamagedCheckpointError, UnsupportedFormatError):
            continue
        assert found.items() <= whole.items()


@pytest.mark.parametrize(
    "groups", [[(0, 0, 2**62)], [(0, -8, 16)], [(0, 8, 8)], [(0, 0, 0)], [(0, 0, 8), (1, 4, 8)], [(0, 0, -1)]]
)
def test_an_index_that_does_not_fit_the_file_is_refused(groups: Any) -> None:
    with pytest.raises(DamagedCheckpointError):
        read(bytes(16), msgspec.msgpack.encode((1, groups)))


def test_a_newer_version_is_refused_by_its_number() -> None:
    with pytest.raises(UnsupportedFormatError, match="version 3"):
        read(b"", msgspec.msgpack.encode((3, ())))


def test_rows_of_a_state_that_was_not_named_are_refused() -> None:
    data, index = table(["a"], [b"v"])
    with pytest.raises(DamagedCheckpointError, match="state 0"):
        read(data, index, shapes=0)


def test_times_sort_as_bytes_before_1970_too() -> None:
    times = [-(2**63), -5, 0, 5, 2**63 - 1]
    assert sorted(map(pack_time, times)) == [pack_time(time) for time in times]
    assert [unpack_time(pack_time(time)) for time in times] == times
