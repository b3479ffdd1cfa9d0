"""Key groups: single keys and whole columns agree, subtasks share the groups out without gap or overlap."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigurationError
from headrace.state.key_groups import (
    DEFAULT_MAX_PARALLELISM,
    MAX_MAX_PARALLELISM,
    check_parallelism,
    group_range,
    key_group,
    key_groups_of_ints,
    key_groups_of_string_array,
    key_groups_of_strings,
    key_hash,
    subtask_of_group,
)
from headrace.state.keys import stored_form

limits = st.integers(1, MAX_MAX_PARALLELISM)
longs = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(longs), limits)
def test_a_column_of_ints_has_the_groups_of_its_keys(keys, limit):
    groups = key_groups_of_ints(np.array(keys, np.int64), limit)
    assert groups.tolist() == [key_group(k, limit) for k in keys]


@given(st.lists(st.text()), limits)
def test_a_column_of_strings_has_the_groups_of_its_keys(keys, limit):
    assert key_groups_of_strings(keys, limit).tolist() == [key_group(k, limit) for k in keys]


# Sizes around the ends of words and around 256 bytes, and characters of one to four bytes.
keys_of_all_sizes = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.text("aé日𝄞\0", max_size=40),
    st.builds(lambda c, n: c * n, st.sampled_from("aé日𝄞\0"), st.integers(0, 300)),
)


@given(st.lists(keys_of_all_sizes, max_size=30), st.integers(0, 30), st.integers(0, 30), st.booleans(), limits)
def test_an_arrow_column_and_any_slice_of_it_has_the_groups_of_its_keys(keys, start, length, large, limit):
    array = pa.array(keys, pa.large_string() if large else pa.string()).slice(start, length)
    groups = key_groups_of_string_array(array, limit)
    assert groups.dtype == np.int64
    assert groups.tolist() == [key_group(k, limit) for k in keys[start : start + length]]


@given(st.integers(0, 300), st.integers(1, 20), limits)
def test_keys_of_one_size_have_their_groups(size, count, limit):
    keys = [chr(ord("a") + i) * size for i in range(count)]
    for start in range(min(3, count)):
        array = pa.array(keys, pa.string()).slice(start)
        assert key_groups_of_string_array(array, limit).tolist() == [key_group(k, limit) for k in keys[start:]]


def test_other_arrow_forms_of_text_have_the_same_groups():
    keys = ["a", "b", "a", "", "sensor-1"]
    expected = [key_group(k, 128) for k in keys]
    for array in (pa.array(keys).dictionary_encode(), pa.array(keys, pa.string_view())):
        assert key_groups_of_string_array(array, 128).tolist() == expected


def test_a_column_that_came_by_ipc_has_its_groups():
    batch = pa.record_batch({"k": [f"sensor-{i}" for i in range(100)] + ["x" * 300, ""]})
    again = pa.ipc.read_record_batch(pa.ipc.read_message(batch.serialize()), batch.schema).column(0)
    assert key_groups_of_string_array(again, 100).tolist() == [key_group(k, 100) for k in batch.column(0).to_pylist()]


def test_zeros_at_the_end_make_another_key():
    keys = ["a" + "\0" * n for n in range(10)]
    assert len({key_hash(k) for k in keys}) == len(keys)
    assert len({key_hash(k.encode()) for k in keys} | {key_hash(k) for k in keys}) == 2 * len(keys)


def test_lone_surrogates_have_a_group_in_both_forms():
    assert key_groups_of_strings(["a", "\ud800"], 128).tolist() == [key_group("a", 128), key_group("\ud800", 128)]


@given(
    st.one_of(st.text(), st.integers(), st.binary(), st.floats(), st.booleans(), st.tuples(st.text(), st.integers())),
    limits,
)
def test_every_key_has_a_hash_of_32_bits_and_a_group_within_the_limit(key, limit):
    stored = stored_form(key)
    assert 0 <= key_hash(stored) < 2**32
    assert 0 <= key_group(stored, limit) < limit


def test_a_slice_of_a_column_with_a_stride_is_fine():
    column = np.arange(20, dtype=np.int64)[::2]
    assert key_groups_of_ints(column, 128).tolist() == [key_group(int(k), 128) for k in column]


@given(st.data(), limits)
def test_the_ranges_of_all_subtasks_cover_every_group_once(data, limit):
    parallelism = data.draw(st.integers(1, min(limit, 300)))
    ranges = [group_range(s, parallelism, limit) for s in range(parallelism)]
    assert [g for r in ranges for g in r] == list(range(limit))
    assert all(subtask_of_group(g, parallelism, limit) == s for s, r in enumerate(ranges) for g in (r[0], r[-1]))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


USUAL_KEYS = {
    "ints": range(100_000),
    "ints by 1024": range(0, 100_000 * 1024, 1024),
    "high ints": [i << 40 for i in range(100_000)],
    "sensors": [f"sensor-{i}" for i in range(100_000)],
    "digits": [f"{i:08d}" for i in range(100_000)],
    "hex": [f"{i:016x}" for i in range(100_000)],
    "mail": [f"user{i}@example.com" for i in range(100_000)],
    "both ends": [f"{a}567812345678{b}" for a in range(300) for b in range(300)],
    "zeros": ["u" + "0" * i + str(j) for i in range(60) for j in range(1, 1_000)],
    "long": ["x" * 256 + str(i) for i in range(50_000)],
    "bytes": [str(i).encode() for i in range(100_000)],
    "tuples": [stored_form(("user", i)) for i in range(100_000)],
    "floats": [stored_form(float(i)) for i in range(100_000)],
}


@pytest.mark.parametrize("keys", USUAL_KEYS.values(), ids=USUAL_KEYS)
@pytest.mark.parametrize("limit", [DEFAULT_MAX_PARALLELISM, 100, 4096])
def test_usual_keys_spread_evenly(keys, limit):
    counts = np.bincount([key_group(k, limit) for k in keys], minlength=limit)
    expected = len(keys) / limit
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    # Of a fair draw, chi squared has mean limit - 1 and variance 2 (limit - 1); six deviations are room enough.
    assert chi_squared < limit - 1 + 6 * (2 * (limit - 1)) ** 0.5


def test_parallelism_out_of_bounds_is_refused_by_name():
    check_parallelism(128, 128, "env")
    for parallelism, limit in ((0, 128), (129, 128), (1, 0), (1, MAX_MAX_PARALLELISM + 1)):
        with pytest.raises(ConfigurationError, match='operator "alerts"'):
            check_parallelism(parallelism, limit, 'operator "alerts"')
