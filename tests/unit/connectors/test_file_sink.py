"""Visible files are whole, never overwritten, and sit where bucket, policy and names say."""

from __future__ import annotations

import csv
import datetime
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.checkpoint.handles import HistoryPoint
from headrace.connectors.files import BucketAssigner, Encoder, FileSink, FileSource, OutputFileConfig, RollingPolicy
from headrace.connectors.files import sink as file_sink
from headrace.connectors.files.buckets import DateTimeBuckets
from headrace.connectors.files.staged_names import safe_name
from headrace.connectors.sink import WriterContext
from headrace.errors import CommitFailedError, ConfigurationError, OutputLostError, RecordError
from headrace.testing.source_driver import SourceDriver
from headrace.types.information import Types
from headrace.types.rows import Row

READING = Types.ROW_NAMED(["id", "temperature"], [Types.STRING(), Types.DOUBLE()])


def context(subtask: int = 0, attempt: int = 1, uid: str = "sink", job: str = "job") -> WriterContext:
    return WriterContext(job, uid, subtask, 2, attempt)


def prepared(sink: FileSink, values: Sequence[Any], where: WriterContext | None = None) -> list[bytes]:
    writer = sink.create_writer(where or context())
    writer.open()
    writer.write_batch(values, None)
    writer.flush()
    return list(writer.prepare_commit(1))


def written(sink: FileSink, values: Sequence[Any]) -> list[Path]:
    sink.create_committer().commit(prepared(sink, values))
    return visible(sink.path)


def visible(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*") if path.is_file() and ".staging" not in path.parts)
    return sorted(files)


def staged(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / ".staging").rglob("*") if path.is_file())


# Commit


def test_a_committed_file_keeps_its_inode_and_content_however_often_it_is_committed_again(tmp_path: Path) -> None:
    sink = FileSink.text(tmp_path)
    items = prepared(sink, ["a", "b"])
    assert visible(tmp_path) == []
    sink.create_committer().commit(items)
    (file,) = visible(tmp_path)
    before = file.stat()

    for _ in range(3):
        sink.create_committer().commit(items)

    assert visible(tmp_path) == [file]
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert file.read_text() == "a\nb\n"
    assert [path.suffix for path in staged(tmp_path)] == [".committed"]


def test_a_commit_that_died_after_the_link_is_finished(tmp_path: Path) -> None:
    sink = FileSink.text(tmp_path)
    items = prepared(sink, ["a"])
    (waiting,) = staged(tmp_path)
    copy = waiting.with_name("kept")
    os.link(waiting, copy)
    sink.create_committer().commit(items)
    os.rename(copy, waiting)  # as if the last step had not happened

    sink.create_committer().commit(items)

    assert [path.read_text() for path in visible(tmp_path)] == ["a\n"]
    assert waiting not in staged(tmp_path)


def test_a_file_that_a_reader_took_away_is_not_shown_again(tmp_path: Path) -> None:
    sink = FileSink.text(tmp_path)
    items = prepared(sink, ["a"])
    sink.create_committer().commit(items)
    visible(tmp_path)[0].unlink()

    sink.create_committer().commit(items)

    assert visible(tmp_path) == []


def test_a_visible_file_that_somebody_changed_is_reported_and_left_alone(tmp_path: Path) -> None:
    sink = FileSink.text(tmp_path)
    items = prepared(sink, ["a"])
    sink.create_committer().commit(items)
    (file,) = visible(tmp_path)
    file.write_text("b\n")

    with pytest.raises(CommitFailedError, match="never overwritten"):
        sink.create_committer().commit(items)
    assert file.read_text() == "b\n"


def test_a_foreign_file_under_the_final_name_is_never_overwritten(tmp_path: Path) -> None:
    sink = FileSink.text(tmp_path)
    items = prepared(sink, ["a"])
    (txn,) = sink.create_committer().transactions(items)  # type: ignore[attr-defined]
    foreign = tmp_path / txn.files[0].final
    foreign.write_text("foreign")

    with pytest.raises(CommitFailedError, match="another content"):
        sink.create_committer().commit(items)
    assert foreign.read_text() == "foreign"
    foreign.unlink()
    sink.create_committer().commit(items)
    assert foreign.read_text() == "a\n"


def test_a_staged_file_that_vanished_is_reported_with_both_names(tmp_path: Path) -> None:
    sink = FileSink.text(tmp_path)
    items = prepared(sink, ["a"])
    (waiting,) = staged(tmp_path)
    waiting.unlink()

    with pytest.raises(OutputLostError, match=rf"{waiting.name} prepared for .*part-0-1-0-"):
        sink.create_committer().commit(items)


def test_a_zombie_of_an_older_attempt_cannot_show_what_recovery_gave_up(tmp_path: Path) -> None:
    sink = FileSink.text(tmp_path)
    of_the_dead = prepared(sink, ["a"], context(attempt=1))
    sink.create_committer().abort_leftovers("job", "sink", 2, [])

    with pytest.raises(OutputLostError):
        sink.create_committer().commit(of_the_dead)
    assert visible(tmp_path) == []


def test_recovery_keeps_what_the_checkpoint_names_and_what_belongs_to_others(tmp_path: Path) -> None:
    sink = FileSink.text(tmp_path)
    keep = prepared(sink, ["keep"], context(attempt=1))
    lost = prepared(sink, ["lost"], context(subtask=1, attempt=1))
    others = [
        prepared(sink, ["other operator"], context(uid="sink-2", attempt=1)),
        prepared(sink, ["other job"], context(job="job/2", attempt=1)),
        prepared(sink, ["other attempt"], context(attempt=2)),
    ]

    sink.create_committer().abort_leftovers("job", "sink", 2, keep)

    committer = sink.create_committer()
    for items in (keep, *others):
        committer.commit(items)
    with pytest.raises(OutputLostError):
        committer.commit(lost)
    shown = sorted(path.read_text().strip() for path in visible(tmp_path))
    assert shown == ["keep", "other attempt", "other job", "other operator"]


def test_a_file_system_without_links_is_served_by_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    sink = FileSink.text(tmp_path)
    items = prepared(sink, ["a"])
    for _ in range(2):
        sink.create_committer().commit(items)

    assert [path.read_text() for path in visible(tmp_path)] == ["a\n"]


def test_a_whole_output_tree_may_be_moved_between_prepare_and_commit(tmp_path: Path) -> None:
    items = prepared(FileSink.text(tmp_path / "here"), ["a"])
    os.rename(tmp_path / "here", tmp_path / "there")

    moved = FileSink.text(tmp_path / "there")
    moved.create_committer().commit(items)

    assert [path.read_text() for path in visible(moved.path)] == ["a\n"]


@pytest.mark.parametrize("name", ["plain", "../../etc", ".", "a/b", "ü" * 200, "a-1-a2-b"])
def test_any_job_and_operator_name_makes_a_file_name(tmp_path: Path, name: str) -> None:
    sink = FileSink.text(tmp_path / "out")
    items = prepared(sink, ["a"], context(uid=name, job=name))
    sink.create_committer().abort_leftovers(name, name, 1, [])
    sink.create_committer().commit(items)

    assert len(safe_name(name)) <= 100
    assert "/" not in safe_name(name)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    sink.create_committer().abort_leftovers(name, name, 2, [])
    assert [path.name for path in staged(tmp_path / "out")] == [f"{safe_name(name)}.all.committed"]


# What was committed


def committed(sink: FileSink, checkpoint: int, attempt: int = 1, history: str = "here", value: str = "a") -> str:
    """The name under which one record of that checkpoint is visible."""
    before = visible(sink.path)
    writer = sink.create_writer(WriterContext("job", "sink", 0, 2, attempt, history))
    writer.open()
    writer.write(value, None)
    sink.create_committer().commit(writer.prepare_commit(checkpoint))
    (new,) = set(visible(sink.path)) - set(before)
    return str(new)


def since(sink: FileSink, attempt: int, checkpoint: int, history: str = "here") -> list[str]:
    found = sink.create_committer().committed_since("job", "sink", HistoryPoint(history, attempt, checkpoint))
    return [output.what for output in found]


def test_files_of_later_checkpoints_and_attempts_of_one_history_are_named_in_order(tmp_path: Path) -> None:
    sink = FileSink.text(tmp_path)
    names = [committed(sink, 3), committed(sink, 4), committed(sink, 5, attempt=2)]
    committed(sink, 9, history="elsewhere")

    assert since(sink, 1, 2) == names
    assert since(sink, 1, 3) == names[1:]
    assert since(sink, 1, 9) == names[2:]
    assert since(sink, 2, 5) == []
    assert since(sink, 0, 0, "never heard of") == []


def test_what_older_attempts_committed_is_remembered_after_recovery_and_after_a_reader_took_it_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.connectors.files.commit_notes.NOTES_KEPT", 3)
    sink = FileSink.text(tmp_path)
    names = [committed(sink, checkpoint) for checkpoint in range(1, 6)]
    for attempt in (2, 3):
        committer = sink.create_committer()
        committer.history = "here"
        committer.abort_leftovers("job", "sink", attempt, [])
    for name in names:
        Path(name).unlink()

    assert since(sink, 1, 3) == names[3:]
    assert since(sink, 1, 0) == names, "the last one of each writer is kept"
    assert [path.name for path in staged(tmp_path)] == ["sink-hhere.all.committed", "sink.owner"]


def test_a_checkpoint_whose_files_a_reader_took_away_long_ago_is_still_known_to_be_committed(tmp_path: Path) -> None:
    sink = FileSink.text(tmp_path)
    items = prepared(sink, ["a"])
    sink.create_committer().commit(items)
    sink.create_committer().abort_leftovers("job", "sink", 2, [])
    visible(tmp_path)[0].unlink()

    sink.create_committer().commit(items)

    assert visible(tmp_path) == []


def test_half_a_line_in_a_ledger_spoils_no_other(tmp_path: Path) -> None:
    sink = FileSink.text(tmp_path)
    first = committed(sink, 1)
    (ledger,) = staged(tmp_path)
    with ledger.open("a") as torn:
        torn.write('\n["here",1,2,"par')
    sink.staging.append(str(ledger.relative_to(tmp_path)), b'\n["here",1,3,"part-x"]\n')

    assert since(sink, 1, 0) == [first, f"{tmp_path}/part-x"]


# Formats


def test_the_result_of_for_row_format_is_a_sink_with_and_without_build(tmp_path: Path) -> None:
    builder = FileSink.for_row_format(str(tmp_path), Encoder.simple_string_encoder())

    assert builder.build() is builder
    assert [path.read_text() for path in written(builder, [1, ("a", 2)])] == ["1\n('a', 2)\n"]


def test_rows_become_json_objects_in_depth(tmp_path: Path) -> None:
    inner = Row(as_dict=1)
    values = [Row(id="a", inner=inner, many=[inner], by={"k": inner}), {"plain": None}, "text", Row(id="b")]

    (file,) = written(FileSink.json_lines(tmp_path), values)

    assert file.suffix == ".jsonl"
    assert file.read_text().splitlines() == [
        '{"id":"a","inner":{"as_dict":1},"many":[{"as_dict":1}],"by":{"k":{"as_dict":1}}}',
        '{"plain":null}',
        '"text"',
        '{"id":"b"}',
    ]


def test_what_json_cannot_hold_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be written as JSON"):
        written(FileSink.json_lines(tmp_path), [object()])


def test_csv_has_a_header_in_every_file_where_the_row_type_is_known(tmp_path: Path) -> None:
    rows = [Row(id='a "quoted", name\nof two lines', temperature=1.5), Row(id="b", temperature=None)]
    (file,) = written(FileSink.csv(tmp_path / "named", READING), rows)
    with file.open(newline="") as lines:
        assert list(csv.reader(lines)) == [
            ["id", "temperature"],
            ['a "quoted", name\nof two lines', "1.5"],
            ["b", ""],
        ]
    (file,) = written(FileSink.csv(tmp_path / "bare", delimiter=";"), [("a", 1), [2, 3], 4])
    assert file.read_text() == "a;1\n2;3\n4\n"
    with pytest.raises(ConfigurationError, match="header needs names"):
        FileSink.csv(tmp_path, header=True)


@pytest.mark.parametrize(
    ("sink", "source"),
    [
        (lambda path: FileSink.csv(path, READING), lambda path: FileSource.csv(path, type_info=READING)),
        (FileSink.json_lines, lambda path: FileSource.json_lines(path, type_info=READING)),
        (lambda path: FileSink.parquet(path, READING), FileSource.parquet),
    ],
    ids=["csv", "json", "parquet"],
)
def test_what_the_sink_wrote_the_source_reads(
    tmp_path: Path, sink: Callable[[Path], FileSink], source: Callable[[Path], FileSource]
) -> None:
    rows = [Row(id=f'é "{i}",\n', temperature=i / 3) for i in range(1_000)]
    written(sink(tmp_path), rows)

    driver = SourceDriver(source(tmp_path))
    driver.run()

    assert driver.values == rows


def test_parquet_is_written_in_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.connectors.files.encoders.PARQUET_ROW_GROUP", 10)
    sink = FileSink.parquet(tmp_path, READING)
    writer = sink.create_writer(context())
    writer.open()
    for i in range(25):
        writer.write((str(i), float(i)), None)
    sink.create_committer().commit(writer.prepare_commit(1))

    (file,) = visible(tmp_path)
    assert file.suffix == ".parquet"
    assert pq.read_metadata(file).num_row_groups == 3
    assert pq.read_table(file)["id"].to_pylist() == [str(i) for i in range(25)]


def test_parquet_needs_a_row_type_that_has_columns(tmp_path: Path) -> None:
    for wrong in (Types.STRING(), Types.ROW_NAMED(["a"], [Types.ANY()])):
        with pytest.raises(ConfigurationError, match="Parquet cannot hold"):
            FileSink.parquet(tmp_path, wrong)


# Buckets, policies, names


def test_records_are_sorted_into_buckets_by_field(tmp_path: Path) -> None:
    sink = FileSink.json_lines(tmp_path).with_bucket_assigner(BucketAssigner.field_bucket_assigner("country", "city"))
    rows = [Row(country="de", city="bonn"), Row(country="fr", city="a/../b"), Row(country="de", city="bonn")]

    files = written(sink, rows)

    folders = [str(path.parent.relative_to(tmp_path)) for path in files]
    assert folders == ["country=de/city=bonn", "country=fr/city=a%2F..%2Fb"]
    assert len(files[0].read_text().splitlines()) == 2


def test_records_are_sorted_into_buckets_by_their_own_time(tmp_path: Path) -> None:
    assigner = BucketAssigner.date_time_bucket_assigner("yyyy-MM-dd--HH", "Europe/Berlin", event_time=True)
    noon = int(datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC).timestamp() * 1_000)

    assert assigner.bucket_of("any", noon) == "2024-05-01--14"
    with pytest.raises(RecordError, match="no timestamp"):
        assigner.bucket_of("any", None)


def test_records_are_sorted_into_buckets_by_the_time_of_writing() -> None:
    assigner = DateTimeBuckets("%Y/%m", "UTC", event_time=False, clock=lambda: 86_400.0 * 40)

    assert assigner.bucket_of("any", 0) == "1970/02"


@pytest.mark.parametrize("bucket", ["../up", "/absolute", ".hidden", "a/_b", "a//b", "a/"])
def test_a_bucket_outside_of_the_sink_or_hidden_from_readers_is_refused(tmp_path: Path, bucket: str) -> None:
    class Fixed(BucketAssigner):
        def bucket_of(self, value: Any, timestamp: int | None) -> str:
            return bucket

    with pytest.raises(RecordError, match="Bucket"):
        written(FileSink.text(tmp_path).with_bucket_assigner(Fixed()), ["a"])


class ByValue(BucketAssigner):
    def bucket_of(self, value: Any, timestamp: int | None) -> str:
        return f"b{value}"


def test_more_buckets_than_files_may_be_open_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sink, "MAX_OPEN_FILES", 3)
    sink = FileSink.text(tmp_path).with_bucket_assigner(ByValue())
    writer = sink.create_writer(context())
    writer.open()
    for i in range(60):
        writer.write(i % 10, None)
    sink.create_committer().commit(writer.prepare_commit(1))

    lines = [line for path in visible(tmp_path) for line in path.read_text().splitlines()]
    assert sorted(lines) == sorted(str(i % 10) for i in range(60))


def test_a_file_is_closed_before_the_barrier_when_it_is_large(tmp_path: Path) -> None:
    sink = FileSink.text(tmp_path).with_rolling_policy(RollingPolicy.default_rolling_policy(part_size=10))
    writer = sink.create_writer(context())
    writer.open()
    for i in range(10):
        writer.write(f"line{i}", None)
    sink.create_committer().commit(writer.prepare_commit(1))

    assert [path.read_text() for path in visible(tmp_path)] == [f"line{i}\nline{i + 1}\n" for i in range(0, 10, 2)]


def test_a_policy_closes_by_size_and_by_age() -> None:
    policy = RollingPolicy.default_rolling_policy(part_size=100, rollover_interval=1_000)

    assert not policy.is_full(99, 999)
    assert policy.is_full(100, 0)
    assert policy.is_full(0, 1_000)
    assert not RollingPolicy.on_checkpoint_rolling_policy().is_full(10**12, 10**12)
    with pytest.raises(ConfigurationError):
        RollingPolicy.default_rolling_policy(part_size=0)


def test_names_begin_and_end_as_configured_and_are_never_hidden(tmp_path: Path) -> None:
    config = OutputFileConfig.builder().with_part_prefix("alerts").with_part_suffix(".log").build()
    (file,) = written(FileSink.text(tmp_path).with_output_file_config(config), ["a"])

    assert file.name.startswith("alerts-0-1-0-")
    assert file.suffix == ".log"
    for wrong in (OutputFileConfig("_x"), OutputFileConfig("a/b"), OutputFileConfig("a", "/b")):
        with pytest.raises(ConfigurationError, match="OutputFileConfig"):
            FileSink.text(tmp_path).with_output_file_config(wrong)


def test_a_path_that_cannot_be_written_is_refused_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(ConfigurationError, match="cannot write to"):
        FileSink.text(tmp_path / "file").preflight()
    FileSink.text(tmp_path / "new").preflight()
    assert staged(tmp_path / "new") == []
