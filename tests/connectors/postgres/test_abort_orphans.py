"""`headrace sinks abort-orphans`: what no checkpoint names is listed and rolled back, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.services.postgres import PASSWORD, Database

from headrace.checkpoint.handles import PreparedItem, StateFile, SubtaskSnapshot
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.lease import Lease
from headrace.checkpoint.metadata.model import CheckpointMetadata, OperatorRecord
from headrace.checkpoint.savepoint import SavepointDirectory
from headrace.checkpoint.storage.base import storage_for
from headrace.cli.exit_codes import ExitCode
from headrace.cli.main import main
from headrace.connectors.postgres import PostgresSink
from headrace.connectors.sink import WriterContext


def prepare(database: Database, job: str, shard: int, checkpoint: int, history: str = "") -> bytes:
    """A prepared transaction on the server, and the item that a checkpoint keeps of it."""
    sink = PostgresSink.two_phase(database.url, "t", ["a"])
    writer = sink.create_writer(WriterContext(job, "sink", shard, 2, 1, history))
    writer.open()
    writer.write(checkpoint, None)
    (item,) = writer.prepare_commit(checkpoint)
    writer.close()
    return item


def metadata(job: str, checkpoint: int, items: list[PreparedItem], kind: str = "checkpoint") -> CheckpointMetadata:
    subtask = SubtaskSnapshot(uid="sink", subtask=0, parallelism=1, max_parallelism=128, prepared=tuple(items))
    operator = OperatorRecord("sink", "sink", 1, 128, (subtask,))
    return CheckpointMetadata(
        job_id=job,
        job_name=job,
        run=1,
        attempt=1,
        checkpoint_id=checkpoint,
        kind=kind,  # type: ignore[arg-type]
        mode="aligned",
        created_ms=1,
        duration_ms=1,
        operators=(operator,),
    )


@pytest.fixture
def place(database: Database, tmp_path: Path) -> Path:
    """A job with one checkpoint, which names one of the transactions in a file and one inline."""
    database.run("CREATE TABLE t (a int)")
    PostgresSink.two_phase(database.url, "t", ["a"]).preflight()
    storage = storage_for(f"file://{tmp_path}/checkpoints")
    directory = JobDirectory(storage, "alerts")
    directory.open_run()
    attempt = directory.claim_attempt()
    directory.record_restored(attempt, None, "")
    kept, filed = (prepare(database, "alerts", shard, 1) for shard in (0, 1))
    file: StateFile = storage.file_store(directory.prefix_for(1, attempt)).write("prepared", [filed + bytes(50_000)])
    assert file.path
    directory.publish(metadata("alerts", 1, [PreparedItem(1, kept), PreparedItem(1, b"", file)]))
    return tmp_path / "checkpoints" / "alerts"


def run(place: Path, database: Database, *more: str) -> Result:
    arguments = ["sinks", "abort-orphans", str(place), *more]
    return CliRunner().invoke(main, arguments, env={"HEADRACE_POSTGRES_URL": database.url})


def test_transactions_that_no_checkpoint_names_are_listed_and_nothing_is_changed(
    place: Path, database: Database
) -> None:
    prepare(database, "alerts", 1, 2)
    prepare(database, "another", 0, 2)
    before = database.prepared

    shown = run(place, database)

    assert shown.exit_code == 0, shown.output
    assert before[2] in shown.output
    assert "1 prepared transaction would be rolled back with --roll-back" in shown.output
    assert [gid for gid in before if gid in shown.output] == [before[2]]
    assert database.prepared == before


def test_they_are_rolled_back_on_request_and_all_others_are_spared(place: Path, database: Database) -> None:
    prepare(database, "alerts", 1, 2)
    prepare(database, "another", 0, 2)
    before = database.prepared

    done = run(place, database, "--roll-back", "--json")

    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["rolled_back"] == [before[2]]
    assert database.prepared == [*before[:2], before[3]]
    assert "no prepared transaction is left over" in run(place, database, "--roll-back").output


def test_transactions_of_a_job_of_the_same_name_in_another_directory_are_left_alone(
    place: Path, database: Database
) -> None:
    own = JobDirectory(storage_for(f"file://{place.parent}"), "alerts").known_history()
    assert own
    prepare(database, "alerts", 0, 2, own)
    prepare(database, "alerts", 0, 2, "f5e4d3c2b1a0")
    before = database.prepared

    done = run(place, database, "--roll-back", "--json")

    assert json.loads(done.output)["rolled_back"] == [before[2]]
    assert database.prepared == [*before[:2], before[3]]


def test_what_a_savepoint_elsewhere_names_is_spared_if_it_is_given(
    place: Path, database: Database, tmp_path: Path
) -> None:
    item = prepare(database, "alerts", 0, 2)
    savepoint = tmp_path / "elsewhere"
    SavepointDirectory(storage_for(f"file://{savepoint}")).publish(
        metadata("alerts", 2, [PreparedItem(2, item)], "savepoint")
    )

    assert run(place, database, "--keep", str(savepoint), "--roll-back").exit_code == 0
    assert len(database.prepared) == 3
    assert run(place, database, "--roll-back").exit_code == 0
    assert len(database.prepared) == 2


def test_nothing_is_rolled_back_while_the_job_runs(place: Path, database: Database) -> None:
    prepare(database, "alerts", 1, 2)
    lease = Lease(storage_for(f"file://{place.parent}"), "alerts")
    lease.acquire(False)
    try:
        refused = run(place, database, "--roll-back")
        listed = run(place, database)
    finally:
        lease.release()
    assert refused.exit_code == ExitCode.OWNED
    assert len(database.prepared) == 3
    assert "The job is running" in listed.output


def test_a_damaged_checkpoint_is_refused_as_it_might_name_anything(place: Path, database: Database) -> None:
    (found,) = place.glob("run-*/chk-*/_metadata")
    found.write_bytes(found.read_bytes()[:-1])
    prepare(database, "alerts", 1, 2)

    refused = run(place, database, "--roll-back")

    assert refused.exit_code == ExitCode.REFUSED
    assert len(database.prepared) == 3


def test_a_server_that_cannot_be_reached_is_named_without_its_password(place: Path, database: Database) -> None:
    refused = run(place, database, "--url", database.through(1))
    assert refused.exit_code == ExitCode.REFUSED
    assert "cannot connect" in refused.output
    assert PASSWORD not in refused.output
