"""A source over values that the program itself holds; they travel to the tasks inside the program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from headrace.connectors.queue_enumerator import QueueEnumerator
from headrace.connectors.source import (
    EnumeratorContext,
    PollStatus,
    ReaderContext,
    Source,
    SourceBatch,
    SourceReader,
    SplitEnumerator,
)
from headrace.types.information import RowType, TypeInformation, TypeLike, type_of


class CollectionSplit(msgspec.Struct):
    """The whole collection, from the value at `position` on."""

    position: int

    @property
    def split_id(self) -> str:
        return "collection"


class CollectionSource(Source[CollectionSplit]):
    """These values, in this order, each once. One reader gets them all; any others end at once.

    With a type, every value is checked against it here, and tuples of a row type come out as rows.
    The program must give the same values when it is restarted: a position counts values, it does not hold them.
    """

    split_type = CollectionSplit

    def __init__(self, values: Iterable[Any], type_info: TypeLike | None = None) -> None:
        self.values = list(values)
        self.type_info = None if type_info is None else type_of(type_info)
        if self.type_info is not None:
            for i, value in enumerate(self.values):
                self.type_info.check(value, f"Value {i} of the collection")

    @property
    def produced_type(self) -> TypeInformation | None:
        return self.type_info

    def create_enumerator(self, context: EnumeratorContext, restored: bytes | None) -> SplitEnumerator[CollectionSplit]:
        return QueueEnumerator(context, CollectionSplit, first=lambda: [CollectionSplit(0)], restored=restored)

    def create_reader(self, context: ReaderContext) -> SourceReader[CollectionSplit]:
        if not isinstance(self.type_info, RowType):
            return _CollectionReader(self.values)
        row, make = self.type_info.value_class, self.type_info.make()
        return _CollectionReader(
            [make(value) if type(value) is not row and value is not None else value for value in self.values]
        )

    def describe(self) -> str:
        return f"collection of {len(self.values)} values"


class _CollectionReader(SourceReader[CollectionSplit]):
    def __init__(self, values: list[Any]) -> None:
        self._values = values
        self._split: CollectionSplit | None = None
        self._no_more = False

    def add_splits(self, splits: Sequence[CollectionSplit]) -> None:
        for split in splits:
            self._split = split

    def no_more_splits(self) -> None:
        self._no_more = True

    def poll(self, limit: int) -> SourceBatch | PollStatus:
        split = self._split
        if split is None or split.position >= len(self._values):
            self._split = None
            return PollStatus.ENDED if self._no_more else PollStatus.NEEDS_SPLIT
        batch = self._values[split.position : split.position + limit]
        split.position += len(batch)
        return SourceBatch(split.split_id, values=batch)

    def snapshot(self) -> list[CollectionSplit]:
        # A finished split stays out: the enumerator must not deal it again.
        if self._split is None or self._split.position >= len(self._values):
            return []
        return [CollectionSplit(self._split.position)]
