"""The sensor readings that every peer reads, and the number of alerts they must find.

A dataset is a directory under `bench/.data/`, made once and then reused:

    part-0000.parquet …   id string "sensor-000123" | ts int64 (ms) | temperature double, row groups of 100,000
    part-0000.rows …      the same rows for readers without Parquet: key index int32 | temperature float64,
                          little-endian, 12 bytes a row, no header (ts = START_TS_MS + position in the file)
    manifest.json         keys, rows, seed, threshold, files, expected alerts; written last, so it marks completeness

A key lives in exactly one file, and its readings are in time order there. So the alerts are the same number whoever
reads the files, in whatever order the files are taken, as long as one file is read from its start to its end.

Chunk *c* of file *f* depends only on (seed, keys, files, f) and the chunks before it. A dataset of fewer rows is
therefore the beginning of each file of a larger one: a slow peer gets the first part of the very same rows.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

DATA_HOME = Path(__file__).parent / ".data"
THRESHOLD = 1.7
FORMAT = 1
"""Grows whenever the rows made for the same arguments change, so that an old cache is never mistaken for a new one."""

CHUNK_ROWS = 100_000
START_TS_MS = 1_700_000_000_000

# Steps of the walk: mostly small, and this share of jumps between JUMP_LOW and JUMP_HIGH degrees.
JUMP_SHARE = 0.015
SMALL_STEP_SD = 0.25
JUMP_LOW, JUMP_HIGH = 1.75, 5.0
# The walk is folded into this range like a ball between two walls: temperatures stay plausible however long it runs.
COLDEST, HOTTEST = -10.0, 40.0

ROW_TYPE = np.dtype([("key", "<i4"), ("temperature", "<f8")])
SCHEMA = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("temperature", pa.float64())])

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Dataset:
    """One made dataset; `alerts` is the number that an exactly-once run over all files must emit."""

    directory: Path
    keys: int
    rows: int
    files: int
    seed: int
    alerts: int

    @property
    def jump_share(self) -> float:
        """The share of readings that are alerts."""
        return self.alerts / self.rows


def ensure(*, keys: int, rows: int, files: int = 4, seed: int = 42, home: Path = DATA_HOME) -> Dataset:
    """Return the dataset of these arguments, making it first if it is not there yet.

    Called before any timing starts. A half-made directory of an interrupted run is never seen: it is built
    aside and renamed into place.
    """
    if files < 1 or keys < files or rows % files:
        raise ValueError(
            f"Dataset of {keys} keys and {rows} rows cannot be dealt to {files} files evenly: "
            "take at least one key a file, and a number of rows that the number of files divides."
        )
    directory = home / f"v{FORMAT}-{keys}keys-{rows}rows-{files}files-seed{seed}"
    if not (directory / "manifest.json").exists():
        home.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=".building-", dir=home))
        try:
            _build(building, keys=keys, rows=rows, files=files, seed=seed)
            building.chmod(0o755)  # mkdtemp makes it private, and a peer may run as somebody else
            os.rename(building, directory)
        except OSError:
            # Another run may have made the same dataset meanwhile: the rename then finds it in place.
            if not (directory / "manifest.json").exists():
                raise
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return load(directory)


def load(directory: Path) -> Dataset:
    """Read the manifest of a dataset; raise if the directory is not one."""
    manifest = directory / "manifest.json"
    if not manifest.exists():
        raise FileNotFoundError(
            f"{directory} is no dataset: it has no manifest.json. Make one with `python -m bench data`."
        )
    facts = json.loads(manifest.read_text())
    return Dataset(
        directory=directory, **{field: facts[field] for field in ("keys", "rows", "files", "seed", "alerts")}
    )


def _build(directory: Path, *, keys: int, rows: int, files: int, seed: int) -> None:
    parts = [
        _write_part(directory, part, keys=keys, rows=rows // files, files=files, seed=seed) for part in range(files)
    ]
    manifest = {
        "format": FORMAT,
        "keys": keys,
        "rows": rows,
        "files": files,
        "seed": seed,
        "threshold": THRESHOLD,
        "alerts": sum(part["alerts"] for part in parts),
        "parts": parts,
    }
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=1))


def _write_part(directory: Path, part: int, *, keys: int, rows: int, files: int, seed: int) -> dict[str, Any]:
    """Write one file in both forms; return its entry in the manifest."""
    # Sensor k lives in file k % files, so every file has its share of keys and readings.
    own_keys = np.arange(part, keys, files, dtype=np.int64)
    ids = pa.array([f"sensor-{key:06d}" for key in own_keys])
    walk = _Walk(len(own_keys), np.random.default_rng([seed, files, keys, part, 0]))
    alerts = 0
    parquet_name, rows_name = f"part-{part:04d}.parquet", f"part-{part:04d}.rows"
    with (
        pq.ParquetWriter(directory / parquet_name, SCHEMA, compression="snappy") as parquet,
        open(directory / rows_name, "wb") as flat,
    ):
        for chunk, start in enumerate(range(0, rows, CHUNK_ROWS)):
            # The full chunk is drawn even where only its beginning is kept: see the prefix rule above.
            sensors, temperatures, jumped = walk.chunk(np.random.default_rng([seed, files, keys, part, chunk + 1]))
            kept = min(CHUNK_ROWS, rows - start)
            sensors, temperatures = sensors[:kept], temperatures[:kept]
            alerts += int(jumped[:kept].sum())
            timestamps = START_TS_MS + np.arange(start, start + kept, dtype=np.int64)
            names = pa.DictionaryArray.from_arrays(pa.array(sensors.astype(np.int32)), ids).cast(pa.string())
            parquet.write_table(pa.table([names, timestamps, temperatures], schema=SCHEMA), row_group_size=CHUNK_ROWS)
            table = np.empty(kept, dtype=ROW_TYPE)
            table["key"] = own_keys[sensors]
            table["temperature"] = temperatures
            table.tofile(flat)
    return {"parquet": parquet_name, "flat": rows_name, "rows": rows, "keys": len(own_keys), "alerts": alerts}


class _Walk:
    """The random walks of all sensors of one file, advanced chunk by chunk."""

    def __init__(self, sensors: int, rng: np.random.Generator) -> None:
        self._level: Floats = rng.uniform(COLDEST, HOTTEST, sensors)
        self._last: Floats = np.full(sensors, np.nan)  # NaN: no reading yet, and no comparison with it is an alert

    def chunk(self, rng: np.random.Generator) -> tuple[Ints, Floats, npt.NDArray[np.bool_]]:
        """Draw the next CHUNK_ROWS readings: sensor, temperature, and whether it jumped from the sensor's last."""
        sensors = rng.integers(0, len(self._level), CHUNK_ROWS)
        steps = rng.normal(0.0, SMALL_STEP_SD, CHUNK_ROWS)
        jumps = rng.random(CHUNK_ROWS) < JUMP_SHARE
        sizes = rng.uniform(JUMP_LOW, JUMP_HIGH, CHUNK_ROWS) * rng.choice([-1.0, 1.0], CHUNK_ROWS)
        steps[jumps] = sizes[jumps]

        # A stable sort brings each sensor's readings together in their order, and the walk becomes a running sum
        # that restarts at each sensor.
        order = np.argsort(sensors, kind="stable")
        by_sensor, by_step = sensors[order], steps[order]
        starts = np.flatnonzero(np.r_[True, by_sensor[1:] != by_sensor[:-1]])
        lengths = np.diff(np.r_[starts, CHUNK_ROWS])
        running = np.cumsum(by_step)
        before = np.r_[0.0, running[:-1]][starts]
        levels = running - np.repeat(before - self._level[by_sensor[starts]], lengths)
        temperatures = _fold(levels)

        previous = np.r_[np.nan, temperatures[:-1]]
        previous[starts] = self._last[by_sensor[starts]]
        jumped = np.abs(temperatures - previous) > THRESHOLD

        ends = starts + lengths - 1
        self._level[by_sensor[ends]] = levels[ends]
        self._last[by_sensor[ends]] = temperatures[ends]

        in_order, jumped_in_order = np.empty_like(temperatures), np.empty_like(jumped)
        in_order[order], jumped_in_order[order] = temperatures, jumped
        return sensors, in_order, jumped_in_order


def _fold(levels: Floats) -> Floats:
    """Reflect levels into the range of temperatures; a step never grows by it."""
    span = HOTTEST - COLDEST
    return COLDEST + np.abs((levels - COLDEST + span) % (2 * span) - span)


def main() -> None:
    """`python -m bench.dataset --keys 10000 --rows 400000`: make one dataset and print its facts."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--seed", type=int, default=42)
    dataset = ensure(**vars(parser.parse_args()))
    print(json.dumps(dataclasses.asdict(dataset) | {"jump_share": dataset.jump_share}, default=str))


if __name__ == "__main__":
    main()
