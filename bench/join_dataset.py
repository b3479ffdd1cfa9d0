"""Orders and shipments for the interval join, and the number of pairs that every peer must find.

A dataset is a directory under `bench/.data/`, made once and then reused:

    orders-0.parquet, orders-1.parquet          id string "item-000123" | ts int64 (ms) | amount double
    shipments-0.parquet, shipments-1.parquet    the same columns
    manifest.json                               keys, rows, pairs; written last, so it marks completeness

Half of the rows are orders. Both kinds come at 10 rows a millisecond, spread evenly over the keys, each file in order
of time and with keys of its own. A shipment belongs to every order of its key that is at most `WITHIN_MS` older; with
10,000 keys that is one order on average. The peers' environments read this file, so it needs numpy and pyarrow only.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

DATA_HOME = Path(__file__).parent / ".data"
FORMAT = 1
FILES = 2
ROWS_PER_MS = 10
WITHIN_MS = 1_000
START_TS_MS = 1_700_000_000_000
SCHEMA = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("amount", pa.float64())])

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class JoinDataset:
    """One made dataset; `pairs` is the number that a join over all files must emit."""

    directory: Path
    keys: int
    rows: int
    pairs: int


def ensure(keys: int, rows: int, seed: int = 42, home: Path = DATA_HOME) -> JoinDataset:
    """The dataset of that size, made first if it is not there. Several processes may ask for it at once."""
    directory = home / f"join-v{FORMAT}-k{keys}-r{rows}-s{seed}"
    if not (directory / "manifest.json").exists():
        home.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=home))
        _make(made, keys, rows, seed)
        try:
            os.rename(made, directory)
        except OSError:
            shutil.rmtree(made)  # somebody else was first
    manifest = json.loads((directory / "manifest.json").read_text())
    return JoinDataset(directory, manifest["keys"], manifest["rows"], manifest["pairs"])


def _make(directory: Path, keys: int, rows: int, seed: int) -> None:
    each = rows // 2
    pairs = 0
    ids = pa.array([f"item-{key:06d}" for key in range(keys)], type=pa.string())
    columns = []
    for number, name in enumerate(("orders", "shipments")):
        rng = np.random.default_rng([seed, number])
        drawn: Ints = rng.integers(0, keys, each)
        times: Ints = START_TS_MS + np.arange(each, dtype=np.int64) // ROWS_PER_MS
        amounts = rng.uniform(1, 100, each)
        columns.append((drawn, times))
        for file in range(FILES):
            own = np.flatnonzero(drawn % FILES == file)
            table = pa.table([ids.take(pa.array(drawn[own])), times[own], amounts[own]], schema=SCHEMA)
            pq.write_table(table, directory / f"{name}-{file}.parquet", row_group_size=100_000, compression="snappy")
    pairs = count_pairs(*columns)
    (directory / "manifest.json").write_text(json.dumps({"keys": keys, "rows": 2 * each, "pairs": pairs}))


def count_pairs(orders: tuple[Ints, Ints], shipments: tuple[Ints, Ints]) -> int:
    """Pairs of one key with order ≤ shipment ≤ order + WITHIN_MS; keys and times of either kind."""
    # One number for (key, time), so that a key's times within bounds are one range of the sorted orders.
    span = 1 << 44
    sorted_orders = np.sort(orders[0] * span + orders[1])
    wanted = shipments[0] * span + shipments[1]
    upper = np.searchsorted(sorted_orders, wanted, side="right")
    lower = np.searchsorted(sorted_orders, wanted - WITHIN_MS, side="left")
    return int((upper - lower).sum())
