"""HDFS where none is: what is said of a package, a cluster or an answer that is missing, and what stays unopened."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.checkpoint.storage import hdfs_files
from headrace.checkpoint.storage.base import storage_for
from headrace.checkpoint.storage.hdfs import HdfsCheckpointStorage
from headrace.checkpoint.storage.operations import StorageTimeoutError, TransferOptions
from headrace.errors import ConfigurationError, MissingDependencyError, StorageError
from headrace.runtime.job.exclusive_create import goes_by_the_jvm

QUICK = TransferOptions(attempts=2, first_delay_s=0, timeout_s=0.3)


def test_with_the_package_no_jvm_is_waited_for() -> None:
    for uri in ("hdfs://namenode:8020/x", "viewfs://cluster/x"):
        storage = storage_for(uri)
        assert isinstance(storage, HdfsCheckpointStorage)
        assert not goes_by_the_jvm(storage)


def test_a_storage_that_is_made_travels_and_is_asked_its_name_opens_nothing() -> None:
    program = (
        "import json, pickle, sys\n"
        "from headrace.checkpoint.storage.base import storage_for\n"
        "storage = pickle.loads(pickle.dumps(storage_for('hdfs://namenode:8020/x'))).below('job')\n"
        "print(json.dumps([storage.location, 'hdfs_native' in sys.modules]))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == ["hdfs://namenode:8020/x/job", False]


def test_without_the_package_and_without_libhdfs_both_ways_out_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_files, "installed", lambda: False)
    for name in ("HADOOP_HOME", "ARROW_LIBHDFS_DIR"):
        monkeypatch.setenv(name, "/nowhere")
    with pytest.raises(MissingDependencyError, match=r'hdfs://namenode:8020/x.*"headrace\[hdfs\]".*HADOOP_HOME'):
        storage_for("hdfs://namenode:8020/x").read("a")


def test_a_package_that_cannot_be_loaded_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "hdfs_native.py").write_text("raise ImportError('of another machine')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "hdfs_native", raising=False)
    reason = r"hdfs://not-loaded:8020 needs hdfs-native.*of another machine.*headrace\[hdfs\]"
    with pytest.raises(MissingDependencyError, match=reason):
        storage_for("hdfs://not-loaded:8020/x").read("a")


def test_a_view_that_no_settings_tell_of_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    storage = storage_for("viewfs://nobody-knows/x")
    for ask in (lambda: storage.read("a"), lambda: storage.create_exclusive("a", b""), lambda: storage.list("")):
        with pytest.raises(ConfigurationError, match=r"viewfs://nobody-knows .*HADOOP_CONF_DIR"):
            ask()


def test_a_name_node_that_is_not_there_is_given_up_after_the_tries() -> None:
    storage = HdfsCheckpointStorage("hdfs://127.0.0.1:1/x", options=QUICK)
    with pytest.raises(StorageError, match=r"Cannot read hdfs://127.0.0.1:1/x/a after 2 tries"):
        storage.read("a")
    with pytest.raises(StorageError, match=r"Cannot create hdfs://127.0.0.1:1/x/a"):
        storage.create_exclusive("a", b"")


def test_a_name_node_that_never_answers_is_a_timeout_and_holds_up_no_other_thread() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"hdfs://127.0.0.1:{silent.getsockname()[1]}/x"
        storage = HdfsCheckpointStorage(uri, options=QUICK)
        with pytest.raises(StorageTimeoutError, match=r"no answer within 0.3 s"):
            storage.list("")
        with pytest.raises(StorageTimeoutError, match=r"no answer within 0.3 s"):
            storage.create_exclusive("a", b"")


def test_a_first_try_that_made_the_file_aside_does_not_look_like_a_name_that_is_taken() -> None:
    class LostTheAnswer:
        def create(self, path: str, options: Any) -> Any:
            raise FileExistsError(path)

    with pytest.raises(OSError, match=r"/job/\.tmp-\w+ was there") as caught:
        hdfs_files.FileAside(LostTheAnswer(), "/job/attempt-000001", overwrite=False)
    assert type(caught.value) is OSError


class PanicException(BaseException):
    """What Rust code that gave up looks like from here."""


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (RuntimeError('RPCError("org.apache.hadoop.security.AccessControlException", "denied")'), PermissionError),
        (RuntimeError('RPCError("java.io.FileNotFoundException", "gone")'), FileNotFoundError),
        (RuntimeError('AlreadyExists("/x")'), FileExistsError),
        (RuntimeError('RPCError("org.apache.hadoop.fs.ParentNotDirectoryException", "/x")'), NotADirectoryError),
        (RuntimeError("OperationFailed"), OSError),
        (PanicException("out of range"), OSError),
        (NotImplementedError("erasure coding"), NotImplementedError),
        (FileNotFoundError("/x"), FileNotFoundError),
    ],
)
def test_what_the_client_raises_becomes_an_error_that_storage_tells_apart(
    raised: BaseException, kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught, hdfs_files.os_errors():
        raise raised
    assert type(caught.value) is kind


def test_an_interrupt_passes() -> None:
    with pytest.raises(KeyboardInterrupt), hdfs_files.os_errors():
        raise KeyboardInterrupt
