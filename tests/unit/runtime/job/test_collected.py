"""Results that the driver has collected: each item once, and nothing remembered of old ones."""

from __future__ import annotations

import sys

from headrace.runtime.job.collected import CollectedResults
from headrace.state.object_batches import BatchCodec


def test_what_two_deliver_is_taken_once_and_in_order() -> None:
    results = CollectedResults()
    for checkpoint_id in (1, 2, 1, 2, 3, 2):
        results.take("all", "op", 0, checkpoint_id, BatchCodec().encode([checkpoint_id]))
    results.take("all", "op", 1, 1, BatchCodec().encode(["another subtask"]))
    results.take("all", "op", 0, 0, BatchCodec().encode(["at once"]))
    results.take("all", "op", 0, 0, BatchCodec().encode(["at once"]))
    results.end()
    assert list(results.iterate("all")) == [1, 2, 3, "another subtask", "at once", "at once"]


def test_what_is_remembered_does_not_grow_with_the_checkpoints() -> None:
    results = CollectedResults()
    for checkpoint_id in range(1, 10_000):
        results.take("all", "op", checkpoint_id % 2, checkpoint_id, BatchCodec().encode([]))
    assert sys.getsizeof(results._newest) < 1_000
    assert len(results._newest) == 2


def test_numbers_of_another_history_do_not_hide_own_results() -> None:
    results = CollectedResults()
    for _ in range(2):
        # A savepoint of another job is restored, twice: the second attempt begins from it again.
        results.take("all", "op", 0, 50, BatchCodec().encode(["of the savepoint"]), origin="another history")
    for checkpoint_id in (1, 50):
        results.take("all", "op", 0, checkpoint_id, BatchCodec().encode([checkpoint_id]))
    results.end()
    assert list(results.iterate("all")) == ["of the savepoint", 1, 50]
