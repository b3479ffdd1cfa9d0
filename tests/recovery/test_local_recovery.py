"""A worker dies and its job restarts on the same host: nothing of its state is read from storage again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

import pytest
import saboteurs
from ledger import Bookkeeper, Ledger, LedgerSink, LedgerSource

from headrace import Configuration, FileSystemCheckpointStorage, WatermarkStrategy
from headrace.checkpoint.handles import StateFile
from headrace.checkpoint.local_copies import LocalCopies

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


class WatchedStorage(FileSystemCheckpointStorage):
    """Every file in a file of its own; notes each state file that is read from it, by whatever process."""

    def __init__(self, path: str, notes: str) -> None:
        super().__init__(path, file_state_size_threshold=0)
        self.notes = notes

    def file_store(self, prefix: str, known_shared: frozenset[str] = frozenset()) -> Any:
        return WatchedStore(super().file_store(prefix, known_shared), self.notes)


class WatchedStore:
    """The file store of `WatchedStorage`."""

    def __init__(self, store: Any, notes: str) -> None:
        self._store = store
        self._notes = notes
        self.write, self.write_shared = store.write, store.write_shared

    def open(self, file: StateFile) -> IO[bytes]:
        self._note(file)
        return self._store.open(file)  # type: ignore[no-any-return]

    def read(self, file: StateFile) -> bytes:
        self._note(file)
        return self._store.read(file)  # type: ignore[no-any-return]

    def fetch(self, file: StateFile, to: Path) -> None:
        self._note(file)
        self._store.fetch(file, to)

    def _note(self, file: StateFile) -> None:
        if "/keyed-" in file.path or "/shared/" in file.path:
            with open(self._notes, "a") as notes:
                notes.write(f"{os.getpid()} {file.path}\n")


def run(bench: Any, faults: Any, start: Any, backend: str, *, local: bool) -> Any:
    faults.planned = 1
    ledger = Ledger(length=300, rate=3_000, checkpoints=f"{bench.directory}/checkpoints").holding_for(faults)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=50, backend=backend)
    storage = WatchedStorage(f"{bench.directory}/checkpoints", str(bench.directory / "notes"))
    env.get_checkpoint_config().set_checkpoint_storage(storage)
    if not local:
        env.configure(Configuration({"state.backend.local-recovery": "false"}))
    records = env.from_source(LedgerSource(ledger), WatermarkStrategy.for_monotonous_timestamps(), "ledger").uid("src")
    books = records.key_by(lambda record: record[0]).process(Bookkeeper(ledger.window)).uid("books").name("books")
    killer = saboteurs.Saboteur(saboteurs.kill_the_worker, at_key_3, [str(faults.log / "deed")])
    books.map(killer).uid("tampered").sink_to(sink).uid("sink")
    job = start(env)
    assert job.finish().restarts == 1
    assert ledger.problems(sink.lines()) == []
    assert not LocalCopies(storage.location, "ledger/run-000001").directory.exists(), "they go with the job"
    return job


def at_key_3(line: Any) -> bool:
    return tuple(line[:3]) == ("seq", 3, 200)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_restart_on_the_same_host_reads_no_state_from_storage(
    bench: Any, faults: Any, start: Any, backend: str
) -> None:
    job = run(bench, faults, start, backend, local=True)
    first, second = job.kinds("running")
    assert first["bytes"] == {"local": 0, "from_store": 0, "damaged": 0}
    assert second["restored"] is not None
    assert second["bytes"]["local"] > 0
    assert (second["bytes"]["from_store"], second["bytes"]["damaged"]) == (0, 0)
    assert job.report.restored_bytes == second["bytes"]
    assert not Path(bench.directory, "notes").exists()


def test_without_local_recovery_all_of_it_is_read_from_storage(bench: Any, faults: Any, start: Any) -> None:
    job = run(bench, faults, start, "rocksdb", local=False)
    restored = job.kinds("running")[1]["bytes"]
    assert restored["local"] == 0
    assert restored["from_store"] > 0
    assert Path(bench.directory, "notes").read_text()
