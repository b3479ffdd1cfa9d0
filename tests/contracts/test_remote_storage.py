"""What storage over a network promises beyond the contract: patience with faults that pass, and none with others."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from careless_s3 import careless_s3
from click.testing import CliRunner
from golden_jobs import JOB, Publisher, Shape, expected_contents, job, restored
from pyarrow import fs
from s3 import S3Server, running_s3

from headrace import StreamExecutionEnvironment
from headrace.checkpoint.lease import Lease
from headrace.checkpoint.metadata.codec import files_of
from headrace.checkpoint.storage.arrow import ArrowCheckpointStorage
from headrace.checkpoint.storage.arrow_files import ArrowFileStore
from headrace.checkpoint.storage.base import AlreadyExistsError, MissingFileError, storage_for
from headrace.checkpoint.storage.operations import Operations, StorageTimeoutError, TransferOptions
from headrace.checkpoint.storage.s3 import S3CheckpointStorage
from headrace.cli.doctor import storage_finding
from headrace.cli.main import main
from headrace.errors import ConfigurationError, FencedError, JobOwnedError, StorageError
from headrace.runtime.job.runner import JobRun

PREFIX = "job/run-000001/chk-000007/attempt-000003"
QUICK = TransferOptions(attempts=3, first_delay_s=0, part_bytes=10_000, threads=3)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with running_s3() as running:
        yield running


@pytest.fixture
def bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server.create_bucket(f"b{abs(hash(request.node.name)):x}"[:40])


# Single operations


class Flaky:
    """Fails the first n calls."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.left = failures
        self.error = error
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise self.error
        return "done"


def test_a_fault_that_passes_is_tried_again_later_each_time() -> None:
    waits: list[float] = []
    operations = Operations(TransferOptions(attempts=4, first_delay_s=1, max_delay_s=3), waits.append)
    assert operations.run("read", "x", Flaky(3, OSError("503 Slow Down"))) == "done"
    assert [0.5 <= waits[0] <= 1, 1 <= waits[1] <= 2, 1.5 <= waits[2] <= 3] == [True] * 3


def test_after_the_last_try_the_error_names_path_and_tries() -> None:
    operations = Operations(QUICK)
    always = Flaky(99, OSError("503 Slow Down"))
    with pytest.raises(StorageError, match=r"Cannot read s3://b/x after 3 tries: 503 Slow Down"):
        operations.run("read", "s3://b/x", always)
    assert always.calls == 3


@pytest.mark.parametrize(
    ("error", "kind"), [(FileNotFoundError("x"), MissingFileError), (PermissionError("403"), StorageError)]
)
def test_a_refusal_is_not_tried_again(error: Exception, kind: type[StorageError]) -> None:
    refusing = Flaky(99, error)
    with pytest.raises(kind):
        Operations(QUICK).run("read", "x", refusing)
    assert refusing.calls == 1


def test_an_answer_that_does_not_come_is_a_timeout_with_a_type() -> None:
    never = threading.Event()
    operations = Operations(TransferOptions(attempts=2, first_delay_s=0, timeout_s=0.05))
    try:
        with pytest.raises(StorageTimeoutError, match=r"Cannot list x after 2 tries: no answer within 0.05 s"):
            operations.run("list", "x", never.wait)
    finally:
        never.set()


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"timeout_s": 0}, {"part_bytes": 0}, {"first_delay_s": 9}])
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="TransferOptions"):
        TransferOptions(**wrong)


# Files, over a file system that fails


class FailingHandler(fs.FileSystemHandler):
    """A directory as pyarrow sees it, whose operations fail when their turn has come."""

    def __init__(self, root: Path, failing: set[int]) -> None:
        self._inner = fs.SubTreeFileSystem(str(root), fs.LocalFileSystem())
        self._failing = failing
        self._lock = threading.Lock()
        self.count = 0

    def _turn(self) -> None:
        with self._lock:
            self.count += 1
            if self.count in self._failing:
                raise OSError(f"operation {self.count} failed")

    def get_type_name(self) -> str:
        return "failing"

    def get_file_info(self, paths: list[str]) -> Any:
        self._turn()
        return self._inner.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        self._turn()
        return self._inner.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._turn()
        self._inner.create_dir(path, recursive=recursive)

    def delete_file(self, path: str) -> None:
        self._turn()
        self._inner.delete_file(path)

    def open_input_file(self, path: str) -> Any:
        self._turn()
        return self._inner.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self._turn()
        return self._inner.open_output_stream(path)

    def _unused(self, *_: Any) -> Any:
        raise NotImplementedError

    delete_dir = delete_dir_contents = delete_root_dir_contents = move = copy_file = _unused
    open_input_stream = open_append_stream = normalize_path = _unused


def arrow_store(root: Path, failing: set[int]) -> tuple[ArrowFileStore, FailingHandler]:
    handler = FailingHandler(root, failing)
    store = ArrowFileStore(fs.PyFileSystem(handler), "", "test://", PREFIX, frozenset(), 100, Operations(QUICK))
    return store, handler


def test_whichever_operation_fails_once_the_bytes_come_back_the_same(tmp_path: Path) -> None:
    data = bytes(range(256)) * 20
    clean, handler = arrow_store(tmp_path, set())
    assert clean.read(clean.write("state", [data])) == data
    for nth in range(1, handler.count + 1):
        store, failing = arrow_store(tmp_path, {nth})
        assert store.read(store.write("state", [data])) == data
        assert failing.count > handler.count


def test_a_write_that_never_succeeds_is_a_storage_error_that_names_the_file(tmp_path: Path) -> None:
    store, _ = arrow_store(tmp_path, set(range(1, 1000)))
    with pytest.raises(StorageError, match=r"Cannot (write|create) test:/.*/state-"):
        store.write("state", [bytes(5_000)])
    with pytest.raises(StorageError, match=r"Cannot (write|create) test:/.*/state-"):
        store.write("state", [bytes(50_000)])


def test_a_large_file_is_fetched_in_parts_at_once_and_in_order(tmp_path: Path) -> None:
    data = os.urandom(95_001)
    store, _ = arrow_store(tmp_path, set())
    file = store.write("state", [data])
    store.fetch(file, tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == data


# S3


def test_an_answer_that_was_lost_is_recognised_as_our_own_success(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = S3CheckpointStorage(f"{bucket}/jobs", options=QUICK)
    client = storage._boto()
    put = client.put_object
    lost = []

    def put_and_lose_the_answer(**request: Any) -> Any:
        answer = put(**request)
        if not lost:
            lost.append(answer)
            raise OSError("connection reset")
        return answer

    monkeypatch.setattr(client, "put_object", put_and_lose_the_answer)
    storage.create_exclusive("a/attempt-000001", b"ours")
    assert lost
    assert storage.read("a/attempt-000001") == b"ours"
    with pytest.raises(AlreadyExistsError):
        storage.create_exclusive("a/attempt-000001", b"ours")


def test_large_objects_go_in_several_parts_and_come_back(bucket: str, tmp_path: Path) -> None:
    data = os.urandom(12 << 20)
    store = S3CheckpointStorage(bucket, options=TransferOptions(part_bytes=5 << 20)).file_store(PREFIX)
    file = store.write("state", [data[: 7 << 20], data[7 << 20 :]])
    store.fetch(file, tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == data


def test_a_tree_of_more_objects_than_one_request_may_delete_is_gone_as_a_whole(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.checkpoint.storage.s3._MOST_DELETED", 3)
    storage = S3CheckpointStorage(bucket)
    for n in range(8):
        storage.replace(f"chk-1/{n}", b"")
    storage.replace("chk-2/x", b"")
    storage.delete_tree("chk-1")
    assert storage.list("") == ["chk-2/x"]


def test_a_bucket_that_is_not_there_is_a_storage_error_that_names_it(bucket: str) -> None:
    storage = S3CheckpointStorage("s3://no-such-bucket-here/x", options=QUICK)
    with pytest.raises(StorageError, match="s3://no-such-bucket-here/x/a"):
        storage.create_exclusive("a", b"")
    with pytest.raises(StorageError, match="s3://no-such-bucket-here/x"):
        storage.file_store("p").write("state", [bytes(50_000)])


def test_a_server_that_is_not_there_is_given_up_after_the_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    storage = S3CheckpointStorage("s3://b-b/x", options=QUICK, endpoint_url="http://127.0.0.1:1", region="us-east-1")
    with pytest.raises(StorageError, match="after 3 tries"):
        storage.read("a")


def test_settings_of_uris() -> None:
    assert isinstance(storage_for("s3://bucket/x"), S3CheckpointStorage)
    assert storage_for("s3a://bucket/x").location == "s3://bucket/x"
    for uri in ("s3:///x", "s3://user:secret@bucket/x", "s3://bucket/x?endpoint=y", "s3://bucket/a/../b"):
        with pytest.raises((ConfigurationError, StorageError)) as caught:
            storage_for(uri)
        assert "secret" not in str(caught.value)


def test_a_whole_job_directory_lives_in_a_bucket(bucket: str, tmp_path: Path) -> None:
    """Attempts, incremental checkpoints, restore, fencing and the command line, with nothing on a local disk."""
    root = f"{bucket}/checkpoints"
    storage = S3CheckpointStorage(root, options=QUICK)
    with job(Shape(backend="rocksdb", extra_keys=8_000)) as made:
        publisher = Publisher(storage)
        publisher.publish(made, 1)
        made.set_count("user-1", 1)
        metadata = publisher.publish(made, 2)
    assert restored(metadata, storage, tmp_path, "rocksdb", 2) == expected_contents(8_000)
    assert restored(metadata, storage, tmp_path, "heap", 3) == expected_contents(8_000)
    lease = Lease(storage, JOB)
    lease.acquire()
    with pytest.raises(JobOwnedError):
        Lease(storage, JOB).acquire()
    lease.release()
    successor = Publisher(storage)
    assert successor.attempt == publisher.attempt + 1
    with pytest.raises(FencedError):
        publisher.directory.publish(msgspec.structs.replace(metadata, checkpoint_id=3))
    run = CliRunner()
    assert run.invoke(main, ["checkpoints", "verify", f"{root}/{JOB}"]).exit_code == 0
    listed = json.loads(run.invoke(main, ["checkpoints", "list", root, "--json"]).stdout)["checkpoints"]
    assert [(row["checkpoint_id"], row["status"]) for row in listed] == [(1, "complete"), (2, "complete")]
    storage.replace(f"{JOB}/run-000001/chk-000009/attempt-000001/left-behind", b"x")
    swept = run.invoke(main, ["checkpoints", "gc", f"{root}/{JOB}", "--delete"])
    assert "1 file (1 B) removed" in swept.stdout
    damaged = min(files_of(metadata))
    storage.delete(damaged)
    verified = run.invoke(main, ["checkpoints", "verify", f"{root}/{JOB}", "--json"])
    assert verified.exit_code == 1
    assert json.loads(verified.stdout)["findings"][0]["path"] == f"{root}/{damaged}"


# The others


@pytest.mark.parametrize("uri", ["hdfs://namenode:8020/checkpoints", "gs://bucket/checkpoints"])
def test_a_store_without_exclusive_create_is_refused_before_anything_is_written(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A job that ran in this process has brought its own way.
    monkeypatch.setattr("headrace.checkpoint.storage.arrow._CREATORS", {})
    monkeypatch.setattr("headrace.checkpoint.storage.arrow._REPLACERS", {})
    storage = storage_for(uri)
    assert isinstance(storage, ArrowCheckpointStorage)
    with pytest.raises(ConfigurationError, match="register_exclusive_create"):
        storage.create_exclusive("job/attempt-000001", b"")


# Exclusive creation


def test_a_store_that_honours_conditional_puts_is_taken_and_nothing_is_left_in_it(bucket: str) -> None:
    storage = S3CheckpointStorage(f"{bucket}/checkpoints")
    storage.check_exclusive_create()
    assert storage_finding(f"{bucket}/checkpoints").ok
    assert storage.list("") == []


def test_a_store_that_ignores_conditional_puts_is_refused_by_name_at_the_start_and_by_doctor(
    bucket: str, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with careless_s3(server) as careless:
        monkeypatch.setenv("AWS_ENDPOINT_URL", careless.endpoint_url)
        storage = S3CheckpointStorage(f"{bucket}/checkpoints")
        storage.create_exclusive("a", b"1")
        storage.create_exclusive("a", b"2")  # as careless as it says
        storage.delete("a")
        with pytest.raises(ConfigurationError, match=rf"{bucket}/checkpoints .*If-None-Match"):
            storage.check_exclusive_create()
        finding = storage_finding(f"{bucket}/checkpoints")
        assert not finding.ok
        assert "If-None-Match" in finding.found
        assert storage.list("") == []

        env = StreamExecutionEnvironment.get_execution_environment()
        env.enable_checkpointing(1_000)
        env.get_checkpoint_config().set_checkpoint_storage(storage)
        env.from_collection([1]).print()
        plan, settings = env.build("job")
        run = JobRun(plan, settings, None)
        run.start()
        with pytest.raises(ConfigurationError, match="If-None-Match"):
            run.result.result(60)
        assert storage.list("") == []
