"""Checkpoints on a real HDFS by hdfs-native: the contract, races, forks, name services, and a job that is killed.

No process here has libhdfs, and none but the job's own has a JVM.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest
from hdfs import racing, running_hdfs
from ledger import Ledger, LedgerSink
from programs import Program

from headrace.checkpoint.location import open_checkpoint
from headrace.checkpoint.metadata.model import files_of
from headrace.checkpoint.storage.base import AlreadyExistsError, CheckpointStorage, MissingFileError, storage_for
from headrace.checkpoint.storage.hdfs import HdfsCheckpointStorage
from headrace.checkpoint.storage.hdfs_files import client_of, parted
from headrace.checkpoint.storage.operations import TransferOptions
from headrace.testing import CheckpointStorageContract

pytestmark = [pytest.mark.service, pytest.mark.timeout(400)]

PREFIX = "job/run-000001/chk-000007/attempt-000003"
SMALL_PARTS = TransferOptions(part_bytes=50_000, threads=3)
RACERS = 4
ROUNDS = 6
SIZE = 20_000


@pytest.fixture(scope="module")
def hdfs_home() -> Iterator[str]:
    with running_hdfs() as home:
        yield home


@pytest.fixture
def place(hdfs_home: str) -> str:
    """A directory of HDFS that nobody else uses."""
    return f"{hdfs_home}/some/place-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def storage(place: str) -> CheckpointStorage:
    return storage_for(place)


class TestHdfs(CheckpointStorageContract):
    @pytest.fixture
    def storage(self, place: str) -> CheckpointStorage:
        return HdfsCheckpointStorage(place, options=SMALL_PARTS)


def test_of_threads_that_race_exactly_one_wins_and_nobody_sees_half_a_file(storage: CheckpointStorage) -> None:
    def race(me: int, path: str, start: Barrier) -> bool:
        start.wait(60)
        try:
            storage.create_exclusive(path, bytes([me]) * SIZE)
        except AlreadyExistsError:
            return False
        return True

    def watch(path: str, start: Barrier, over: Event) -> set[bytes]:
        seen = set()
        start.wait(60)
        while not over.is_set():
            try:
                seen.add(storage.read(path))
            except MissingFileError:
                continue
        return seen

    with ThreadPoolExecutor(RACERS + 1) as pool:
        for number in range(ROUNDS):
            path = f"job-{number}/attempt-000001"
            start, over = Barrier(RACERS + 1), Event()
            watching = pool.submit(watch, path, start, over)
            racing = [pool.submit(race, me, path, start) for me in range(RACERS)]
            won = [racer.result(120) for racer in racing]
            over.set()
            assert won.count(True) == 1
            whole = bytes([won.index(True)]) * SIZE
            assert watching.result(120) <= {whole}
            assert storage.read(path) == whole
    assert storage.list("") == sorted(f"job-{number}/attempt-000001" for number in range(ROUNDS))
    assert [left for number in range(ROUNDS) for left in storage.unfinished(f"job-{number}")] == []


RACER = """
import sys
from headrace.checkpoint.storage.base import AlreadyExistsError, storage_for

storage = storage_for(sys.argv[1])
storage.exists("a connection before the race")
print("ready", flush=True)
for line in sys.stdin:
    try:
        storage.create_exclusive(line.strip(), sys.argv[2].encode())
        print("won", flush=True)
    except AlreadyExistsError:
        print("lost", flush=True)
"""


@pytest.mark.slow
def test_of_processes_that_race_exactly_one_wins(storage: CheckpointStorage, place: str) -> None:
    with racing(RACER, [[place, str(me)] for me in range(3)]) as race:
        for number in range(ROUNDS):
            path = f"job-{number}/attempt-000001"
            found = race(path)
            assert sorted(found) == ["lost", "lost", "won"]
            assert storage.read(path) == str(found.index("won")).encode()


def test_tasks_that_store_the_same_content_at_once_do_not_disturb_each_other(
    storage: CheckpointStorage, tmp_path: Path
) -> None:
    def store(local: Path, start: Barrier) -> Any:
        start.wait(60)
        return storage.file_store(PREFIX).write_shared(local)

    with ThreadPoolExecutor(RACERS) as pool:
        for number in range(5):
            local = tmp_path / f"{number}.sst"
            local.write_bytes(os.urandom(300_000))
            start = Barrier(RACERS)
            stored = [task.result(120) for task in [pool.submit(store, local, start) for _ in range(RACERS)]]
            assert stored == [stored[0]] * RACERS
            assert storage.file_store(PREFIX).read(stored[0]) == local.read_bytes()
    assert list(storage.unfinished("job")) == []


def test_what_is_stored_is_private_to_its_user(storage: CheckpointStorage, place: str) -> None:
    storage.create_exclusive("job/attempt-000001", b"1")
    storage.replace("job/lease-000001", b"1")
    file = storage.file_store(PREFIX).write("state", [bytes(50_000)])
    home, root = parted(place)
    client = client_of(home)
    modes = {path: client.get_file_info(f"{root}/{path}").permission for path in storage.list("")}
    assert modes == dict.fromkeys(("job/attempt-000001", "job/lease-000001", file.path), 0o600)
    for directory in (root, f"{root}/job", f"{root}/{PREFIX}"):
        assert client.get_file_info(directory).permission == 0o700


def test_a_half_written_file_is_in_no_listing_but_can_be_found(storage: CheckpointStorage, place: str) -> None:
    storage.create_exclusive("job/attempt-000001", b"1")
    home, root = parted(place)
    with client_of(home).create(f"{root}/job/.tmp-of-a-dead-driver") as half:
        half.write(b"ha")
    assert storage.list("") == ["job/attempt-000001"]
    assert list(storage.unfinished("job")) == ["job/.tmp-of-a-dead-driver"]
    assert storage.size("job/.tmp-of-a-dead-driver") == 2


FORK = """
import os, sys
from headrace.checkpoint.storage.base import storage_for
from headrace.errors import StorageError

storage = storage_for(sys.argv[1])
storage.create_exclusive("parent", b"p" * 50_000)
assert storage.read("parent") == b"p" * 50_000
child = os.fork()
if not child:
    try:
        storage.read("parent")
    except StorageError as error:
        assert "'spawn'" in str(error), error
        try:
            storage_for(sys.argv[1]).create_exclusive("child", b"c")
        except StorageError as error:
            assert "'spawn'" in str(error), error
            sys.exit(7)  # as an interpreter ends, with all that it does
    sys.exit("a fork used the connections of its parent")
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
assert storage.read("parent") == b"p" * 50_000
storage.create_exclusive("parent again", b"")
assert storage.list("") == ["parent", "parent again"]
"""


def test_a_fork_of_a_process_that_has_it_open_is_refused_and_ends_and_the_parent_goes_on(place: str) -> None:
    run = subprocess.run([sys.executable, "-c", FORK, place], capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr


def site(settings: dict[str, str]) -> str:
    properties = (f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items())
    return f"<configuration>{''.join(properties)}</configuration>"


ANYWHERE = """
import sys
from headrace.checkpoint.storage.base import AlreadyExistsError, storage_for

storage = storage_for(sys.argv[1])
storage.create_exclusive("job/attempt-000001", b"1")
try:
    storage.create_exclusive("job/attempt-000001", b"2")
except AlreadyExistsError:
    storage.replace("job/lease-000001", b"3")
file = storage.file_store("job/run-000001/chk-000007/attempt-000003").write("state", [b"s" * 50_000])
assert storage.file_store("job/run-000001/chk-000007/attempt-000003").read(file) == b"s" * 50_000
assert storage.list("") == ["job/attempt-000001", "job/lease-000001", file.path], storage.list("")
"""


@pytest.mark.parametrize("uri", ["hdfs://our-cluster/x", "viewfs://views/mounted", "hdfs:///x"])
def test_name_services_views_and_the_default_are_read_from_hadoops_own_settings(
    uri: str, hdfs_home: str, place: str, tmp_path: Path
) -> None:
    root = parted(place)[1]
    settings = {
        "fs.defaultFS": hdfs_home,
        "dfs.nameservices": "our-cluster",
        # The first one is down.
        "dfs.ha.namenodes.our-cluster": "nn1,nn2",
        "dfs.namenode.rpc-address.our-cluster.nn1": "127.0.0.1:1",
        "dfs.namenode.rpc-address.our-cluster.nn2": hdfs_home.removeprefix("hdfs://"),
        "fs.viewfs.mounttable.views.link./mounted": f"{hdfs_home}{root}",
        "fs.viewfs.mounttable.views.linkFallback": f"{hdfs_home}/",
    }
    (tmp_path / "core-site.xml").write_text(site(settings))
    (tmp_path / "hdfs-site.xml").write_text(site(settings))
    where = uri if uri.startswith("viewfs") else uri.removesuffix("/x") + root
    run = subprocess.run(
        [sys.executable, "-c", ANYWHERE, where],
        env=os.environ | {"HADOOP_CONF_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr
    assert storage_for(place).read("job/lease-000001") == b"3"


@pytest.fixture
def headrace() -> Callable[..., str]:
    """The command line, in a process of its own; gives what it printed."""

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "headrace.cli", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.slow
@pytest.mark.spark
def test_a_job_loses_a_worker_then_everything_and_goes_on_from_its_checkpoints_on_hdfs(
    place: str, storage: CheckpointStorage, tmp_path: Path, programs: list[Program], headrace: Callable[..., str]
) -> None:
    go = tmp_path / "go"
    ledger = Ledger(length=400, rate=1_500, faults=1, fault_log=str(go))
    settings = {"directory": str(tmp_path), "ledger": asdict(ledger), "backend": "rocksdb", "hdfs": place}

    first = Program(settings)
    programs.append(first)
    status = first.wait_until(lambda status: status["checkpoints_completed"] >= 1)
    os.kill(next(iter(status["task_pids"].values())), signal.SIGKILL)
    restarted = first.wait_until(lambda status: status["restarts"] == 1 and status["status"] == "RUNNING")
    later = first.wait_until(lambda status: status["checkpoints_completed"] > restarted["checkpoints_completed"])
    assert later["restored_checkpoint"] >= 1
    first.kill_tree()

    headrace("doctor", "--no-spark", "--checkpoint-dir", place)
    headrace("checkpoints", "verify", f"{place}/ledger")
    listed = json.loads(headrace("checkpoints", "list", place, "--json"))["checkpoints"]
    newest = max(row["checkpoint_id"] for row in listed if row["status"] == "complete")
    metadata = open_checkpoint(f"{place}/ledger/run-000001/chk-{newest:06d}").metadata
    assert any("/shared/" in path for path in files_of(metadata)), "incremental, and not inside _metadata"
    storage.replace("ledger/run-000001/chk-000999/attempt-000001/left-behind", b"x")
    storage.replace("ledger/run-000001/.tmp-left-behind", b"x")
    headrace("checkpoints", "gc", f"{place}/ledger", "--delete")
    assert not storage.exists("ledger/run-000001/chk-000999/attempt-000001/left-behind")
    assert list(storage.unfinished("ledger/run-000001")) == []
    headrace("checkpoints", "verify", f"{place}/ledger")

    go.mkdir()
    (go / "now").touch()
    second = Program(settings)
    programs.append(second)
    assert second.finish() == 0, second.tail()
    assert second.status()["restored_checkpoint"] >= newest
    assert ledger.problems(LedgerSink(tmp_path / "out").lines()) == []
    assert not list(tmp_path.glob("checkpoints")), "nothing of it lies on a local disk"
