"""Looking at checkpoints from outside: what a path leads to, what it says, whether it is whole, what is garbage."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from golden_jobs import JOB, Job, Publisher, Shape, expected_contents, job, restored, save_savepoint

from headrace.checkpoint.collection import Why, audit, collect
from headrace.checkpoint.inspection import change_since, report_of
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.lease import Lease
from headrace.checkpoint.metadata.codec import encode_metadata, files_of
from headrace.checkpoint.places import JobPlace, find_place
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.verification import Damage, verify
from headrace.cli.main import main
from headrace.errors import DamagedCheckpointError, JobOwnedError, RestoreError


@pytest.fixture
def storage(tmp_path: Path) -> FileSystemCheckpointStorage:
    return FileSystemCheckpointStorage(str(tmp_path / "store"))


@pytest.fixture
def rocks() -> Iterator[Job]:
    with job(Shape(backend="rocksdb", extra_keys=8_000)) as made:
        yield made


@pytest.fixture
def heap() -> Iterator[Job]:
    with job(Shape(backend="heap", extra_keys=8_000)) as made:
        yield made


def place_of(storage: FileSystemCheckpointStorage) -> JobPlace:
    return JobPlace(storage, JOB)


def headrace(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["checkpoints", *arguments], env={"COLUMNS": "200"})


def state_file(storage: FileSystemCheckpointStorage, checkpoint_id: int) -> Path:
    """One file of a checkpoint that is its own."""
    (found,) = (f for f in place_of(storage).checkpoints() if f.checkpoint.checkpoint_id == checkpoint_id)
    return storage.root / min(files_of(found.whole))


# What a path stands for


def test_every_form_of_path_leads_to_the_same_checkpoint(
    storage: FileSystemCheckpointStorage, heap: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Publisher(storage).publish(heap, 3)
    run = f"{JOB}/run-000001"
    monkeypatch.chdir(storage.root)
    for path in (
        *(
            str(storage.root),
            f"{storage.root}/",
            str(storage.root / JOB),
            storage.location,
            f"{storage.location}/{JOB}",
        ),
        *(f"{storage.root}/{run}", f"{storage.root}/{run}/chk-000003", f"{storage.root}/{run}/chk-000003/_metadata"),
        *(JOB, run, f"{run}/chk-000003", "."),
    ):
        assert find_place(path).one().checkpoint.checkpoint_id == 3, path


def test_savepoints_are_found_alone_together_and_beside_their_job(
    storage: FileSystemCheckpointStorage, heap: Job, tmp_path: Path
) -> None:
    Publisher(storage).publish(heap, 1)
    for name in ("one", "two"):
        save_savepoint(FileSystemCheckpointStorage(str(storage.root / JOB / "savepoints" / name)), heap)
        save_savepoint(FileSystemCheckpointStorage(str(tmp_path / "kept" / name)), heap)
    assert find_place(str(tmp_path / "kept/one")).one().whole.kind == "savepoint"
    assert len(find_place(str(tmp_path / "kept")).checkpoints()) == 2
    kinds = [found.whole.kind for found in find_place(str(storage.root / JOB)).checkpoints()]
    assert kinds == ["checkpoint", "savepoint", "savepoint"]
    assert find_place(str(storage.root / JOB)).one().whole.kind == "checkpoint"


def test_a_path_with_nothing_of_ours_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for path in (tmp_path / "photos", tmp_path / "nowhere", tmp_path / "job/run-000001/chk-000009"):
        with pytest.raises(RestoreError, match=str(path)):
            find_place(str(path))
    result = headrace("list", str(tmp_path / "photos"))
    assert result.exit_code == 3
    assert "photos" in result.stderr


# What a checkpoint says


def test_a_report_counts_bytes_states_and_times(storage: FileSystemCheckpointStorage, rocks: Job) -> None:
    metadata = Publisher(storage).publish(rocks, 1)
    report = report_of(place_of(storage).checkpoints()[0])
    on_disk = sum((storage.root / path).stat().st_size for path in files_of(metadata))
    assert report.bytes.total - report.bytes.inline == on_disk
    assert 0 < report.bytes.shared <= on_disk
    assert report.metadata_bytes == (storage.root / JOB / "run-000001/chk-000001/_metadata").stat().st_size
    assert (report.status, report.mode, report.cells_in_flight) == ("complete", "unaligned", 1)
    assert (report.duration_ms, report.alignment_ms, report.sync_ms, report.async_ms) == (120, 30, 4, 50)
    keyed = next(operator for operator in report.operators if operator.uid == "per-user")
    assert {(state.name, state.kind) for state in keyed.keyed} >= {("count", "value"), ("seen", "list")}
    assert {state.name: state.elements for state in keyed.operator_state} == {"pending": 4, "offsets": 2, "rules": 4}
    assert sum(keyed.subtask_bytes) == keyed.bytes.total
    assert (keyed.prepared, keyed.watermark_ms, keyed.formats) == (2, 50_000, ("rocksdb",))


def test_what_changed_since_the_last_is_what_had_to_be_stored(storage: FileSystemCheckpointStorage, rocks: Job) -> None:
    publisher = Publisher(storage)
    first = publisher.publish(rocks, 1)
    unchanged = change_since(first, publisher.publish(rocks, 2))
    rocks.set_count("somebody new", 1)
    third = publisher.publish(rocks, 3)
    change = change_since(first, third)
    assert unchanged.same_bytes > 0
    assert change.new_files > 0
    assert change.new_bytes < change.same_bytes
    assert change_since(third, third).new_files == change_since(third, third).gone_files == 0


def test_the_list_and_the_inspection_are_tables_for_people_and_json_for_programs(
    storage: FileSystemCheckpointStorage, rocks: Job
) -> None:
    publisher = Publisher(storage)
    for checkpoint_id in (1, 2):
        publisher.publish(rocks, checkpoint_id)
    path = str(storage.root / JOB)
    rows = json.loads(headrace("list", path, "--json").stdout)["checkpoints"]
    assert [(row["checkpoint_id"], row["status"], row["kind"]) for row in rows] == [
        (1, "complete", "checkpoint"),
        (2, "complete", "checkpoint"),
    ]
    assert rows[0]["bytes"]["total"] > rows[0]["bytes"]["shared"] > 0
    table = headrace("list", path).stdout.splitlines()
    assert table[0].split()[:5] == ["run", "id", "kind", "mode", "status"]
    assert len(table) == 3
    found = json.loads(headrace("inspect", path, "--json").stdout)
    assert found["checkpoint"]["checkpoint_id"] == 2
    assert found["change"]["since"] == 1
    shown = headrace("inspect", f"{path}/run-000001/chk-000001").stdout
    for text in ("counts per user", "seen: list of STRING", "alignment 30 ms", "2 splits", "rocksdb"):
        assert text in shown
    assert "since" not in shown
    assert "since 1" in headrace("inspect", path).stdout


# Whether it is whole


def test_a_whole_checkpoint_verifies_and_every_file_is_read_once(
    storage: FileSystemCheckpointStorage, rocks: Job
) -> None:
    publisher = Publisher(storage)
    for checkpoint_id in (1, 2, 3):
        publisher.publish(rocks, checkpoint_id)
    found = place_of(storage).checkpoints()
    outcome = verify(found)
    assert outcome.whole
    assert outcome.checkpoints == 3
    assert outcome.bytes < sum(report_of(one).bytes.total for one in found)
    assert headrace("verify", str(storage.root / JOB)).exit_code == 0


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _link(path: Path) -> None:
    elsewhere = path.with_name("elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, tuple[Callable[[Path], Any], Damage]] = {
    "missing": (Path.unlink, Damage.MISSING),
    "truncated": (lambda path: os.truncate(path, path.stat().st_size - 1), Damage.TRUNCATED),
    "empty": (lambda path: os.truncate(path, 0), Damage.TRUNCATED),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"\0"), Damage.LONGER),
    "flipped": (_flip, Damage.CHANGED),
    "zeroed": (lambda path: path.write_bytes(bytes(path.stat().st_size)), Damage.CHANGED),
    "link": (_link, Damage.UNSAFE),
    "unreadable": (_directory, Damage.UNREADABLE),
}


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_every_kind_of_damage_to_every_file_is_named(
    storage: FileSystemCheckpointStorage, backend: str, name: str, tmp_path: Path
) -> None:
    harm, damage = DAMAGES[name]
    with job(Shape(backend=backend, extra_keys=8_000)) as made:
        metadata = Publisher(storage).publish(made, 1)
    whole = tmp_path / "whole"
    shutil.copytree(storage.root, whole)
    for path in sorted(files_of(metadata)):
        shutil.rmtree(storage.root)
        shutil.copytree(whole, storage.root)
        harm(storage.root / path)
        (finding,) = verify(place_of(storage).checkpoints()).findings
        assert finding.damage is damage
        assert finding.path.endswith(path)
        result = headrace("verify", str(storage.root / JOB), "--json")
        assert result.exit_code == 1
        assert json.loads(result.stdout)["findings"][0]["path"].endswith(path)
    shown = headrace("verify", str(storage.root / JOB))
    assert shown.exit_code == 1
    assert damage.value in shown.stdout


@pytest.mark.parametrize("harm", [_flip, lambda path: os.truncate(path, 20), lambda path: path.write_bytes(b"")])
def test_damaged_metadata_is_named_by_verify_and_by_the_list(
    storage: FileSystemCheckpointStorage, heap: Job, harm: Callable[[Path], Any]
) -> None:
    publisher = Publisher(storage)
    publisher.publish(heap, 1)
    publisher.publish(heap, 2)
    path = storage.root / JOB / "run-000001/chk-000002/_metadata"
    harm(path)
    outcome = verify(place_of(storage).checkpoints())
    assert [(f.damage, f.path) for f in outcome.findings] == [(Damage.METADATA, path.as_uri())]
    listed = headrace("list", str(storage.root / JOB))
    assert listed.exit_code == 0
    assert "damaged: " in listed.stdout
    for command in ("inspect", "gc"):
        arguments = ["--delete"] if command == "gc" else []
        refused = headrace(command, str(storage.root / JOB), *arguments)
        assert refused.exit_code == 3
        assert "chk-000002/_metadata" in refused.stderr


def test_a_damaged_newest_checkpoint_stops_the_start_and_an_older_one_is_taken_only_by_name(
    storage: FileSystemCheckpointStorage, heap: Job
) -> None:
    publisher = Publisher(storage)
    publisher.publish(heap, 1)
    publisher.publish(heap, 2)
    _flip(storage.root / JOB / "run-000001/chk-000002/_metadata")
    directory = JobDirectory(storage, JOB)
    directory.open_run()
    with pytest.raises(DamagedCheckpointError, match=r"chk-000002/_metadata is damaged.*--from"):
        directory.newest()
    assert find_place(str(storage.root / JOB / "run-000001/chk-000001")).one().whole.checkpoint_id == 1
    # One that is older than the newest whole one does not matter.
    publisher.publish(heap, 3)
    assert directory.newest() is not None


# What nothing needs


def test_gc_shows_what_a_crash_left_and_removes_it_only_when_told(
    storage: FileSystemCheckpointStorage, rocks: Job
) -> None:
    publisher = Publisher(storage)
    first = publisher.publish(rocks, 1)
    rocks.set_count("lost", 1)
    # Files of a checkpoint whose driver died before it was published, and a half-written one.
    rocks.shape = Shape(backend="rocksdb", checkpoint_id=2)
    abandoned = files_of(rocks.metadata(publisher.store(2))) - files_of(first)
    half = storage.root / JOB / "run-000001/chk-000002/.tmp-0000"
    half.parent.mkdir(exist_ok=True)
    half.write_bytes(b"half")
    before = sorted(path for path in storage.root.rglob("*") if path.is_file())
    found = audit(place_of(storage))
    assert {item.path for item in found.garbage if item.why is Why.UNNAMED} == abandoned
    assert [item.why for item in found.garbage if item.path.endswith(".tmp-0000")] == [Why.UNFINISHED]
    assert found.needed_files == len(files_of(first)) + 1
    shown = headrace("gc", str(storage.root / JOB))
    assert "would be removed with --delete" in shown.stdout
    assert sorted(path for path in storage.root.rglob("*") if path.is_file()) == before
    removed = headrace("gc", str(storage.root / JOB), "--delete", "--json")
    assert json.loads(removed.stdout)["deleted"] is True
    assert audit(place_of(storage)).garbage == ()
    assert not half.exists()
    assert verify(place_of(storage).checkpoints()).whole


def test_gc_is_refused_while_the_job_runs(storage: FileSystemCheckpointStorage, heap: Job) -> None:
    publisher = Publisher(storage)
    publisher.publish(heap, 1)
    lease = Lease(storage, JOB)
    lease.acquire()
    with pytest.raises(JobOwnedError):
        collect(place_of(storage))
    refused = headrace("gc", str(storage.root / JOB), "--delete")
    assert refused.exit_code == 4
    assert f"process {os.getpid()}" in refused.stderr
    assert "The job is running" in headrace("gc", str(storage.root / JOB)).stdout
    lease.release()
    assert headrace("gc", str(storage.root / JOB), "--delete").exit_code == 0


def test_a_driver_that_slept_through_a_collection_publishes_in_vain(
    storage: FileSystemCheckpointStorage, heap: Job
) -> None:
    sleeper = Publisher(storage)
    sleeper.publish(heap, 1)
    heap.shape = Shape(backend="heap", checkpoint_id=2, attempt=sleeper.attempt)
    written = heap.metadata(sleeper.store(2))
    collect(place_of(storage))
    # It wakes up behind its own check of the attempts, which is as late as it can be.
    storage.create_exclusive(f"{JOB}/run-000001/chk-000002/_metadata", encode_metadata(written))
    directory = JobDirectory(storage, JOB)
    directory.open_run()
    newest = directory.newest()
    assert newest is not None
    assert newest.checkpoint_id == 1
    found = audit(place_of(storage))
    assert {item.why for item in found.garbage} == {Why.SUPERSEDED}
    assert [one.status for one in map(report_of, place_of(storage).checkpoints())] == ["complete", "superseded"]


@pytest.mark.thorough
def test_a_collection_that_is_killed_at_any_step_harms_nothing_and_is_finished_by_the_next(
    storage: FileSystemCheckpointStorage, rocks: Job, tmp_path: Path
) -> None:
    publisher = Publisher(storage)
    kept = publisher.publish(rocks, 1)
    rocks.set_count("lost", 1)
    rocks.shape = Shape(backend="rocksdb", checkpoint_id=2)
    rocks.metadata(publisher.store(2))
    for _ in range(4):
        publisher.store(2).write("left", [bytes(50_000)])
    garbage = len(audit(place_of(storage)).garbage)
    assert garbage >= 4
    command = [sys.executable, "-m", "headrace.cli", "checkpoints", "gc", str(storage.root / JOB), "--delete"]
    for step in range(1, garbage):
        faults = tmp_path / f"faults-{step}"
        faults.mkdir()
        environment = os.environ | {"HEADRACE_FAILPOINTS": "gc_deleted=kill@1", "HEADRACE_FAULT_LOG": str(faults)}
        assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
        assert len(audit(place_of(storage)).garbage) == garbage - step
        assert verify(place_of(storage).checkpoints()).whole
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    assert audit(place_of(storage)).garbage == ()
    assert restored(kept, storage, tmp_path, "rocksdb", 2) == expected_contents(8_000)


def test_shared_files_that_a_damaged_checkpoint_may_name_are_kept(
    storage: FileSystemCheckpointStorage, rocks: Job
) -> None:
    publisher = Publisher(storage)
    publisher.publish(rocks, 1)
    rocks.set_count("new", 1)
    publisher.publish(rocks, 2)
    _flip(storage.root / JOB / "run-000001/chk-000001/_metadata")
    found = audit(place_of(storage))
    assert found.garbage == ()
    assert "chk-000001/_metadata is damaged" in found.kept_back[0]


def test_every_file_is_accounted_for_after_many_checkpoints_with_drops(
    storage: FileSystemCheckpointStorage, rocks: Job
) -> None:
    publisher = Publisher(storage)
    directory = publisher.directory
    kept = []
    for checkpoint_id in range(1, 21):
        rocks.set_count(f"k{checkpoint_id}", checkpoint_id)
        if checkpoint_id % 4 == 0:
            # Abandoned: its files are discarded as the driver does it, shared ones are left to the collector.
            rocks.shape = Shape(backend="rocksdb", checkpoint_id=checkpoint_id)
            directory.discard(files_of(rocks.metadata(publisher.store(checkpoint_id))))
            continue
        kept.append(publisher.publish(rocks, checkpoint_id))
        directory.drop([old.checkpoint_id for old in kept[:-2]])
        kept = kept[-2:]
    collector = JobDirectory(storage, JOB, grace_ms=0)
    collector.open_run()
    collector.collect_shared(kept, publisher.attempt)
    found = audit(place_of(storage))
    assert found.garbage == ()
    on_disk = {path.relative_to(storage.root).as_posix() for path in storage.root.rglob("*") if path.is_file()}
    named = set().union(*map(files_of, kept))
    metadata = {f"{JOB}/run-000001/chk-{one.checkpoint_id:06d}/_metadata" for one in kept}
    records = {f"{JOB}/run-000001/attempt-000001", f"{JOB}/run-000001/restored-000001"}
    records |= {f"{JOB}/run-000001/published-000001-{one.checkpoint_id:06d}" for one in kept}
    assert on_disk == named | metadata | records
