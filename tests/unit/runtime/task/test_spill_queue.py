"""The queue of cells that goes to disk when it grows."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.runtime.task.spill import SpillQueue


def test_the_first_cells_stay_in_memory_and_the_rest_lies_on_disk_in_order(tmp_path: Path) -> None:
    queue = SpillQueue(tmp_path, memory_limit=10)
    cells = [(n % 3 - 1, bytes([n]) * 4) for n in range(20)]
    for channel, data in cells:
        queue.append(channel, data)
    assert queue.spilled == 18
    assert queue.total_bytes == 80
    assert list(queue) == cells, "looking takes nothing away"
    assert [queue.popleft() for _ in range(len(queue))] == cells
    assert (len(queue), queue.spilled, queue.total_bytes) == (0, 0, 0)


def test_what_follows_a_spilled_cell_is_spilled_even_if_memory_became_free(tmp_path: Path) -> None:
    queue = SpillQueue(tmp_path, memory_limit=4)
    queue.append(0, b"aaaa")
    queue.append(0, b"bbbb")
    assert queue.popleft() == (0, b"aaaa")
    queue.append(0, b"cc")
    assert queue.spilled == 2
    assert [queue.popleft(), queue.popleft()] == [(0, b"bbbb"), (0, b"cc")]
    queue.append(0, b"dd")
    assert queue.spilled == 0, "a drained file is forgotten"


def test_without_a_directory_everything_stays_in_memory() -> None:
    queue = SpillQueue(None, memory_limit=1)
    queue.append(5, b"abc")
    assert queue.spilled == 0
    assert queue.popleft() == (5, b"abc")


def test_an_empty_queue_says_so() -> None:
    with pytest.raises(IndexError):
        SpillQueue(None, 1).popleft()


def test_closing_leaves_no_file_behind(tmp_path: Path) -> None:
    queue = SpillQueue(tmp_path, memory_limit=0)
    queue.append(0, b"abc")
    queue.close()
    assert len(queue) == 0
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.one_of(st.none(), st.binary(min_size=0, max_size=9)), max_size=40), limit=st.integers(0, 20))
def test_it_is_a_queue_whatever_the_limit(
    tmp_path_factory: pytest.TempPathFactory, steps: list[bytes | None], limit: int
) -> None:
    queue, model = SpillQueue(tmp_path_factory.getbasetemp(), limit), []
    for number, data in enumerate(steps):
        if data is not None:
            queue.append(number, data)
            model.append((number, data))
        elif model:
            assert queue.popleft() == model.pop(0)
        assert list(queue) == model
        assert queue.total_bytes == sum(len(d) for _, d in model)
    queue.close()
