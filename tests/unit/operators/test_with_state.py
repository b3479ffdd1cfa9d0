"""`map_with_state` and `flat_map_with_state`: a value for each key, until the function returns None for it."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.testing import OperatorHarness

STATE = "_state"
BACKENDS = pytest.mark.parametrize("backend", ["heap", "rocksdb"])
CALLS = pytest.mark.parametrize("call", ["map_with_state", "flat_map_with_state"])


def count_to_three(word: str, seen: int | None) -> tuple[Any, int | None]:
    """Counts a word; with the third one it begins anew."""
    count = (seen or 0) + 1
    return (word, count), count if count < 3 else None


def count_to_three_in_lists(word: str, seen: int | None) -> tuple[Any, int | None]:
    """The same, and tells of the third ones only."""
    result, count = count_to_three(word, seen)
    return ([result, "again"] if count is None else None), count


def harness(call: str, backend: str) -> OperatorHarness:
    function = count_to_three if call == "map_with_state" else count_to_three_in_lists
    return OperatorHarness.of(
        lambda words: getattr(words.key_by(lambda word: word), call)(function, state_type=int), str, backend=backend
    )


@BACKENDS
def test_a_map_that_returns_none_for_the_state_begins_anew(backend: str) -> None:
    with harness("map_with_state", backend) as words:
        words.process_all(["a", "b", "a", "a", "a", "b"])
        assert words.take() == [("a", 1), ("b", 1), ("a", 2), ("a", 3), ("a", 1), ("b", 2)]


@BACKENDS
def test_a_flat_map_that_returns_none_for_the_state_begins_anew(backend: str) -> None:
    with harness("flat_map_with_state", backend) as words:
        words.process_all(["a", "b", "a", "a"])
        assert words.take() == [("a", 3), "again"]
        words.process_all(["a", "a", "b"])
        assert words.take() == []
        words.process_all(["a", "b"])
        assert words.take() == [("a", 3), "again", ("b", 3), "again"]


@CALLS
@BACKENDS
def test_nothing_is_kept_of_a_key_whose_state_was_cleared_after_a_restore_neither(call: str, backend: str) -> None:
    with harness(call, backend) as words:
        words.process_all(["a", "b", "a"])
        words.snapshot()
        words.process("a")
        assert (words.keys(STATE), words.state(STATE, "a"), words.state(STATE, "b")) == (["b"], None, 1)
        words.snapshot()
        words.crash(parallelism=2)
        assert (words.keys(STATE), words.state(STATE, "a"), words.state(STATE, "b")) == (["b"], None, 1)
        words.process("a")
        assert words.state(STATE, "a") == 1


@CALLS
@BACKENDS
def test_a_cleared_state_is_back_if_the_job_goes_back_behind_the_clearing(call: str, backend: str) -> None:
    with harness(call, backend) as words:
        words.process_all(["a", "a"])
        words.snapshot()
        words.process("a")
        assert words.keys(STATE) == []
        words.crash()
        assert words.state(STATE, "a") == 2


@CALLS
@BACKENDS
def test_a_function_that_never_keeps_anything_leaves_no_key(call: str, backend: str) -> None:
    def forgetful(word: str, state: int | None) -> tuple[Any, None]:
        return [(word, state)], None

    with OperatorHarness.of(
        lambda words: getattr(words.key_by(lambda word: word), call)(forgetful, state_type=int), str, backend=backend
    ) as words:
        words.process_all(["a", "a", "b"])
        assert words.keys(STATE) == []
        told = words.take() if call == "flat_map_with_state" else [result for (result,) in words.take()]
        assert told == [("a", None), ("a", None), ("b", None)]
