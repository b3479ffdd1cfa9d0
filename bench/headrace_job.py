"""Our side of every measure: one job, one JSON line. The command line is described in `harness.py`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace import (
    EmbeddedRocksDBStateBackend,
    FileSource,
    HashMapStateBackend,
    KeyedProcessFunction,
    NumberSequenceSource,
    RestartStrategies,
    SensorSource,
    Sink,
    StreamExecutionEnvironment,
    TwoPhaseCommitSink,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from headrace.connectors.sink import SinkWriter, WriterContext
from headrace.plan.settings import CheckpointingMode
from headrace.runtime.spark.session import obtain_session

STARTED = time.time()
SLOTS = 8


class Jumps(KeyedProcessFunction):
    """The job of every measure: emit a reading that is more than 1.7 away from the last one of its sensor."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.DOUBLE()))

    def process_element(self, reading: Any, ctx: Any) -> Iterator[Any]:
        last = self.last.value()
        temperature = reading.temperature
        self.last.update(temperature)
        if last is not None and abs(temperature - last) > 1.7:
            yield reading.id, temperature


class SlowJumps(Jumps):
    """The same, each record taking so long that all buffers before it are full."""

    def __init__(self, delay_us: int) -> None:
        self._delay_s = delay_us / 1e6

    def process_element(self, reading: Any, ctx: Any) -> Iterator[Any]:
        until = time.perf_counter() + self._delay_s
        while time.perf_counter() < until:
            pass
        return super().process_element(reading, ctx)


class PaddedJumps(KeyedProcessFunction):
    """The same with a state of some size, and a note of when the first record of an attempt is processed."""

    def __init__(self, value_bytes: int, scratch: Path) -> None:
        self._padding = "x" * max(0, value_bytes - 16)
        self._scratch = scratch

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(
            ValueStateDescriptor("last", Types.TUPLE([Types.DOUBLE(), Types.STRING()]))
        )
        self._note: Path | None = self._scratch / f"first-{runtime_context.get_attempt_number()}"

    def process_element(self, reading: Any, ctx: Any) -> Iterator[Any]:
        if self._note is not None:
            if not self._note.exists():
                self._note.write_text(repr(time.time()))
            self._note = None
        last = self.last.value()
        self.last.update((reading.temperature, self._padding))
        if last is not None and abs(reading.temperature - last[0]) > 1.7:
            yield reading.id, reading.temperature


class PassOn(KeyedProcessFunction):
    """Keeps the last temperature and emits every reading: what latency is measured through."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.DOUBLE()))

    def process_element(self, reading: Any, ctx: Any) -> Iterator[Any]:
        self.last.value()
        self.last.update(reading.temperature)
        yield reading.created_ns


class FillState(KeyedProcessFunction):
    """Writes a value of some size for every number's key."""

    def __init__(self, value_bytes: int) -> None:
        self._value_bytes = value_bytes

    def open(self, runtime_context: Any) -> None:
        self.value = runtime_context.get_state(ValueStateDescriptor("value", Types.STRING()))

    def process_element(self, number: int, ctx: Any) -> None:
        self.value.value()
        # Each its own object, as in real state: one that all keys share would make the cache look small.
        self.value.update(str(number).zfill(self._value_bytes))


@dataclass
class Count:
    """A transaction of `CountSink`: how many records it holds and when the last of them came."""

    name: str
    count: int = 0
    last: float = 0.0


class CountSink(TwoPhaseCommitSink[Count]):
    """Counts records exactly once: a count becomes a file when its checkpoint is complete."""

    transaction_type = Count

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self, context: WriterContext) -> None:
        self._prefix = f"{context.subtask}-{context.attempt}"
        self._number = 0

    def begin(self) -> Count:
        self._number += 1
        return Count(f"{self._prefix}-{self._number}")

    def invoke(self, transaction: Count, value: Any, timestamp: int | None) -> None:
        transaction.count += 1

    def pre_commit(self, transaction: Count) -> None:
        transaction.last = time.time()

    def commit(self, transaction: Count) -> None:
        (self._directory / transaction.name).write_bytes(msgspec.json.encode(transaction))

    def abort(self, transaction: Count) -> None:
        pass

    def counted(self) -> tuple[int, float]:
        found = [msgspec.json.decode(p.read_bytes(), type=Count) for p in self._directory.iterdir()]
        return sum(c.count for c in found), max((c.last for c in found), default=0.0)


class EndNote(Sink):
    """Counts, and notes when the last record was processed: a writer is flushed at the end of its input."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return _EndNoteWriter(self.directory / str(context.subtask))


class _EndNoteWriter(SinkWriter):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = 0

    def write(self, value: Any, timestamp: int | None) -> None:
        self._count += 1

    def flush(self) -> None:
        self._path.write_text(f"{self._count} {time.time()!r}")


class LatencySink(Sink):
    """Stamps each reading again and keeps the difference, after a warm-up."""

    def __init__(self, directory: Path, count_from: float) -> None:
        self.directory = directory
        self.count_from = count_from

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return _LatencyWriter(self.directory / f"{context.subtask}.npy", self.count_from)


class _LatencyWriter(SinkWriter):
    def __init__(self, path: Path, count_from: float) -> None:
        self._path = path
        self._from_ns = count_from * 1e9
        self._samples: list[int] = []

    def write(self, value: Any, timestamp: int | None) -> None:
        now = time.time_ns()
        if value and value >= self._from_ns:
            self._samples.append(now - value)

    def close(self) -> None:
        np.save(self._path, np.array(self._samples, dtype=np.int64))


class Watcher:
    """What the driver learned while the job ran."""

    def __init__(self) -> None:
        self.running_at: list[float] = []
        self.durations: list[tuple[float, float, int]] = []
        self.failed = 0
        self.checkpointed = threading.Event()

    def __call__(self, event: Any) -> None:
        match event.kind:
            case "running":
                self.running_at.append(event.at_ms / 1e3)
            case "checkpoint":
                self.durations.append((event.at_ms / 1e3, event.detail["duration_ms"], event.detail["bytes"]))
                self.checkpointed.set()
            case "checkpoint-failed":
                self.failed += 1

    def checkpoints(self) -> dict[str, Any]:
        timed = self.durations[:-1]
        return {
            "completed": len(timed),
            "failed": self.failed,
            "durations_ms": [d for _, d, _ in timed],
            "bytes": [b for _, _, b in timed],
        }


def environment(args: argparse.Namespace, name: str) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(args.parallelism)
    if args.checkpoint_interval_ms:
        at_least = args.mode == "at-least-once"
        mode = CheckpointingMode.AT_LEAST_ONCE if at_least else CheckpointingMode.EXACTLY_ONCE
        env.enable_checkpointing(args.checkpoint_interval_ms, mode)
        if args.mode == "unaligned":
            env.get_checkpoint_config().enable_unaligned_checkpoints()
        env.get_checkpoint_config().set_checkpoint_storage(f"file://{args.scratch}/checkpoints-{name}")
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(5, 0))
    env.set_state_backend(HashMapStateBackend() if args.backend == "heap" else EmbeddedRocksDBStateBackend())
    return env


def run(env: StreamExecutionEnvironment, name: str) -> tuple[Any, Watcher]:
    watcher = Watcher()
    client = env.execute_async(name)
    client.listen(watcher)
    return client, watcher


def jumps(args: argparse.Namespace, data: Path, name: str) -> dict[str, Any]:
    env = environment(args, name)
    sink = EndNote(_fresh(args.scratch, name))
    files = sorted(str(p) for p in data.glob("*.parquet"))
    source = FileSource.parquet(*files, columns=["id", "temperature"])
    readings = env.from_source(source, WatermarkStrategy.no_watermarks(), "readings")
    function = SlowJumps(args.operator_delay_us) if args.operator_delay_us else Jumps()
    readings.key_by(lambda r: r.id).process(function).sink_to(sink)
    client, watcher = run(env, name)
    result = client.get_job_execution_result().result()
    notes = [p.read_text().split() for p in sink.directory.iterdir()]
    start, end = watcher.running_at[0], max(float(last) for _, last in notes)
    return {
        "records": result.records_read,
        "alerts": sum(int(count) for count, _ in notes),
        "seconds_between_first_and_last_record": end - start,
        "started_at": start,
        "checkpoints": watcher.checkpoints() if args.checkpoint_interval_ms else None,
    }


def latency(args: argparse.Namespace) -> dict[str, Any]:
    env = environment(args, "latency")
    two = args.workload == "two-inputs"
    total_s = args.warm_up_seconds + args.seconds + 2
    directory = _fresh(args.scratch, "latency")
    sink = LatencySink(directory, time.time() + 1e9)
    source = SensorSource(int(args.rate * total_s), sensors=args.keys, rate=args.rate, stamp_created=True)
    readings = env.from_source(source, WatermarkStrategy.no_watermarks(), "readings")
    if two:
        slow = SensorSource(
            int(args.second_rate * total_s), sensors=args.keys, rate=args.second_rate, seed=7, stamp_created=True
        )
        delay_s = args.operator_delay_us / 1e6
        second = env.from_source(slow, WatermarkStrategy.no_watermarks(), "second")
        readings = readings.union(second.rebalance().map(_Delay(delay_s), output_type=source.produced_type))
    # A sample is what was created after the warm-up; the clock starts when all tasks run.
    sink.count_from = time.time() + args.warm_up_seconds + 5
    readings.key_by(lambda r: r.id).process(PassOn(), output_type=Types.LONG()).sink_to(sink)
    client, watcher = run(env, "latency")
    result = client.get_job_execution_result().result()
    ended = time.time()
    samples = np.concatenate([np.load(p) for p in directory.glob("*.npy")]) / 1e6
    return {
        "records": result.records_read,
        # The source keeps its rate, so the end of the job is the last record to within a checkpoint.
        "seconds_between_first_and_last_record": ended - watcher.running_at[0],
        "started_at": watcher.running_at[0],
        "latency_p50_ms": float(np.percentile(samples, 50)),
        "latency_p99_ms": float(np.percentile(samples, 99)),
        "latency_samples": len(samples),
        "checkpoints": watcher.checkpoints() if args.checkpoint_interval_ms else None,
    }


class _Delay:
    """A map that takes its time and is not counted itself."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, reading: Any) -> Any:
        time.sleep(self._seconds)
        return type(reading)(*[*tuple(reading)[:-1], 0])


def recovery(args: argparse.Namespace) -> dict[str, Any]:
    env = environment(args, "recovery")
    sink = CountSink(_fresh(args.scratch, "counts"))
    notes = _fresh(args.scratch, "notes")
    files = sorted(str(p) for p in args.data.glob("*.parquet"))
    rows = json.loads((args.data / "manifest.json").read_text())["rows"]
    source = FileSource.parquet(*files, columns=["id", "temperature"])
    readings = env.from_source(source, WatermarkStrategy.no_watermarks(), "readings")
    readings.key_by(lambda r: r.id).process(PaddedJumps(args.value_bytes, notes)).sink_to(sink)
    client, watcher = run(env, "recovery")
    while client.get_status_report().records_read < rows // 2:
        if client.get_job_execution_result().done():
            client.get_job_execution_result().result()
            raise SystemExit("The job ended before half the rows were read; give it more rows.")
        time.sleep(0.01)
    watcher.checkpointed.clear()
    if not watcher.checkpointed.wait(60):
        raise SystemExit("No checkpoint completed in the second half.")
    state_bytes = watcher.durations[-1][2]
    os.kill(client.get_status_report().task_pids["1.0"], signal.SIGKILL)
    killed = time.time()
    result = client.get_job_execution_result().result()
    first = min(float(p.read_text()) for p in notes.iterdir() if p.name != "first-0")
    alerts, _ = sink.counted()
    return {
        "records": rows,
        "alerts": alerts,
        "restarts": result.restarts,
        "started_at": watcher.running_at[0],
        "recovery_seconds": first - killed,
        "state_bytes": state_bytes,
    }


def memory(args: argparse.Namespace) -> dict[str, Any]:
    env = environment(args, "memory")
    rows, keys = args.rows, args.keys

    def key_of(number: int) -> int:
        return number if number < keys else (number * 2_654_435_761) % keys

    source = NumberSequenceSource(0, keys + rows - 1)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    fill = numbers.key_by(key_of).process(FillState(args.value_bytes))
    fill.sink_to(EndNote(_fresh(args.scratch, "memory")))
    client, watcher = run(env, "memory")
    largest = 0
    while not client.get_job_execution_result().done():
        for place, pid in client.get_status_report().task_pids.items():
            if place.startswith("1."):
                largest = max(largest, _resident(pid))
        time.sleep(0.2)
    result = client.get_job_execution_result().result()
    return {"records": result.records_read, "worker_resident_bytes": largest, "started_at": watcher.running_at[0]}


def _resident(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def _fresh(scratch: Path, name: str) -> Path:
    directory = scratch / f"{name}-{time.time_ns()}"
    directory.mkdir(parents=True)
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description="Our side of the benchmarks; see bench/harness.py.")
    choices = ["jumps", "latency", "two-inputs", "recovery", "memory"]
    parser.add_argument("--workload", choices=choices, default="jumps")
    parser.add_argument("--backend", choices=["heap", "rocksdb"], default="heap")
    parser.add_argument("--mode", choices=["exactly-once", "at-least-once", "unaligned"], default="exactly-once")
    parser.add_argument("--checkpoint-interval-ms", type=int, default=0)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--warm-up", type=Path)
    parser.add_argument("--operator-delay-us", type=int, default=0)
    parser.add_argument("--rate", type=float, default=1_000)
    parser.add_argument("--second-rate", type=float, default=100)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--warm-up-seconds", type=float, default=5)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--rows", type=int, default=1_000_000)
    args = parser.parse_args()
    os.environ.setdefault("HEADRACE_STATE_DIR", str(args.scratch / "status"))
    handle = obtain_session(None, SLOTS, args.parallelism, "bench", None)
    try:
        first_start = None
        if args.warm_up is not None:
            warm = argparse.Namespace(**{**vars(args), "operator_delay_us": 0})
            first_start = jumps(warm, args.warm_up, "warm-up")["started_at"]
        match args.workload:
            case "jumps":
                line = jumps(args, args.data, "jumps")
            case "latency" | "two-inputs":
                line = latency(args)
            case "recovery":
                line = recovery(args)
            case _:
                line = memory(args)
    finally:
        handle.stop()
    started = first_start or line["started_at"]
    del line["started_at"]
    variant = f"{args.backend}, {args.mode}, {args.checkpoint_interval_ms or 'no checkpoints'}"
    versions = {"headrace": version("headrace"), "pyspark": version("pyspark")}
    line = {"peer": "headrace", "variant": variant, "startup_seconds": started - STARTED, **line, "versions": versions}
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
