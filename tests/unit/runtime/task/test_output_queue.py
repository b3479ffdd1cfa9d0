"""The output queue: order, nudges, limits, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from headrace.operators.base import Attention
from headrace.runtime.task.cells import NUDGE_CELL
from headrace.runtime.task.output import HARD_LIMIT, ROWS_AT_ONCE, SOFT_LIMIT, OutputClosed, OutputQueue

PATIENCE_S = 60.0


def rows(batch: pa.RecordBatch) -> list[tuple[int, int, bytes]]:
    return list(zip(*(batch.column(n).to_pylist() for n in range(3)), strict=True))


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def joined(thread: threading.Thread) -> bool:
    thread.join(PATIENCE_S)
    return not thread.is_alive()


def pull(batches: Iterator[pa.RecordBatch]) -> list[tuple[int, bytes]]:
    return [(slot, data) for slot, _, data in rows(next(batches))]


def test_every_channel_that_was_written_to_gets_a_nudge_after_its_last_cell() -> None:
    queue = OutputQueue(4, 3, Attention())
    queue.put(2, b"a")
    queue.put(0, b"b")
    batches = queue.batches()
    assert rows(next(batches)) == [(2, 4, b"a"), (0, 4, b"b")]
    assert pull(batches) == [(0, NUDGE_CELL), (2, NUDGE_CELL)]
    queue.put(1, b"c")
    assert pull(batches) == [(1, b"c")]
    assert pull(batches) == [(1, NUDGE_CELL)]
    queue.finish()
    assert list(batches) == []
    assert queue.cells_sent == 6


def test_there_are_no_nudges_while_cells_keep_coming() -> None:
    queue = OutputQueue(0, 2, Attention())
    for n in range(2 * ROWS_AT_ONCE):
        queue.put(n % 2, bytes([n]))
    batches = queue.batches()
    taken = pull(batches) + pull(batches)
    assert taken == [(n % 2, bytes([n])) for n in range(2 * ROWS_AT_ONCE)]
    assert pull(batches) == [(0, NUDGE_CELL), (1, NUDGE_CELL)]


def test_the_last_nudge_is_sent_even_if_the_task_has_finished() -> None:
    queue = OutputQueue(0, 1, Attention())
    queue.put(0, b"a")
    queue.finish()
    assert [data for batch in queue.batches() for _, _, data in rows(batch)] == [b"a", NUDGE_CELL]


def test_a_barrier_goes_to_every_slot_and_the_last_level_has_none() -> None:
    queue = OutputQueue(0, 3, Attention())
    queue.put_all(b"barrier")
    assert pull(queue.batches()) == [(0, b"barrier"), (1, b"barrier"), (2, b"barrier")]
    last = OutputQueue(0, 0, Attention())
    last.put_all(b"barrier")
    last.finish()
    assert last.is_last_level
    assert list(last.batches()) == []


def test_above_the_soft_limit_the_mailbox_is_called_and_below_it_is_told() -> None:
    attention, room = Attention(), threading.Event()
    queue = OutputQueue(0, 1, attention)
    queue.on_room(room)
    queue.put(0, bytes(SOFT_LIMIT))
    assert not queue.full
    assert not attention.raised
    queue.put(0, b"x")
    assert queue.full
    assert attention.raised
    pull(queue.batches())
    assert not queue.full
    assert room.is_set()


def test_above_the_hard_limit_even_the_record_in_hand_waits_until_spark_has_taken_some() -> None:
    queue = OutputQueue(0, 1, Attention())
    chunk = bytes(SOFT_LIMIT)
    writer = in_thread(lambda: [queue.put(0, chunk) for _ in range(40)])
    batches = queue.batches()
    taken = 0
    while taken < 40:
        taken += sum(data != NUDGE_CELL for _, data in pull(batches))
        assert queue._bytes <= HARD_LIMIT + SOFT_LIMIT
    assert joined(writer)


def test_one_cell_beyond_the_hard_limit_wakes_a_generator_that_sleeps() -> None:
    queue = OutputQueue(0, 1, Attention())
    taken: list[int] = []
    reader = in_thread(lambda: taken.append(len(pull(queue.batches())[0][1])))
    writer = in_thread(lambda: queue.put(0, bytes(HARD_LIMIT + 1)))
    assert joined(writer), "the writer waits for a generator that nobody woke"
    assert joined(reader)
    assert taken == [HARD_LIMIT + 1]


def test_closing_releases_whoever_waits_and_refuses_what_comes_later() -> None:
    queue = OutputQueue(0, 1, Attention())
    ended: list[str] = []

    def write() -> None:
        try:
            queue.put(0, bytes(HARD_LIMIT + 1))
        except OutputClosed:
            ended.append("writer")

    writer = in_thread(write)
    while not queue.full:
        threading.Event().wait(0.001)
    queue.close()
    assert joined(writer)
    assert ended == ["writer"]
    assert list(queue.batches()) == []
    with pytest.raises(OutputClosed):
        queue.put(0, b"late")


def test_closing_ends_a_generator_that_sleeps() -> None:
    queue = OutputQueue(0, 1, Attention())
    reader = in_thread(lambda: list(queue.batches()))
    queue.close()
    assert joined(reader)
