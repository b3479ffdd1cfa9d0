"""Records sorted by key and time, in memory and on disk."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Row
from headrace.operators import sorted_records
from headrace.operators.sorted_records import Record, SortedRecords
from headrace.state.keys import encode_key, stored_form

KEYS = st.sampled_from(["a", "b", "ключ", 1, 1.0, True, b"1", ("a", 1), 2**70])
RECORDS = st.lists(
    st.tuples(KEYS, st.none() | st.integers(-5, 5), st.integers(0, 1), st.integers() | st.text(max_size=3)), max_size=60
)


def given_out(found: SortedRecords) -> list[tuple[Any, Record]]:
    return [(key, record) for key, records in found for record in records]


@settings(max_examples=80, deadline=None)
@given(records=RECORDS, every=st.sampled_from([1, 3, 10_000]), chunk=st.sampled_from([1, 2, 256]))
def test_records_come_out_by_key_and_time_and_as_they_came_whatever_is_on_disk(
    records: list[tuple[Any, int | None, int, Any]], every: int, chunk: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # A look at the memory after so many records, which finds it full at once.
        patch.setattr(sorted_records, "_SAMPLE_EVERY", every)
        patch.setattr(sorted_records, "CHUNK", chunk)
        found = SortedRecords(memory_bytes=1)
        for key, time, number, value in records:
            found.add(stored_form(key), Record(time, number, value))
        assert found.runs == len(records) // every
        rank = lambda item: (encode_key(item[0]), item[1].time is not None, item[1].time or 0, item[1].input)  # noqa: E731
        wanted = sorted(((stored_form(k), Record(t, n, v)) for k, t, n, v in records), key=rank)
        assert given_out(found) == wanted
        found.close()


@pytest.mark.parametrize("memory", [1, 1 << 30])
def test_records_without_a_key_keep_their_order(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_records, "_SAMPLE_EVERY", 10)
    found = SortedRecords(memory, in_order=True)
    records = [Record(-i, 0, Row(number=i)) for i in range(95)]
    for record in records:
        found.add(None, record)
    assert bool(found.runs) == (memory == 1)
    assert [record for _, record in given_out(found)] == records
    found.close()


def test_large_records_go_to_disk_before_small_ones_would() -> None:
    large, small = SortedRecords(1 << 22), SortedRecords(1 << 22)
    for number in range(4_000):
        large.add(number, Record(None, 0, "x" * 1_000))
        small.add(number, Record(None, 0, number))
    assert large.runs > 0
    assert small.runs == 0
    assert sum(len(records) for _, records in large) == 4_000
    large.close()
