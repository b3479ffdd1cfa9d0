"""How many bytes Spark's shuffle may hold between the tasks of a job, by the job's shape. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

READER_BYTES: Final = 512 * 1024
LARGEST_BUFFER: Final = 128 * 1024
_SMALLEST_BUFFER: Final = 16 * 1024
# What Spark's writer takes off its budget for the buffers of TCP before it counts its own.
_TCP_ALLOWANCE: Final = 65 * 1024
# Spark's writer keeps at least this many buffers for each partition, whatever its budget says.
_BUFFERS_PER_PARTITION: Final = 2
WRITER_BYTES: Final = READER_BYTES + _TCP_ALLOWANCE


def network_buffer_size(largest_level_slots: int) -> int:
    """Bytes of one shuffle buffer for a job whose widest level has this many slots.

    A writer keeps two buffers for every slot of the next level, however small its budget, so bytes in flight grow with
    the square of the slots unless the buffers shrink. A cell larger than the buffer still travels, in one of its own.
    """
    fair = READER_BYTES // (_BUFFERS_PER_PARTITION * largest_level_slots)
    size = LARGEST_BUFFER
    while size > fair and size > _SMALLEST_BUFFER:
        size //= 2
    return size


def writer_bytes(largest_level_slots: int) -> int:
    """The budget of one writer. Spark takes its own minimum anyway, and warns at every task unless this admits it."""
    minimum = _BUFFERS_PER_PARTITION * largest_level_slots * network_buffer_size(largest_level_slots) + _TCP_ALLOWANCE
    return max(WRITER_BYTES, minimum)


def bytes_in_flight(level_slots: Sequence[int]) -> list[int]:
    """The most that Spark holds between each level and the next, for `explain`: all writers and readers full."""
    writer = writer_bytes(max(level_slots))
    return [slots * writer + following * READER_BYTES for slots, following in pairwise(level_slots)]
