"""Checkpoints in a directory while executors are processes of their own: seen by all of them, or refused at the start.

`/proc/self/cwd` is another directory in every process, as a disk of its own is on every machine: a path below it is
there for the driver and for nobody else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headrace import ExternalizedCheckpointRetention, StreamExecutionEnvironment
from headrace.cli.main import main
from headrace.runtime.spark.errors import PreflightError
from headrace.runtime.spark.session import obtain_session

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400)]

MASTER = "local-cluster[2,2,1024]"
OWN_IN_EVERY_PROCESS = "/proc/self/cwd/checkpoints"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two executors of two slots each, both there: a busy machine takes its time to start them."""
    handle = obtain_session(None, 4, 2, "cluster storage", MASTER)
    deadline = time.monotonic() + 180
    while handle.total_slots() < 4:
        assert time.monotonic() < deadline, f"{handle.total_slots()} slots within 180 s"
        time.sleep(0.1)
    yield handle
    handle.stop()


def summing(storage: str) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    env.enable_checkpointing(100)
    config = env.get_checkpoint_config()
    config.set_checkpoint_storage(f"file://{storage}")
    config.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)
    env.from_collection([1, 2, 3]).key_by(lambda n: 0).reduce(lambda a, b: a + b).print()
    return env


def probes_below(directory: Path) -> list[Path]:
    return list(directory.rglob("preflight-*"))


def test_a_directory_that_executors_share_serves_and_keeps_nothing_of_the_check(cluster: Any, tmp_path: Path) -> None:
    result = summing(str(tmp_path / "checkpoints")).execute("sums")
    assert result.records_read == 3
    assert list((tmp_path / "checkpoints").rglob("_metadata")), "it has checkpoints there"
    assert probes_below(tmp_path) == []


def test_a_directory_that_every_process_sees_as_its_own_is_refused_before_anything_runs(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(PreflightError) as refusal:
        summing(OWN_IN_EVERY_PROCESS).execute("sums")

    text = str(refusal.value)
    assert f"file://{OWN_IN_EVERY_PROCESS} is not seen by 2 of 2 executors" in text
    assert "s3://" in text
    assert "hdfs://" in text
    assert list(tmp_path.iterdir()) == [], "a refused start leaves nothing behind"
    told = CliRunner().invoke(main, ["doctor", "--slots", "2", "--checkpoint-dir", f"file://{OWN_IN_EVERY_PROCESS}"])
    assert told.exit_code == 1, told.output
    assert "Mount one file system at" in told.output
    assert probes_below(tmp_path) == []
