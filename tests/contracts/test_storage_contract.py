"""The contract of checkpoint storage, on every storage we have: one suite, which users run on theirs."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from s3 import S3Server, running_s3

from headrace.checkpoint.storage.arrow import ArrowCheckpointStorage, register_exclusive_create
from headrace.checkpoint.storage.base import CheckpointStorage
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.storage.memory import JobManagerCheckpointStorage
from headrace.checkpoint.storage.operations import TransferOptions
from headrace.checkpoint.storage.s3 import S3CheckpointStorage
from headrace.testing.storage_contract import CheckpointStorageContract

SMALL_PARTS = TransferOptions(part_bytes=64 * 1024, threads=3, first_delay_s=0.01)
"""So that the suite's largest file has several parts."""


class TestDirectory(CheckpointStorageContract):
    keeps_directories = True

    @pytest.fixture
    def storage(self, tmp_path: Path) -> CheckpointStorage:
        return FileSystemCheckpointStorage(str(tmp_path / "store"))


class TestCoordinatorMemory(CheckpointStorageContract):
    keeps_files = False

    @pytest.fixture
    def storage(self) -> CheckpointStorage:
        return JobManagerCheckpointStorage()


class TestCoordinatorMemoryWithADirectory(CheckpointStorageContract):
    keeps_files = False
    keeps_directories = True

    @pytest.fixture
    def storage(self, tmp_path: Path) -> CheckpointStorage:
        return JobManagerCheckpointStorage(str(tmp_path / "store"))


class TestArrowFileSystem(CheckpointStorageContract):
    """HDFS, GCS and Azure go by this code; what it works on here is pyarrow's own local file system."""

    @pytest.fixture
    def storage(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckpointStorage:
        lock = threading.Lock()

        def create(uri: str, data: bytes) -> None:
            target = Path(urlsplit(uri).path)
            with lock:
                target.parent.mkdir(parents=True, exist_ok=True)
                with open(target, "xb") as file:
                    file.write(data)

        monkeypatch.setattr("headrace.checkpoint.storage.arrow._CREATORS", {})
        monkeypatch.setattr("headrace.checkpoint.storage.arrow._REPLACERS", {})
        register_exclusive_create("file", create)
        return ArrowCheckpointStorage(f"file://{tmp_path}/store", options=SMALL_PARTS)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with running_s3() as server:
        yield server


class TestS3(CheckpointStorageContract):
    @pytest.fixture
    def storage(self, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> CheckpointStorage:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        for name, value in s3_server.environment.items():
            monkeypatch.setenv(name, value)
        bucket = s3_server.create_bucket(f"bucket-{uuid.uuid4().hex[:8]}")
        # S3 takes no part of a multipart upload below 5 MiB but the last; pyarrow sees to that by itself.
        return S3CheckpointStorage(f"{bucket}/some/place", options=SMALL_PARTS)


class TestBucketRoot(TestS3):
    """The bucket itself as the root, without a prefix."""

    @pytest.fixture
    def storage(self, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> CheckpointStorage:
        for name, value in s3_server.environment.items():
            monkeypatch.setenv(name, value)
        return S3CheckpointStorage(s3_server.create_bucket(f"bucket-{uuid.uuid4().hex[:8]}"))
