"""One job that is killed as far from its last checkpoint as its interval allows, and how long it takes to catch up.

    python -m bench.interval_job --interval-ms 1000 --data DIR --scratch DIR

The keyed function counts what it has processed, and the count is part of every checkpoint: so after a restart it goes
on from where the checkpoint was, and the job has caught up when it is back at what it was at the moment of the kill.
Prints one JSON line:

    {"peer": "headrace", "interval_ms": int, "records": int, "alerts": int,
     "restart_seconds": float,       from the kill to the first record that is processed again
     "caught_up_seconds": float,     from the kill to the moment at which everything processed before is processed again
     "replayed": int,                records that were processed twice
     "state_bytes": int, "checkpoints": int}
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.headrace_job import SLOTS, CountSink, Watcher
from headrace import (
    CheckpointedFunction,
    EmbeddedRocksDBStateBackend,
    FileSource,
    HashMapStateBackend,
    KeyedProcessFunction,
    ListStateDescriptor,
    RestartStrategies,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from headrace.runtime.spark.session import obtain_session

NOTE_EVERY = 2_000
KILL_AT = 0.9
"""Of the interval after a checkpoint: nearly all that can be lost is lost."""
PATIENCE_S = 300.0


class CountedJumps(KeyedProcessFunction, CheckpointedFunction):
    """The job of every measure, with a state of some size, and with a note of its progress every so often."""

    def __init__(self, value_bytes: int, notes: Path) -> None:
        self._padding = "x" * max(0, value_bytes - 16)
        self._notes = notes

    def initialize_state(self, context: Any) -> None:
        self._kept = context.get_operator_state_store().get_list_state(ListStateDescriptor("processed", Types.LONG()))
        self._processed = sum(self._kept)

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(
            ValueStateDescriptor("last", Types.TUPLE([Types.DOUBLE(), Types.STRING()]))
        )
        place = f"{runtime_context.get_attempt_number()}-{runtime_context.get_index_of_this_subtask()}"
        self._file = open(self._notes / place, "a", buffering=1)  # noqa: SIM115
        self._first = True

    def process_element(self, reading: Any, ctx: Any) -> Iterator[Any]:
        if self._first or self._processed % NOTE_EVERY == 0:
            self._first = False
            self._file.write(f"{time.time()!r} {self._processed}\n")
        self._processed += 1
        last = self.last.value()
        self.last.update((reading.temperature, self._padding))
        if last is not None and abs(reading.temperature - last[0]) > 1.7:
            yield reading.id, reading.temperature

    def snapshot_state(self, context: Any) -> None:
        self._kept.update([self._processed])

    def close(self) -> None:
        self._file.close()


class Progress:
    """What the notes of one attempt say: how many records all subtasks together had processed at a time."""

    def __init__(self, notes: Path, attempt: int) -> None:
        self._by_subtask: list[list[tuple[float, int]]] = []
        for path in sorted(notes.glob(f"{attempt}-*")):
            lines = [line.split() for line in path.read_text().splitlines()]
            self._by_subtask.append([(float(at), int(count)) for at, count in lines])

    def count_at(self, moment: float) -> int:
        return sum(max((count for at, count in notes if at <= moment), default=0) for notes in self._by_subtask)

    def moments(self) -> list[float]:
        return sorted(at for notes in self._by_subtask for at, _ in notes)

    def first_at(self) -> float:
        return self.moments()[0]

    def first_count(self) -> int:
        """Where the checkpoint was."""
        return sum(notes[0][1] for notes in self._by_subtask if notes)

    def reaches(self, count: int) -> float:
        """The first moment at which so many have been processed."""
        for moment in self.moments():
            if self.count_at(moment) >= count:
                return moment
        raise SystemExit(f"The job never processed {count} records again: give it more rows.")


def killed_job(args: argparse.Namespace) -> dict[str, Any]:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(args.interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage(f"file://{args.scratch}/checkpoints")
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 0))
    env.set_state_backend(HashMapStateBackend() if args.backend == "heap" else EmbeddedRocksDBStateBackend())
    counts, notes = args.scratch / "counts", args.scratch / "notes"
    counts.mkdir()
    notes.mkdir()
    sink = CountSink(counts)
    source = FileSource.parquet(*sorted(str(p) for p in args.data.glob("*.parquet")), columns=["id", "temperature"])
    rows = json.loads((args.data / "manifest.json").read_text())["rows"]
    readings = env.from_source(source, WatermarkStrategy.no_watermarks(), "readings")
    readings.key_by(lambda r: r.id).process(CountedJumps(args.value_bytes, notes)).sink_to(sink)
    watcher = Watcher()
    client = env.execute_async("interval")
    client.listen(watcher)
    ended = client.get_job_execution_result()
    # Past a tenth of the rows: every key has its state, and what is left must be enough to catch up in.
    while client.get_status_report().records_read < rows // 10:
        if ended.done():
            ended.result()
            raise SystemExit("The job ended before it could be killed; give it more rows.")
        time.sleep(0.01)
    watcher.checkpointed.clear()
    if not watcher.checkpointed.wait(PATIENCE_S):
        raise SystemExit("No checkpoint completed before the kill; give it more rows or a shorter interval.")
    state_bytes = watcher.durations[-1][2]
    time.sleep(args.interval_ms / 1_000 * KILL_AT)
    if ended.done():
        raise SystemExit("The job ended before it could be killed; give it more rows.")
    os.kill(client.get_status_report().task_pids["1.0"], signal.SIGKILL)
    killed = time.time()
    result = ended.result()
    before, after = Progress(notes, 0), Progress(notes, 1)
    reached = before.count_at(killed)
    alerts, _ = sink.counted()
    return {
        "peer": "headrace",
        "interval_ms": args.interval_ms,
        "records": rows,
        "alerts": alerts,
        "restarts": result.restarts,
        "restart_seconds": after.first_at() - killed,
        "caught_up_seconds": after.reaches(reached) - killed,
        "replayed": max(0, reached - after.first_count()),
        "state_bytes": state_bytes,
        "checkpoints": result.checkpoints,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="A job that is killed between two checkpoints.")
    parser.add_argument("--interval-ms", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--backend", choices=["heap", "rocksdb"], default="rocksdb")
    parser.add_argument("--value-bytes", type=int, default=200)
    args = parser.parse_args()
    os.environ.setdefault("HEADRACE_STATE_DIR", str(args.scratch / "status"))
    handle = obtain_session(None, SLOTS, 4, "bench", None)
    try:
        print(json.dumps(killed_job(args)))
    finally:
        handle.stop()


if __name__ == "__main__":
    main()
