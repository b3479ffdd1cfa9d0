"""Cells: what is written is what is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.task.cells import (
    BARRIER,
    END,
    IDLE,
    NUDGE,
    NUDGE_CELL,
    RECORDS,
    RECORDS_HEADER,
    WATERMARK,
    Address,
    Barrier,
    address_of,
    end_cell,
    idle_cell,
    read_idle,
    read_records_header,
    read_watermark,
    records_header,
    watermark_cell,
)

u16 = st.integers(0, 65_535)
addresses = st.builds(Address, u16, u16, u16)


@given(addresses, st.integers(0, 255), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_the_header_of_records_comes_back(address: Address, flags: int, born_us: int, count: int) -> None:
    data = records_header(address, flags, born_us, count) + b"payload"
    assert data[0] == RECORDS
    assert read_records_header(data) == (address, flags, born_us, count)
    assert address_of(data) == address
    assert data[RECORDS_HEADER:] == b"payload"


@given(addresses, st.integers(-(2**63), 2**63 - 1), st.booleans())
def test_watermark_idle_and_end_come_back(address: Address, time_ms: int, idle: bool) -> None:
    watermark, rest, end = watermark_cell(address, time_ms), idle_cell(address, idle), end_cell(address)
    assert [c[0] for c in (watermark, rest, end)] == [WATERMARK, IDLE, END]
    assert (read_watermark(watermark), read_idle(rest)) == (time_ms, idle)
    assert {address_of(c) for c in (watermark, rest, end)} == {address}


@given(st.builds(Barrier, st.integers(1, 2**63), st.booleans(), st.booleans(), st.booleans(), st.booleans()))
def test_a_barrier_comes_back(barrier: Barrier) -> None:
    assert barrier.encode()[0] == BARRIER
    assert Barrier.decode(barrier.encode()) == barrier


@pytest.mark.parametrize(
    ("data", "hexadecimal"),
    [
        (records_header(Address(1, 2, 3), 4, 5, 6), "01 0100 0200 0300 04 0500000000000000 06000000"),
        (watermark_cell(Address(1, 2, 3), -1), "02 0100 0200 0300 ffffffffffffffff"),
        (idle_cell(Address(1, 2, 3), True), "03 0100 0200 0300 01"),
        (end_cell(Address(1, 2, 3)), "04 0100 0200 0300"),
        (Barrier(7, unaligned=True, stopping=True).encode(), "05 0700000000000000 05"),
        (Barrier(7, canonical=True, stopping=True, drain=True).encode(), "05 0700000000000000 0e"),
        (NUDGE_CELL, "00"),
    ],
)
def test_the_bytes_are_those_drawn_at_the_top_of_the_file(data: bytes, hexadecimal: str) -> None:
    """Channel state holds cells, so their layout is part of the checkpoint format."""
    assert data.hex() == hexadecimal.replace(" ", "")
    assert NUDGE == 0
