"""What checkpoints cost and how fast they come back, measured on the backends themselves, without Spark.

Each measure works on a state of `--rows` keys with values of `--value-bytes` random bytes (a million of 1,000 bytes:
1 GB) and prints one JSON line, as `harness.py` wants it. What it is compared with (a plain copy of the same files,
`sha256sum`) runs in turn with it, `--repeats` times; the line has every single time.

    --measure standstill    the longest gap between two updates of a state while a checkpoint is taken and written
    --measure write         taking and writing a whole checkpoint, against copying the files and syncing them
    --measure restore       restoring it, from storage and from local copies, against copying the files
    --measure rescale       --old subtasks restored as --new ones, all at once, against copying the old files
    --measure verify        `headrace checkpoints verify` against sha256sum of the same files
    --measure increments    bytes uploaded after changing a share of the keys; plotted into bench/results/
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from bench.plot import Series, write_plot
from headrace.backends.heap.backend import HeapBackend
from headrace.backends.rocksdb.backend import RocksDBBackend
from headrace.checkpoint.handles import KeyedSnapshot, StateFile, SubtaskSnapshot
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.local_copies import LocalCopies
from headrace.checkpoint.local_files import KeepingFileStore, LocalFirstFileStore
from headrace.checkpoint.metadata.model import CheckpointMetadata, OperatorRecord
from headrace.checkpoint.places import find_place
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.storage.paths import WriterScope
from headrace.checkpoint.verification import verify
from headrace.state.backend import BackendContext, FileStore, KeyedStateBackend
from headrace.state.descriptors import ValueStateDescriptor
from headrace.state.key_groups import group_range, key_group
from headrace.types.information import Types

MAX_PARALLELISM = 128
JOB = "bench"
HOME = f"{JOB}/run-000001"
VALUE = ValueStateDescriptor("value", Types.PRIMITIVE_ARRAY(Types.BYTE()))
UPDATE_SECONDS = 1e-5
"""For one update of the standstill measure: 100,000 a second, 100 MB of changed state."""
CHANGED_SHARES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
PLOT = Path(__file__).parent / "results" / "checkpoint-upload-vs-change.svg"


class Bench:
    """A state of the wanted size in one or several subtasks, and a storage for its checkpoints."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.scratch = Path(args.scratch)
        self.storage = FileSystemCheckpointStorage(str(self.scratch / "checkpoints"))
        self._folders = 0
        # One long text of random bytes, of which every value is a cut: to make each by itself would take longer than
        # to store it, and RocksDB compresses blocks, within which no two cuts meet.
        self._noise = random.Random(7).randbytes(16 << 20)

    def value(self, number: int) -> bytes:
        """A value for the key; another one for another number."""
        size = self.args.value_bytes
        start = (number * 7919 * 13) % (len(self._noise) - size)
        return self._noise[start : start + size]

    def backend(self, subtask: int = 0, parallelism: int = 1) -> KeyedStateBackend:
        self._folders += 1
        local = self.scratch / f"local-{self._folders}"
        local.mkdir()
        groups = group_range(subtask, parallelism, MAX_PARALLELISM)
        context = BackendContext("bench", subtask, groups, MAX_PARALLELISM, local)
        return HeapBackend(context) if self.args.backend == "heap" else RocksDBBackend(context)

    def filled(self, parallelism: int = 1) -> list[KeyedStateBackend]:
        backends = [self.backend(subtask, parallelism) for subtask in range(parallelism)]
        states = [backend.state(VALUE) for backend in backends]
        contexts = [backend.key_context for backend in backends]
        for key in range(self.args.rows):
            owner = key_group(key, MAX_PARALLELISM) * parallelism // MAX_PARALLELISM if parallelism > 1 else 0
            contexts[owner].key = key
            states[owner].update(self.value(key))
        for backend in backends:
            settle(backend)
        return backends

    def store(self, checkpoint_id: int) -> FileStore:
        return self.storage.file_store(WriterScope(HOME, checkpoint_id, 1).prefix)

    def files(self, snapshots: list[KeyedSnapshot]) -> list[Path]:
        """Every object in storage that the snapshots need."""
        paths = {file.path for snapshot in snapshots for file in snapshot.files if file.path}
        return sorted(self.storage.root / path for path in paths)

    def copy(self, files: list[Path], *, sync: bool) -> float:
        """Seconds of a plain copy of the files into an empty directory, by the operating system."""
        target = self.scratch / "plain-copy"
        target.mkdir()
        try:
            with stopwatch() as watch:
                subprocess.run(["cp", *map(str, files), str(target)], check=True)
                if sync:
                    subprocess.run(["sync", *(str(target / file.name) for file in files)], check=True)
            return watch.seconds
        finally:
            shutil.rmtree(target)


def settle(backend: KeyedStateBackend) -> None:
    """Wait until RocksDB has flushed and compacted what was written: that is no part of a checkpoint's cost."""
    if not isinstance(backend, RocksDBBackend):
        return
    keeper = backend._opened()
    keeper.write_all()
    families = list(keeper.database.families.values())
    for family in families:
        family.flush()
    busy = ("rocksdb.num-running-compactions", "rocksdb.compaction-pending", "rocksdb.num-running-flushes")
    while any(family._dict.property_int_value(name) for family in families for name in busy):
        time.sleep(0.1)


class Stopwatch:
    """Seconds between the begin and the end of a block."""

    seconds = 0.0


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    watch = Stopwatch()
    started = time.perf_counter()
    yield watch
    watch.seconds = time.perf_counter() - started


def standstill(bench: Bench) -> dict[str, Any]:
    """The loop below is the mailbox: it updates a state, key after key, and takes the snapshot between two updates."""
    (backend,) = bench.filled()
    # As a task does: see runtime/task/main.py.
    sys.setswitchinterval(0.001)
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    state, context = backend.state(VALUE), backend.key_context
    keys = cycle(random.Random(1).choices(range(bench.args.rows), k=100_000))
    fresh = bench.value(-1)

    def longest_gaps(until: Callable[[], bool]) -> tuple[float, float]:
        """In milliseconds: the longest gap, and the longest if waiting for a free core is left out."""
        longest = longest_own = 0.0
        before, waited = time.perf_counter(), queued_seconds()
        while not until():
            for key in islice(keys, 2_000):
                context.key = key
                state.update(fresh)
                # A busy mailbox does more than this with each record; as fast as it goes, the disk would set the pace.
                while (now := time.perf_counter()) - before < UPDATE_SECONDS:
                    pass
                gap, before = now - before, now
                if gap > 0.001:
                    waiting = queued_seconds()
                    longest_own = max(longest_own, gap - (waiting - waited))
                    longest, waited = max(longest, gap), waiting
        return longest * 1_000, longest_own * 1_000

    gaps, own_gaps, calls, seconds = [], [], [], []
    end = time.perf_counter() + 2
    undisturbed = longest_gaps(lambda: time.perf_counter() > end)
    for checkpoint_id in range(1, bench.args.repeats + 1):
        waited = queued_seconds()
        with stopwatch() as call:
            work = backend.snapshot(checkpoint_id)
        own_call = (call.seconds - (queued_seconds() - waited)) * 1_000
        with stopwatch() as writing:
            thread = threading.Thread(target=work.write, args=(bench.store(checkpoint_id),))
            thread.start()
            gap, own_gap = longest_gaps(lambda: not thread.is_alive())  # noqa: B023 - used at once
            thread.join()
        backend.checkpoint_complete(checkpoint_id)
        calls.append(call.seconds * 1_000)
        gaps.append(max(gap, call.seconds * 1_000))
        own_gaps.append(max(own_gap, own_call))
        seconds.append(call.seconds + writing.seconds)
    backend.close()
    return {
        "standstill_ms": statistics.median(gaps),
        "standstills_ms": gaps,
        "standstill_not_waiting_for_a_core_ms": statistics.median(own_gaps),
        "standstills_not_waiting_for_a_core_ms": own_gaps,
        "snapshot_calls_ms": calls,
        "checkpoint_seconds": seconds,
        "longest_gap_without_checkpoint_ms": undisturbed[0],
    }


def queued_seconds() -> float:
    """How long this thread could have run but other programs had the cores; tells a busy machine from a standstill."""
    with open(f"/proc/self/task/{threading.get_native_id()}/schedstat") as numbers:
        return int(numbers.read().split()[1]) / 1e9


def write(bench: Bench) -> dict[str, Any]:
    (backend,) = bench.filled()
    ours, copies = [], []
    for checkpoint_id in range(1, bench.args.repeats + 2):
        # Nothing was completed, so everything is new to each of them.
        with stopwatch() as watch:
            snapshot = backend.snapshot(checkpoint_id).write(bench.store(checkpoint_id))
        files = bench.files([snapshot])
        copied = bench.copy(files, sync=True)
        # Both find room that the round before has left; memory that a virtual machine never had is slow to get. The
        # first round makes that room.
        for file in files:
            file.unlink()
        if checkpoint_id > 1:
            ours.append(watch.seconds)
            copies.append(copied)
    backend.close()
    return {"copy_ratio": ratio(copies, ours), "our_seconds": ours, "copy_seconds": copies, **sizes([snapshot])}


def restore(bench: Bench) -> dict[str, Any]:
    (backend,) = bench.filled()
    copies = LocalCopies(bench.storage.location, HOME, bench.scratch / "host")
    copies.begin(None)
    snapshot = backend.snapshot(1).write(KeepingFileStore(bench.store(1), copies, 1))
    backend.close()
    ours, local, plain = [], [], []
    for _ in range(bench.args.repeats):
        plain.append(bench.copy(bench.files([snapshot]), sync=False))
        ours.append(_restored(bench, [snapshot], bench.store(0)))
        store = LocalFirstFileStore(bench.store(0), copies)
        local.append(_restored(bench, [snapshot], store))
        assert store.restored.from_store == 0
    return {
        "copy_ratio": ratio(plain, ours),
        "local_copy_ratio": ratio(plain, local),
        "our_seconds": ours,
        "our_local_seconds": local,
        "copy_seconds": plain,
        **sizes([snapshot]),
    }


def _restored(bench: Bench, snapshots: list[KeyedSnapshot], store: Any) -> float:
    """Seconds until the state can be used."""
    with stopwatch() as watch:
        backend = _usable(bench, snapshots, store)
    backend.close()
    return watch.seconds


def _usable(
    bench: Bench, snapshots: list[KeyedSnapshot], store: Any, subtask: int = 0, parallelism: int = 1
) -> KeyedStateBackend:
    """A backend with the restored state; one key is looked up to see that it is there."""
    backend = bench.backend(subtask, parallelism)
    groups = group_range(subtask, parallelism, MAX_PARALLELISM)
    backend.restore([s for s in snapshots if s.first_group < groups.stop and groups.start <= s.last_group], store)
    state = backend.state(VALUE)
    key = next(key for key in range(bench.args.rows) if key_group(key, MAX_PARALLELISM) in groups)
    backend.key_context.key = key
    assert state.value() == bench.value(key)
    return backend


def rescale(bench: Bench) -> dict[str, Any]:
    old, new = bench.args.old, bench.args.new
    snapshots = []
    for backend in bench.filled(old):
        snapshots.append(backend.snapshot(1).write(bench.store(1)))
        backend.close()
    ours, plain = [], []
    for _ in range(bench.args.repeats):
        plain.append(bench.copy(bench.files(snapshots), sync=False))
        with stopwatch() as watch, ThreadPoolExecutor(new) as pool:
            restored = list(pool.map(lambda n: _usable(bench, snapshots, bench.store(0), n, new), range(new)))
        ours.append(watch.seconds)
        for backend in restored:
            backend.close()
    return {"copy_ratio": ratio(plain, ours), "our_seconds": ours, "copy_seconds": plain, **sizes(snapshots)}


def verification(bench: Bench) -> dict[str, Any]:
    directory = JobDirectory(bench.storage, JOB)
    directory.open_run()
    directory.record_restored(directory.claim_attempt(), None)
    (backend,) = bench.filled()
    snapshot = backend.snapshot(1).write(bench.store(1))
    backend.close()
    directory.publish(_metadata(snapshot))
    path = f"{bench.storage.root}/{HOME}/chk-000001"
    ours, sums = [], []
    for _ in range(bench.args.repeats):
        with stopwatch() as watch:
            subprocess.run(["sha256sum", *map(str, bench.files([snapshot]))], check=True, stdout=subprocess.DEVNULL)
        sums.append(watch.seconds)
        with stopwatch() as watch:
            assert verify(find_place(path).checkpoints()).whole
        ours.append(watch.seconds)
    return {"sha256sum_ratio": ratio(sums, ours), "our_seconds": ours, "sha256sum_seconds": sums, **sizes([snapshot])}


def increments(bench: Bench) -> dict[str, Any]:
    (backend,) = bench.filled()
    first = backend.snapshot(1).write(bench.store(1))
    backend.close()
    whole = sum(file.size for file in first.files)
    uploaded: dict[float, int] = {}
    for number, share in enumerate(CHANGED_SHARES, 2):
        # Each share begins from the first checkpoint, so that no compaction of one falls into the next.
        backend = bench.backend()
        backend.restore([first], bench.store(0))
        known = frozenset(file.path for file in first.files if file.shared)
        store = bench.storage.file_store(WriterScope(HOME, number, 1).prefix, known)
        state = backend.state(VALUE)
        for key in random.Random(number).sample(range(bench.args.rows), int(bench.args.rows * share)):
            backend.key_context.key = key
            state.update(bench.value(key + number * bench.args.rows))
        second = backend.snapshot(number).write(store)
        uploaded[share] = sum(file.size for file in second.files if file.path not in known)
        backend.close()
    points = [(100 * share, 100 * size / whole) for share, size in uploaded.items()]
    write_plot(
        bench.args.plot or PLOT,
        f"Bytes uploaded by an incremental checkpoint, {bench.args.rows:,} keys",
        "changed keys, %",
        "uploaded, % of the first checkpoint",
        [Series("RocksDB, incremental", points), Series("proportional", [(x, x) for x, _ in points], dashed=True)],
    )
    return {
        "uploaded_share": uploaded[0.01] / whole,
        "uploaded_bytes": {str(share): size for share, size in uploaded.items()},
        **sizes([first]),
    }


def _metadata(keyed: KeyedSnapshot) -> CheckpointMetadata:
    subtask = SubtaskSnapshot("bench", 0, 1, MAX_PARALLELISM, keyed=keyed)
    return CheckpointMetadata(
        job_id=JOB,
        job_name=JOB,
        run=1,
        attempt=1,
        checkpoint_id=1,
        kind="checkpoint",
        mode="aligned",
        created_ms=0,
        duration_ms=0,
        operators=(OperatorRecord("bench", "bench", 1, MAX_PARALLELISM, (subtask,)),),
    )


def ratio(theirs: list[float], ours: list[float]) -> float:
    """Our speed over theirs: the median of the pairs."""
    return statistics.median(their / our for their, our in zip(theirs, ours, strict=True))


def sizes(snapshots: list[KeyedSnapshot]) -> dict[str, int]:
    files: list[StateFile] = [file for snapshot in snapshots for file in snapshot.files]
    return {"state_bytes": sum(file.size for file in files), "objects": len({file.path for file in files if file.path})}


MEASURES: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "standstill": standstill,
    "write": write,
    "restore": restore,
    "rescale": rescale,
    "verify": verification,
    "increments": increments,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.checkpoint_job")
    parser.add_argument("--measure", choices=MEASURES, required=True)
    parser.add_argument("--backend", choices=("heap", "rocksdb"), default="rocksdb")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=1_000)
    parser.add_argument("--old", type=int, default=2)
    parser.add_argument("--new", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--scratch", required=True)
    args = parser.parse_args()
    os.makedirs(args.scratch, exist_ok=True)
    with stopwatch() as watch:
        found = MEASURES[args.measure](Bench(args))
    variant = f"{args.backend}, {args.rows:,} keys of {args.value_bytes} bytes"
    line = {
        "peer": "headrace",
        "variant": variant,
        "records": args.rows,
        "seconds_between_first_and_last_record": watch.seconds,
    }
    print(json.dumps(line | found), flush=True)


if __name__ == "__main__":
    main()
