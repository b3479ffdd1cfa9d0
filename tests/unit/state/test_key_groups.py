"""Key groups: single keys and whole columns agree, subtasks share the groups out without gap or overlap."""

from __future__ import annotations

import numpy as np
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


@pytest.mark.parametrize(
    "keys",
    [
        range(100_000),
        range(0, 100_000 * 1024, 1024),
        [i << 40 for i in range(100_000)],
        [f"sensor-{i}" for i in range(100_000)],
        [f"{i:08d}" for i in range(100_000)],
        [str(i).encode() for i in range(100_000)],
        [stored_form(("user", i)) for i in range(100_000)],
        [stored_form(float(i)) for i in range(100_000)],
    ],
    ids=["ints", "ints by 1024", "high ints", "sensors", "digits", "bytes", "tuples", "floats"],
)
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
