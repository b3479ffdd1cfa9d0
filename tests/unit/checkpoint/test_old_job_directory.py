"""A job directory that is years old: restarts without end leave a bounded number of files and cost the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from checkpoint_examples import metadata

from headrace.checkpoint.handles import HistoryPoint
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.lease import Lease
from headrace.checkpoint.metadata.codec import encode_metadata
from headrace.checkpoint.storage.memory import JobManagerCheckpointStorage
from headrace.clocks import Clocks
from headrace.errors import FencedError
from headrace.testing import ManualClock

OLD_ID = 10_000_000


class CountingStorage(JobManagerCheckpointStorage):
    """Counts requests, and what a listing has to go through."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def read(self, path: str) -> bytes:
        self.asked["read"] += 1
        return super().read(path)

    def exists(self, path: str) -> bool:
        self.asked["exists"] += 1
        return super().exists(path)

    def list(self, prefix: str) -> list[str]:
        self.asked["list"] += 1
        return super().list(prefix)

    def list_names(self, directory: str, start: str = "") -> Sequence[str]:
        self.asked["list_names"] += 1
        files = [path for path in self._files if path.startswith(f"{directory}/{start}")]
        return sorted({name + slash for name, slash, _ in (f[len(directory) + 1 :].partition("/") for f in files)})

    def delete(self, path: str) -> None:
        self.asked["delete"] += 1
        super().delete(path)


def restart(storage: CountingStorage) -> tuple[JobDirectory, int]:
    """All that a driver asks of storage from the claim to the first barrier."""
    directory = JobDirectory(storage, "job")
    directory.open_run()
    attempt = directory.claim_attempt()
    survey = directory.survey()
    newest = survey.newest()
    directory.stopping_savepoint()
    directory.record_restored(attempt, newest.checkpoint_id if newest else None, survey.lineage.source)
    directory.drop(survey.orphans())
    directory.next_checkpoint_id()
    return directory, attempt


@pytest.mark.parametrize(("restarts", "progress"), [(10_000, True), (1_000, False)], ids=["with progress", "without"])
def test_restarts_without_end_leave_a_bounded_number_of_files_and_cost_the_same(restarts: int, progress: bool) -> None:
    storage = CountingStorage()
    directory, attempt = restart(storage)
    checkpoint_id = OLD_ID
    directory.publish(metadata(checkpoint_id, attempt))
    for _ in range(restarts):
        directory, attempt = restart(storage)
        if progress:
            directory.publish(metadata(checkpoint_id + 1, attempt))
            directory.drop([checkpoint_id])
            checkpoint_id += 1
    assert attempt == restarts + 1
    assert len(storage.list("")) < 60
    storage.asked.clear()
    directory, _ = restart(storage)
    assert storage.asked["read"] <= 10
    assert storage.asked["exists"] <= 5
    assert storage.asked["list_names"] <= 12
    assert storage.asked["list"] == 0
    assert storage.asked["delete"] <= 4
    assert directory.next_checkpoint_id() == checkpoint_id + 1


def test_a_directory_full_of_old_records_is_cleared_bit_by_bit() -> None:
    storage = CountingStorage()
    for number in range(1, 1_001):
        storage.create_exclusive(f"job/run-000001/attempt-{number:06d}", b'{"history": "h", "pid": 1}')
        storage.create_exclusive(f"job/run-000001/restored-{number:06d}", b'{"checkpoint_id": null, "source": ""}')
    directory, attempt = restart(storage)
    assert (attempt, directory.history) == (1_001, "h")
    for _ in range(20):
        storage.asked.clear()
        directory, _ = restart(storage)
        assert storage.asked["delete"] <= 200
    assert len(storage.list("")) < 60
    assert directory.history == "h"


def test_a_driver_whose_files_were_cleared_away_is_fenced() -> None:
    storage = CountingStorage()
    zombie, old = restart(storage)
    for _ in range(40):
        restart(storage)
    assert not storage.exists(f"job/run-000001/attempt-{old:06d}")
    assert not storage.exists(f"job/run-000001/attempt-{old + 1:06d}")
    with pytest.raises(FencedError, match="attempt 41 took over"):
        zombie.publish(metadata(1, old))


def test_a_late_checkpoint_of_an_attempt_long_past_never_counts() -> None:
    storage = CountingStorage()
    directory, first = restart(storage)
    directory.publish(metadata(1, first))
    for checkpoint_id in range(2, 60):
        directory, attempt = restart(storage)
        directory.publish(metadata(checkpoint_id, attempt))
        directory.drop([checkpoint_id - 1])
    storage.create_exclusive("job/run-000001/chk-000030/_metadata", encode_metadata(metadata(30, 2)))
    directory, _ = restart(storage)
    assert [ref.checkpoint_id for ref in directory.completed()] == [59]


def test_where_a_job_began_is_known_after_any_number_of_restarts_and_runs() -> None:
    storage = CountingStorage()
    directory = JobDirectory(storage, "job")
    directory.open_run()
    point = HistoryPoint("elsewhere", 7, 61)
    directory.record_restored(directory.claim_attempt(), None, "/saved", point)
    for _ in range(50):
        directory, _ = restart(storage)
    directory.end("FINISHED")
    directory, _ = restart(storage)
    assert directory.first_attempt_from(point) == 1
    assert directory.first_attempt_from(HistoryPoint("elsewhere", 7, 60)) == 1
    assert directory.first_attempt_from(HistoryPoint("elsewhere", 7, 62)) is None


def test_a_lease_is_renewed_without_a_look_at_the_tree() -> None:
    storage = CountingStorage()
    clock = ManualClock(1_000_000)
    lease = Lease(storage, "job", clocks=Clocks(clock, clock))
    lease.acquire()
    restart(storage)
    storage.asked.clear()
    clock.now_ms += 5_000
    lease.renew()
    assert storage.asked == {"list_names": 1, "read": 1}
