"""Finds the batches of a spool in the driver, one manifest after the other, and deals their files out."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from headrace.connectors.dataframe.backlog import Backlog
from headrace.connectors.dataframe.split import SpoolSplit
from headrace.connectors.dataframe.spool import Spool
from headrace.connectors.source import EnumeratorContext, SplitEnumerator
from headrace.errors import RestoreError

LOOK_EVERY_MS = 1_000
"""How often manifests are looked for without being told of one. The query tells of each, in the same process."""

DEALT_AT_ONCE = 4 * 1024 * 1024
"""Small files are dealt several at a time, up to this size: a request costs a round trip."""


class SpoolState(msgspec.Struct):
    """What a checkpoint keeps besides the positions in files that are being read."""

    spool: str
    """Where it lies; matters to a job that is restored from a savepoint."""
    next_batch: int
    waiting: list[SpoolSplit]
    """Files of earlier batches that nobody has yet."""

    @property
    def first_needed(self) -> int:
        """The oldest batch whose files this state still needs."""
        return min([self.next_batch, *(split.batch for split in self.waiting)])


def decode_state(data: bytes) -> SpoolState:
    return msgspec.msgpack.decode(data, type=SpoolState)


class SpoolEnumerator(SplitEnumerator[SpoolSplit]):
    """Deals files in the order of batches and of partitions within one."""

    discovery_interval_ms = LOOK_EVERY_MS

    def __init__(
        self, context: EnumeratorContext, spool: Spool, row_type: str, backlog: Backlog, restored: bytes | None
    ) -> None:
        self._context = context
        self._spool = spool
        self._type = row_type
        self._backlog = backlog
        state = None if restored is None else decode_state(restored)
        self._next = 0 if state is None else state.next_batch
        self._waiting: deque[SpoolSplit] = deque(() if state is None else state.waiting)
        self._ended = False
        self._gap: int | None = None
        """A batch without a manifest, although the one after it has one, as the last look found."""
        self._asking: list[int] = []

    def start(self) -> None:
        known = self._spool.batches()
        needed = min([self._next, *(split.batch for split in self._waiting)])
        if known and needed < known[-1] and needed not in known:
            raise RestoreError(
                f"The job needs batch {needed} of the spool {self._spool.location}, which begins with batch {known[0]}:"
                " its files were removed. Restore a newer checkpoint, or begin anew under another job name."
            )
        self._spool.require_unbroken(needed)
        self._tell()
        self.discover()

    def discover(self) -> None:
        """Take up every batch that has a manifest by now."""
        end = self._spool.ended()
        while (manifest := self._spool.manifest(self._next)) is not None:
            if manifest.type != self._type:
                raise RestoreError(
                    f"Batch {manifest.batch} of the spool {self._spool.location} has rows of {manifest.type}, but the "
                    f"DataFrame of the program now has {self._type}. Give from_dataframe() the columns of before, or "
                    "begin anew under another job name."
                )
            self._waiting += [
                SpoolSplit(manifest.batch, part, found.file.size) for part, found in enumerate(manifest.files)
            ]
            self._next += 1
        self._look_for_a_gap()
        self._ended = end is not None and self._next >= end
        self._tell()
        asking, self._asking = self._asking, []
        for subtask in asking:
            self.handle_split_request(subtask)

    def _look_for_a_gap(self) -> None:
        """Without the manifest that comes next the job would wait for good. A gap counts when two looks have seen it:
        both batches may have been published since the first."""
        gap = self._next if self._spool.has(self._next + 1) else None
        if gap is not None and gap == self._gap:
            self._spool.require_unbroken(gap)
        self._gap = gap

    def handle_split_request(self, subtask: int) -> None:
        if self._waiting:
            self._context.assign(subtask, self._take())
            self._tell()
        elif self._ended:
            self._context.no_more_splits(subtask)
        elif subtask not in self._asking:
            self._asking.append(subtask)

    def add_splits_back(self, splits: Sequence[SpoolSplit]) -> None:
        # In front and in order: what was begun is finished first.
        self._waiting = deque(sorted([*splits, *self._waiting], key=lambda split: (split.batch, split.part)))

    def snapshot_state(self) -> bytes:
        return msgspec.msgpack.encode(SpoolState(self._spool.location, self._next, list(self._waiting)))

    def _take(self) -> list[SpoolSplit]:
        share = max(1, len(self._waiting) // self._context.parallelism)
        taken = [self._waiting.popleft()]
        size = taken[0].size
        while self._waiting and len(taken) < share and size + self._waiting[0].size <= DEALT_AT_ONCE:
            taken.append(self._waiting.popleft())
            size += taken[-1].size
        return taken

    def _tell(self) -> None:
        self._backlog.waiting(sum(split.size for split in self._waiting))
