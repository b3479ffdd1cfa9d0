"""Two hundred checkpoints with aborts, kills and restarts at moments drawn by a seed; then every file is counted."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from audited_job import JOB, MUST_HAPPEN, RETAIN, AuditedJob, AuditedStore, Driver

from headrace.checkpoint.collection import Why, audit, collect
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.metadata.codec import files_of
from headrace.checkpoint.places import JobPlace
from headrace.checkpoint.verification import verify
from headrace.errors import HeadraceError
from headrace.runtime.coordinator.ports import Removal

RECORD = re.compile(rf"{JOB}/run-000001/(?:attempt-\d{{6}}|restored-\d{{6}}|published-\d{{6}}-(\d{{6}}))")


def on_disk(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def exactly_named(job: AuditedJob) -> tuple[set[str], list[int]]:
    """What the checkpoints that count name, themselves included; read anew from the directory."""
    directory = JobDirectory(job.storage, JOB)
    directory.open_run()
    named: set[str] = set()
    ids = []
    for ref in directory.completed():
        ids.append(ref.checkpoint_id)
        named |= {ref.path, *files_of(directory.load(ref))}
    return named, ids


def audited(
    folder: Path, seed: int, driver: type[Driver] = Driver, must_happen: Mapping[str, int] = MUST_HAPPEN
) -> AuditedJob:
    job = AuditedJob(folder / "store", folder / "local", seed, driver)
    root = job.storage.root
    place = JobPlace(job.storage, JOB)
    job.run(must_happen)

    # In the middle of it all: nothing that counts lacks anything, and what nobody names is known as such.
    named, _ = exactly_named(job)
    found = on_disk(root)
    assert named <= found, "nothing is missing"
    assert verify([one for one in place.checkpoints() if one.checkpoint.counts]).findings == ()
    halves = {half.relative_to(root).as_posix() for half in job.planted if half.exists()}
    records = {path for path in found if RECORD.fullmatch(path)}
    listed = audit(place)
    assert {item.path for item in listed.garbage} == found - named - records
    assert {item.path for item in listed.garbage if item.why is Why.UNFINISHED} == halves

    # A job that runs on for a while has removed all of it by itself, but for half-written files: those are gc's.
    job.settle()
    job.driver.close()
    named, ids = exactly_named(job)
    assert len(ids) == RETAIN
    found = on_disk(root)
    halves = {half.relative_to(root).as_posix() for half in job.planted if half.exists()}
    assert found == named | {path for path in found if RECORD.fullmatch(path)} | halves
    published = {int(match[1]) for path in found if (match := RECORD.fullmatch(path)) and match[1]}
    assert published == set(ids), "a marker goes with its checkpoint"
    collect(place)
    found = on_disk(root)
    attempts = {path for path in found if RECORD.fullmatch(path)}
    assert {path for path in found - attempts - named if not path.startswith(f"{JOB}/lease-")} == set()
    assert verify(place.checkpoints()).findings == ()
    return job


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """In memory where the machine has such a place: what is tested is the names of files, not the disk."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="headrace-audit-", dir=memory) as folder:
        yield Path(folder)


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_after_200_checkpoints_with_aborts_kills_and_restarts_every_file_is_accounted_for(place: Path) -> None:
    job = audited(place, seed=20_240_611)
    assert job.events["published"] >= 200


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(1, 13))
def test_the_same_with_other_luck(place: Path, seed: int) -> None:
    audited(place, seed)


class GreedyStore(AuditedStore):
    """Collects shared files without a look at what is retained."""

    def remove(self, removal: Removal) -> None:
        super().remove(replace(removal, retained=(), open_ids=()))


class ForgetfulStore(AuditedStore):
    """Leaves what nobody needs any more."""

    def remove(self, removal: Removal) -> None:
        self._directory.discard(removal.files)
        self._directory.drop(removal.checkpoint_ids)


class Greedy(Driver):
    store_type = GreedyStore


class Forgetful(Driver):
    store_type = ForgetfulStore


@pytest.mark.parametrize("broken", [Greedy, Forgetful])
def test_the_audit_finds_a_driver_that_deletes_too_much_or_too_little(place: Path, broken: type[Driver]) -> None:
    few = {"published": 40, "aborted: TIMED_OUT": 2, "tasks died": 1}
    with pytest.raises((AssertionError, HeadraceError)):
        audited(place, 7, broken, few)
