"""One live driver for a job: others are turned away by name, the dead are taken over."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.checkpoint.lease import Lease, LeaseRecord
from headrace.checkpoint.storage.base import CheckpointStorage
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.storage.memory import JobManagerCheckpointStorage
from headrace.clocks import Clocks
from headrace.errors import FencedError, JobOwnedError


class ManualClock:
    def __init__(self) -> None:
        self.now_ms = 100_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture(params=["file", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStorage:
    return FileSystemCheckpointStorage(str(tmp_path)) if request.param == "file" else JobManagerCheckpointStorage()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def record(storage: CheckpointStorage) -> LeaseRecord:
    (path,) = storage.list("job/lease-")
    return msgspec.json.decode(storage.read(path), type=LeaseRecord)


def test_a_live_owner_is_named_with_pid_host_age_and_the_way_out(
    storage: CheckpointStorage, clock: ManualClock
) -> None:
    Lease(storage, "job", clocks=Clocks(clock, clock)).acquire()
    owner = record(storage)
    clock.now_ms += 3_500
    with pytest.raises(JobOwnedError, match=rf"process {owner.pid} on {owner.host}.* 3\.5 s ago.*--take-over"):
        Lease(storage, "job", clocks=Clocks(clock, clock)).acquire()
    Lease(storage, "another-job", clocks=Clocks(clock, clock)).acquire()


def test_a_renewed_lease_lives_on_and_one_that_is_not_expires_after_ten_seconds(
    storage: CheckpointStorage, clock: ManualClock
) -> None:
    owner = Lease(storage, "job", clocks=Clocks(clock, clock))
    owner.acquire()
    for _ in range(10):
        clock.now_ms += 2_000
        owner.renew()
    clock.now_ms += 9_999
    with pytest.raises(JobOwnedError):
        Lease(storage, "job", clocks=Clocks(clock, clock)).acquire()
    clock.now_ms += 1
    Lease(storage, "job", clocks=Clocks(clock, clock)).acquire()
    with pytest.raises(FencedError, match="taken over by process"):
        owner.renew()


def test_renewing_more_often_than_needed_writes_nothing(storage: CheckpointStorage, clock: ManualClock) -> None:
    owner = Lease(storage, "job", clocks=Clocks(clock, clock))
    owner.acquire()
    clock.now_ms += 1_999
    owner.renew()
    assert record(storage).renewed_ms == 100_000
    clock.now_ms += 1
    owner.renew()
    assert record(storage).renewed_ms == 102_000


def test_an_owner_that_was_paused_but_not_replaced_goes_on(storage: CheckpointStorage, clock: ManualClock) -> None:
    owner = Lease(storage, "job", clocks=Clocks(clock, clock))
    owner.acquire()
    clock.now_ms += 60_000
    owner.renew()
    with pytest.raises(JobOwnedError):
        Lease(storage, "job", clocks=Clocks(clock, clock)).acquire()


@pytest.mark.parametrize("hours", [-1, 1], ids=["back", "forward"])
def test_a_clock_that_is_set_changes_nothing_about_how_often_the_owner_renews(
    storage: CheckpointStorage, hours: int
) -> None:
    wall, steady = ManualClock(), ManualClock()
    clocks = Clocks(wall, steady)
    owner = Lease(storage, "job", clocks=clocks)
    wall.now_ms = started = 10_000_000
    owner.acquire()
    wall.now_ms += hours * 3_600_000
    steady.now_ms += 1_999
    owner.renew()
    assert record(storage).renewed_ms == started, "it is not time yet"
    steady.now_ms += 1
    owner.renew()
    assert record(storage).renewed_ms == wall.now_ms, "what others read is the time of day"
    wall.now_ms += 3_500
    with pytest.raises(JobOwnedError, match=r" 3\.5 s ago"):
        Lease(storage, "job", clocks=clocks).acquire()


def test_after_the_clock_was_set_back_the_owner_still_learns_of_a_take_over(storage: CheckpointStorage) -> None:
    wall, steady = ManualClock(), ManualClock()
    wall.now_ms = 10_000_000
    owner = Lease(storage, "job", clocks=Clocks(wall, steady))
    owner.acquire()
    wall.now_ms -= 3_600_000
    Lease(storage, "job", clocks=Clocks(wall, steady)).acquire(take_over=True)
    steady.now_ms += 2_000
    with pytest.raises(FencedError, match="taken over by process"):
        owner.renew()


def test_looking_tells_who_owns_the_job_and_writes_nothing(storage: CheckpointStorage, clock: ManualClock) -> None:
    rival = Lease(storage, "job", clocks=Clocks(clock, clock))
    rival.look()
    assert storage.list("") == []
    owner = Lease(storage, "job", clocks=Clocks(clock, clock))
    owner.acquire()
    before = record(storage)
    with pytest.raises(JobOwnedError, match=f"process {before.pid} .*--take-over"):
        rival.look()
    owner.look()
    assert record(storage) == before
    owner.release()
    rival.look()


def test_a_released_lease_is_free_at_once(storage: CheckpointStorage, clock: ManualClock) -> None:
    owner = Lease(storage, "job", clocks=Clocks(clock, clock))
    owner.acquire()
    owner.release()
    owner.release()
    next_owner = Lease(storage, "job", clocks=Clocks(clock, clock))
    next_owner.acquire()
    owner.release()
    clock.now_ms += 2_000
    next_owner.renew()


def test_take_over_forces_and_the_former_owner_learns_of_it(storage: CheckpointStorage, clock: ManualClock) -> None:
    owner = Lease(storage, "job", clocks=Clocks(clock, clock))
    owner.acquire()
    taker = Lease(storage, "job", clocks=Clocks(clock, clock))
    taker.acquire(take_over=True)
    clock.now_ms += 2_000
    with pytest.raises(FencedError):
        owner.renew()
    owner.release()
    taker.renew()
    assert len(storage.list("job/")) == 1


def test_the_lease_of_a_dead_process_on_this_host_is_taken_over_at_once(
    storage: CheckpointStorage, clock: ManualClock
) -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        process.wait()
    Lease(storage, "job", clocks=Clocks(clock, clock)).acquire()
    forged = msgspec.structs.replace(record(storage), pid=process.pid)
    storage.replace("job/lease-000001", msgspec.json.encode(forged))
    Lease(storage, "job", clocks=Clocks(clock, clock)).acquire()


def test_a_pid_that_was_given_to_another_process_does_not_keep_the_lease(
    storage: CheckpointStorage, clock: ManualClock
) -> None:
    Lease(storage, "job", clocks=Clocks(clock, clock)).acquire()
    forged = msgspec.structs.replace(record(storage), process="started 1")
    storage.replace("job/lease-000001", msgspec.json.encode(forged))
    Lease(storage, "job", clocks=Clocks(clock, clock)).acquire()


def test_a_pid_of_another_host_or_container_says_nothing_about_life(
    storage: CheckpointStorage, clock: ManualClock
) -> None:
    Lease(storage, "job", clocks=Clocks(clock, clock)).acquire()
    forged = msgspec.structs.replace(record(storage), machine="elsewhere", host="elsewhere", process="started 1")
    storage.replace("job/lease-000001", msgspec.json.encode(forged))
    with pytest.raises(JobOwnedError, match="elsewhere"):
        Lease(storage, "job", clocks=Clocks(clock, clock)).acquire()


def test_a_lease_that_cannot_be_understood_is_replaced(storage: CheckpointStorage, clock: ManualClock) -> None:
    storage.create_exclusive("job/lease-000007", b"\xff{")
    Lease(storage, "job", clocks=Clocks(clock, clock)).acquire()
    assert storage.list("job/") == ["job/lease-000008"]


def _contend(root: str, barrier: Any, results: Any, rounds: int) -> None:
    storage = FileSystemCheckpointStorage(root)
    for n in range(rounds):
        lease = Lease(storage, f"job-{n}")
        barrier.wait()
        try:
            lease.acquire()
        except JobOwnedError:
            results.put((n, False))
        else:
            results.put((n, True))
        barrier.wait()


def test_of_two_processes_that_take_over_a_dead_lease_one_wins_each_round(tmp_path: Path) -> None:
    rounds = 30
    storage = FileSystemCheckpointStorage(str(tmp_path))
    long_ago = ManualClock()
    for n in range(rounds):
        Lease(storage, f"job-{n}", clocks=Clocks(long_ago, long_ago)).acquire()
    fork = multiprocessing.get_context("fork")
    barrier, results = fork.Barrier(2), fork.Queue()
    contenders = [fork.Process(target=_contend, args=(str(tmp_path), barrier, results, rounds)) for _ in range(2)]
    for contender in contenders:
        contender.start()
    outcomes = [results.get(timeout=60) for _ in range(2 * rounds)]
    for contender in contenders:
        contender.join(60)
        assert contender.exitcode == 0
    for n in range(rounds):
        assert sorted(won for round_, won in outcomes if round_ == n) == [False, True]
