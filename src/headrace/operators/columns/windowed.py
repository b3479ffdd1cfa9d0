"""What windows over columns share, whether they stay as they are or merge.

State, timers and the saved watermark are those of every other window operator: an accumulator for each key and window,
folded with the parts of all rows that came between two looks. Rows wait in memory until a window of theirs may close, a
barrier comes or there are many; before the barrier all are in state.

With allowed lateness a window outlives its firing. Rows that come for it then do not wait: they are folded as soon as
they are there, and the window fires again, once for each key and batch.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.operators.columns.aggregates import Aggregates, MergeParts, part_name
from headrace.operators.columns.batches import ColumnInput
from headrace.operators.columns.grouping import PaneBuffer
from headrace.operators.columns.panes import TimePieces, Times
from headrace.operators.columns.results import Results
from headrace.operators.columns.session_grouping import grouping_of
from headrace.operators.functions import OutputTag
from headrace.operators.watermarks import MAX_WATERMARK, MIN_WATERMARK
from headrace.operators.windows.assigners import WindowAssigner
from headrace.operators.windows.calls import PassOn
from headrace.operators.windows.contents import STATE_NAME, FoldedContents
from headrace.operators.windows.operator import WindowOperator
from headrace.operators.windows.triggers import EventTimeTrigger
from headrace.state.folding import FoldingReducingDescriptor
from headrace.types.columns import batch_to_values
from headrace.types.information import TypeInformation

FOLDED_ROWS = 262_144
"""So many rows wait at most."""


class WindowedColumns(ColumnInput, WindowOperator):
    """Takes rows of the stream (`raw`), or rows of parts that `CombineOperator` has made of them."""

    _contents: FoldedContents

    def __init__(
        self,
        aggregates: Aggregates,
        assigner: WindowAssigner,
        pieces: TimePieces,
        input_type: TypeInformation,
        lateness_ms: int,
        late_tag: OutputTag | None,
        *,
        raw: bool,
    ) -> None:
        merge = MergeParts(aggregates.parts)
        contents = FoldedContents(FoldingReducingDescriptor(STATE_NAME, merge, aggregates.accumulator_type))
        super().__init__(assigner, EventTimeTrigger(), contents, PassOn(), merge, lateness_ms, late_tag)
        self.expect(input_type)
        self._aggregates = aggregates
        self._raw = raw
        self._pieces = pieces
        self._grouping = grouping_of(aggregates, pieces, raw=raw)
        self._buffer = PaneBuffer()
        self._results = Results(aggregates, self)

    @abstractmethod
    def _fold(self) -> None:
        """Group what waits and fold it into state."""

    def _horizon(self) -> int:
        """The life of a window is over if its last timestamp is not after this."""
        watermark = self.current_watermark
        # At the end of time all lives end, however long lateness is.
        if not self._lateness or watermark == MAX_WATERMARK:
            return watermark
        return max(watermark - self._lateness, MIN_WATERMARK)

    def _register(self, last: int, key: Any, namespace: bytes) -> None:
        """Timers of a window that has contents now: when it fires, if it has not, and when its life ends."""
        if last > self.current_watermark:
            self._event.register(last, key, namespace)
        if self._lateness:
            self._event.register(self._last_of_life(last), key, namespace)

    def _last_of_life(self, last: int) -> int:
        return min(last + self._lateness, MAX_WATERMARK)

    def _miss_all(self, batch: pa.RecordBatch, times: Times | None, late: Any) -> None:
        """Rows at the places where `late` is true are late: count them, or send them to the side as they were."""
        places = pa.array(np.flatnonzero(late))
        if not self._raw:
            self._late.inc(pc.sum(batch.column(part_name(0)).take(places)).as_py())
        elif self._late_tag is None:
            self._late.inc(len(places))
        else:
            assert times is not None
            rows = batch_to_values(self._input_type, batch.take(places))
            for row, time in zip(rows, times[late].tolist(), strict=True):
                self.outputs.side(self._late_tag.tag_id, row, time)

    def prepare_snapshot(self, checkpoint_id: int) -> None:
        super().prepare_snapshot(checkpoint_id)
        self._fold()
