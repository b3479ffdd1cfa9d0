"""The readings of `dataset.py` in two files, and what one-minute windows of them must give.

    windows-60000.json    beside the rows: number of (sensor, window) pairs, the sum of their averages, and the same for
                          the windows that end before the last reading (a stream that has no end closes no others)

Two files, because each of two readers then reads one from its beginning: with more, a reader would begin another file
when time is already at its end, and all of it would be late. Needs numpy only to make the rows, not to find them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isclose
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

SIZE_MS = 60_000
FILES = 2
WARM_UP_ROWS = 400_000
_HOME = Path(__file__).parent / ".data"
_FACTS = f"windows-{SIZE_MS}.json"


@dataclass(frozen=True, slots=True)
class WindowDataset:
    """One made dataset and what windows over it give."""

    directory: Path
    rows: int
    windows: int
    sum_of_means: float
    closed_windows: int
    closed_sum_of_means: float

    def check(self, records: int, windows: int, sum_of_means: float, *, all_closed: bool = True) -> None:
        """Stop the program if it has counted or computed anything else."""
        wanted = (self.rows, self.windows if all_closed else self.closed_windows)
        expected = self.sum_of_means if all_closed else self.closed_sum_of_means
        if (records, windows) != wanted or not isclose(sum_of_means, expected, rel_tol=1e-9, abs_tol=1e-6):
            raise SystemExit(
                f"The windows are wrong: {windows} of {records} records, the sum of their means {sum_of_means}, where "
                f"{self.directory.name} has {wanted[1]} of {wanted[0]} and {expected}."
            )


def ensure(keys: int, rows: int) -> WindowDataset:
    """The dataset of these arguments, made first if it is not there yet."""
    directory = _HOME / f"v1-{keys}keys-{rows}rows-{FILES}files-seed42"
    facts = directory / _FACTS
    if not facts.exists():
        from bench import dataset  # numpy: not every peer's environment has it, and only the first program makes rows

        made = dataset.ensure(keys=keys, rows=rows, files=FILES)
        assert made.directory == directory
        facts.write_text(json.dumps(_expected(directory)))
    return WindowDataset(directory=directory, rows=rows, **json.loads(facts.read_text()))


def _expected(directory: Path) -> dict[str, float]:
    rows = pa.concat_tables([pq.read_table(path) for path in sorted(directory.glob("*.parquet"))])
    starts = pc.multiply(pc.divide(rows["ts"], SIZE_MS), SIZE_MS)
    means = rows.append_column("start", starts).group_by(["id", "start"]).aggregate([("temperature", "mean")])
    closed = means.filter(pc.less_equal(pc.add(means["start"], SIZE_MS), pc.max(rows["ts"])))
    return {
        "windows": means.num_rows,
        "sum_of_means": pc.sum(means["temperature_mean"]).as_py(),
        "closed_windows": closed.num_rows,
        "closed_sum_of_means": pc.sum(closed["temperature_mean"]).as_py() or 0.0,
    }
