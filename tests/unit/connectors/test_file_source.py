"""Which files count, how odd ones are treated, and what a record that cannot be read does."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.connectors.files import FileSource, StreamFormat
from headrace.connectors.files.enumerator import FileEnumerator
from headrace.connectors.files.formats import Problem
from headrace.connectors.source import Boundedness, PollStatus, SourceBatch
from headrace.durations import Duration
from headrace.errors import ConfigurationError, RecordError
from headrace.testing.source_driver import SourceDriver, SourceSnapshot
from headrace.types.information import Types

PERSON = Types.ROW_NAMED(["name", "age"], [Types.STRING(), Types.INT()])


def read(source: FileSource, **how: Any) -> list[Any]:
    return [record.value for record in SourceDriver(source, **how).run()]


def skipped(driver: SourceDriver) -> dict[Problem, int]:
    return {Problem(name): count for name, count in driver.metrics.counts.items()}


# Which files


def test_folders_are_read_in_depth_without_hidden_and_empty_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", ".hidden", "_SUCCESS", "deep/c.txt", "_temporary/d.txt", ".staging/e.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "half.txt").touch()

    assert read(FileSource.text(tmp_path)) == ["a.txt", "b.txt", "deep/c.txt"]


def test_plain_paths_uris_and_several_of_them_are_understood(tmp_path: Path) -> None:
    for name in ("one", "two words", "three"):
        (tmp_path / name).write_text(name)
    uri = (tmp_path / "two words").as_uri()
    assert "%20" in uri

    assert read(FileSource.text(str(tmp_path / "one"), uri, tmp_path / "three")) == ["one", "three", "two words"]


def test_pyflinks_builder_gives_the_same_source(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x\ny\n")
    builder = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(tmp_path))

    assert read(builder.process_static_file_set().build()) == ["x", "y"]
    assert builder.boundedness is Boundedness.BOUNDED
    assert builder.monitor_continuously(Duration.of_seconds(1)).build().boundedness is Boundedness.UNBOUNDED


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FileSource.text(), "no path"),
        (lambda: FileSource.text("s3://bucket/key"), "s3 file system"),
        (lambda: FileSource.text("file://host/key"), "host"),
        (lambda: FileSource.text("x", charset="UTF-16"), "line end"),
        (lambda: FileSource.text("x", charset="klingon"), "unknown"),
        (lambda: FileSource.text("x", on_error="explode"), "on_error"),
        (lambda: FileSource.text("x").monitor_continuously(0), "never pause"),
        (lambda: FileSource.csv("x", type_info=Types.STRING()), "ROW_NAMED"),
        (lambda: FileSource.csv("x", type_info=Types.ROW([Types.LIST(Types.INT())])), "cannot be read as LIST"),
        (lambda: FileSource.json_lines("x", type_info=Types.PICKLED_BYTE_ARRAY()), "cannot be read as"),
        (lambda: FileSource.parquet("/nowhere/at/all"), "does not exist"),
        (lambda: SourceDriver(FileSource.text("/nowhere/at/all")), "does not exist"),
    ],
)
def test_a_source_that_cannot_work_is_refused_with_the_way_out(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_a_fixed_set_is_listed_once_and_kept_over_a_restore(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n3\n")
    first = SourceDriver(FileSource.text(tmp_path))
    first.run(records=1, limit=1)
    (tmp_path / "b").write_text("late\n")

    second = SourceDriver(FileSource.text(tmp_path), restored=first.snapshot())

    assert [r.value for r in second.run()] == ["2", "3"]


# A watched folder


def test_a_new_file_counts_when_two_looks_saw_it_unchanged(tmp_path: Path) -> None:
    driver = SourceDriver(FileSource.text(tmp_path).monitor_continuously(10))
    assert driver.enumerator.discovery_interval_ms == 10
    assert driver.run() == []

    growing = tmp_path / "growing"
    growing.write_text("1\n")
    driver.discover()
    growing.write_text("1\n2\n")
    driver.discover()
    assert driver.run() == []
    driver.discover()

    assert [r.value for r in driver.run()] == ["1", "2"]
    assert driver.run() == []
    assert not driver.ended
    assert driver.poll(0) is PollStatus.NEEDS_SPLIT


def test_files_arriving_one_by_one_are_read_once_with_a_restart_at_each(tmp_path: Path) -> None:
    source = FileSource.text(tmp_path).monitor_continuously(10)
    snapshot: SourceSnapshot | None = None
    kept: list[str] = []
    for number in range(35):
        (tmp_path / f"{number:02d}").write_text(f"{number} a\n{number} b\n")
        driver = SourceDriver(source, parallelism=1 + number % 3, restored=snapshot)
        driver.discover()
        driver.run(records=1 + number % 2, limit=1)
        kept += driver.values
        snapshot = driver.snapshot()
        driver.run()  # lost in the crash
    last = SourceDriver(source, restored=snapshot)
    last.run()
    kept += last.values

    assert sorted(kept) == sorted(f"{number} {part}" for number in range(35) for part in "ab")


def test_a_file_dated_a_week_back_is_read_like_any_other(tmp_path: Path) -> None:
    driver = SourceDriver(FileSource.text(tmp_path).monitor_continuously(10))
    old = tmp_path / "old"
    old.write_text("old\n")
    os.utime(old, ns=(10**18, 10**18))
    driver.discover()
    driver.discover()

    assert [r.value for r in driver.run()] == ["old"]


def test_a_file_rewritten_under_its_name_is_reported_once_and_not_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = SourceDriver(FileSource.text(tmp_path).monitor_continuously(10))
    file = tmp_path / "a"
    file.write_text("first\n")
    for _ in range(2):
        driver.discover()
    driver.run()
    file.write_text("second, longer\n")
    for _ in range(3):
        driver.discover()

    restored = SourceDriver(FileSource.text(tmp_path).monitor_continuously(10), restored=driver.snapshot())
    restored.discover()

    assert driver.run() == restored.run() == []
    assert isinstance(restored.enumerator, FileEnumerator)
    assert restored.enumerator.rewritten == 1
    assert caplog.text.count("was rewritten") == 1


# Files that change or vanish


def test_a_file_deleted_while_it_is_read_is_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("".join(f"{i}\n" for i in range(100_000)))
    driver = SourceDriver(FileSource.text(tmp_path))
    driver.run(records=1, limit=1)
    (tmp_path / "a").unlink()
    driver.run(limit=5_000)

    assert driver.values == [str(i) for i in range(100_000)]


def test_a_file_gone_before_it_is_read_fails_by_name_or_is_skipped_and_counted(tmp_path: Path) -> None:
    def gone(on_error: Any) -> SourceDriver:
        (tmp_path / "a").write_text("a\n")
        (tmp_path / "b").write_text("b\n")
        driver = SourceDriver(FileSource.text(tmp_path, on_error=on_error))
        (tmp_path / "a").unlink()
        return driver

    with pytest.raises(RecordError, match=r"/a: it was deleted"):
        gone("fail").run()
    driver = gone("skip")
    driver.run()
    assert driver.values == ["b"]
    assert skipped(driver) == {Problem.FILE: 1}


def test_a_file_changed_since_it_was_found_fails_or_is_read_on_and_counted(tmp_path: Path) -> None:
    def changed(on_change: Any) -> SourceDriver:
        (tmp_path / "a").write_text("1\n2\n")
        driver = SourceDriver(FileSource.text(tmp_path, on_change=on_change))
        (tmp_path / "a").write_text("1\n2\nappended\n")
        return driver

    with pytest.raises(RecordError, match="changed after it was found"):
        changed("fail").run()
    driver = changed("read")
    driver.run()
    assert driver.values == ["1", "2"]  # what it held when it was found
    assert skipped(driver) == {Problem.CHANGED: 1}


def test_a_file_truncated_while_it_is_read_fails_by_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("".join(f"line {i}\n" for i in range(200_000)))
    driver = SourceDriver(FileSource.text(tmp_path))
    driver.run(records=10, limit=10)
    os.truncate(tmp_path / "a", 300_000)

    with pytest.raises(RecordError, match="truncated"):
        driver.run(limit=10_000)


# Lines


def test_lines_of_any_length_and_end_come_whole(tmp_path: Path) -> None:
    lines = ["", "x" * 1_000_000, "ä" * 300_000, "\ttab", "", "last without end"]
    (tmp_path / "a").write_bytes("\r\n".join(lines).encode())

    assert read(FileSource.text(tmp_path)) == lines


def test_an_undecodable_line_is_named_with_file_number_and_text(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"fine\nalso fine\nb\xffd\nfine again\n")

    with pytest.raises(RecordError, match=r"bad\.txt, line 3: not UTF-8.*b\\\\xffd.*on_error=\"skip\""):
        read(FileSource.text(tmp_path))
    driver = SourceDriver(FileSource.text(tmp_path, on_error="skip"))
    driver.run()
    assert driver.values == ["fine", "also fine", "fine again"]
    assert skipped(driver) == {Problem.RECORD: 1}


def test_a_line_number_is_right_after_a_restore_too(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"1\n2\n3\n4\n\xff\n")
    first = SourceDriver(FileSource.text(tmp_path))
    first.run(records=3, limit=1)

    with pytest.raises(RecordError, match="line 5"):
        SourceDriver(FileSource.text(tmp_path), restored=first.snapshot()).run()


def test_a_file_of_bad_lines_only_never_holds_the_task_up(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"\xff\n" * 1_000)
    driver = SourceDriver(FileSource.text(tmp_path, on_error="skip"))
    driver.poll(0)

    assert driver.poll(0, limit=10) is PollStatus.IDLE
    assert 0 < skipped(driver)[Problem.RECORD] < 1_000


def test_another_charset_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("grün\nweiß\n".encode("latin-1"))

    assert read(FileSource.text(tmp_path, charset="latin-1")) == ["grün", "weiß"]


# JSON


def test_json_without_a_type_gives_what_json_holds(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"a": [1, 2.5]}\n\n  \n"text"\nnull\n7\n')

    assert read(FileSource.json_lines(tmp_path)) == [{"a": [1, 2.5]}, "text", None, 7]


def test_json_fields_are_found_by_name_checked_and_converted(tmp_path: Path) -> None:
    row = Types.ROW_NAMED(
        ["class", "x y", "when", "exact", "many", "by"],
        [
            Types.STRING(),
            Types.DOUBLE(),
            Types.INSTANT(),
            Types.BIG_DEC(),
            Types.LIST(Types.INT()),
            Types.MAP(Types.STRING(), Types.LONG()),
        ],
    )
    (tmp_path / "a").write_text(
        '{"x y": 1, "class": "k", "when": "2024-05-01T10:00:00Z", "exact": "1.10", "many": [1, null], "by": {"a": 1}}\n'
        '{"further": true}\n'
    )

    first, second = read(FileSource.json_lines(tmp_path, type_info=row))

    when = datetime.datetime(2024, 5, 1, 10, tzinfo=datetime.UTC)
    assert tuple(first) == ("k", 1.0, when, Decimal("1.10"), [1, None], {"a": 1})
    assert first["class"] == "k"
    assert tuple(second) == (None,) * 6


@pytest.mark.parametrize(
    "line",
    [
        *('{"name": 1}', '{"age": "x"}', '{"age": 3000000000}', '{"age": 1.5}', "[1]", "{", '{"name": "a"}}'),
        *("nonsense", '{"name": "c"} {"name": "d"}'),
    ],
)
def test_a_json_line_that_does_not_fit_is_named_or_skipped_alone(tmp_path: Path, line: str) -> None:
    (tmp_path / "a").write_text(f'{{"name": "a", "age": 1}}\n{line}\n{{"name": "b", "age": 2}}\n')

    with pytest.raises(RecordError, match="a, line 2: "):
        read(FileSource.json_lines(tmp_path, type_info=PERSON))
    driver = SourceDriver(FileSource.json_lines(tmp_path, type_info=PERSON, on_error="skip"))
    driver.run()
    assert driver.values == [("a", 1), ("b", 2)]
    assert skipped(driver) == {Problem.RECORD: 1}


def test_a_json_value_that_is_spread_over_lines_is_bad_however_many_are_read_at_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"name": "a", "age": 1}\n{"name":\n"b"}\n\n  \r\n{"name": "c", "age": 3}\n')
    for limit in (1, 2, 100):
        driver = SourceDriver(FileSource.json_lines(tmp_path, type_info=PERSON, on_error="skip"))
        driver.run(limit=limit)
        assert driver.values == [("a", 1), ("c", 3)]
        assert skipped(driver) == {Problem.RECORD: 2}


# CSV


def test_csv_columns_are_found_by_their_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,further,name\n1,x,ann\n,y,\n")
    (tmp_path / "b.csv").write_text("name,age\nbob,2\n")

    assert read(FileSource.csv(tmp_path, type_info=PERSON)) == [("ann", 1), ("", None), ("bob", 2)]


def test_csv_without_a_header_and_with_other_marks_is_read_by_position(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("'an;n';1\r\nbob;2\r\n\r\n")

    source = FileSource.csv(tmp_path, type_info=PERSON, header=False, delimiter=";", quote="'")
    assert read(source) == [("an;n", 1), ("bob", 2)]


def test_csv_of_a_header_alone_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("name,age")

    assert read(FileSource.csv(tmp_path, type_info=PERSON)) == []


def test_csv_converts_every_basic_type(tmp_path: Path) -> None:
    names = ["b", "d", "t", "ts", "x"]
    types = [Types.BOOLEAN(), Types.SQL_DATE(), Types.SQL_TIME(), Types.SQL_TIMESTAMP(), Types.BIG_DEC()]
    (tmp_path / "a.csv").write_text("true,2024-05-01,10:30:00,2024-05-01T10:30:00,1.10\n")

    (row,) = read(FileSource.csv(tmp_path, type_info=Types.ROW_NAMED(names, types), header=False))

    day, time = datetime.date(2024, 5, 1), datetime.time(10, 30)
    assert tuple(row) == (True, day, time, datetime.datetime.combine(day, time), Decimal("1.10"))


@pytest.mark.parametrize("line", ["ann,x", "ann,1,2", "ann", "ann,3000000000", 'a"b,"1"x', "\udcff,1"])
def test_a_csv_line_that_does_not_fit_is_named_or_skipped_alone(tmp_path: Path, line: str) -> None:
    text = f"name,age\nann,1\n{line}\nbob,2\n"
    (tmp_path / "a.csv").write_bytes(text.encode("utf-8", "surrogateescape"))

    with pytest.raises(RecordError, match=r"a\.csv, line 3: "):
        read(FileSource.csv(tmp_path, type_info=PERSON))
    driver = SourceDriver(FileSource.csv(tmp_path, type_info=PERSON, on_error="skip"))
    driver.run()
    assert driver.values == [("ann", 1), ("bob", 2)]
    assert skipped(driver) == {Problem.RECORD: 1}


def test_a_quote_that_is_never_closed_spoils_its_own_line_only(tmp_path: Path) -> None:
    lines = ["ann,1", 'pipe 5",2', '"open,3', *(f"n{i},{i}" for i in range(500)), '"two', 'lines",7', '"x"y,8', "bob,9"]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    driver = SourceDriver(FileSource.csv(tmp_path, type_info=PERSON, header=False, on_error="skip"))
    driver.run(limit=3)

    rest = [(f"n{i}", i) for i in range(500)]
    assert driver.values == [("ann", 1), ('pipe 5"', 2), *rest, ("two\nlines", 7), ("bob", 9)]
    assert skipped(driver) == {Problem.RECORD: 2}


def test_a_record_of_several_lines_with_a_bad_value_is_skipped_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('"two\nlines",x\n"a\nb",1\n')
    driver = SourceDriver(FileSource.csv(tmp_path, type_info=PERSON, header=False, on_error="skip"))
    driver.run(limit=1)

    assert driver.values == [("a\nb", 1)]
    assert skipped(driver) == {Problem.RECORD: 1}


def test_a_csv_header_without_a_declared_column_names_both(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("name,years\nann,1\n")

    with pytest.raises(RecordError, match="names name, years, but the declared row also has age"):
        read(FileSource.csv(tmp_path, type_info=PERSON))


# Parquet


def write_parquet(path: Path, columns: dict[str, Any], rows_per_group: int = 10) -> None:
    pq.write_table(pa.table(columns), path, row_group_size=rows_per_group)


def test_the_row_type_comes_from_the_first_parquet_file(tmp_path: Path) -> None:
    day = datetime.date(2024, 5, 1)
    table = {
        "s": pa.array(["a"]).dictionary_encode(),
        "i": pa.array([1], pa.int32()),
        "u": pa.array([2**32 - 1], pa.uint32()),
        "d": [day],
        "l": [[1, None]],
        "t": [{"x": 1, "y": "z"}],
    }
    write_parquet(tmp_path / "a.parquet", table)
    source = FileSource.parquet(tmp_path)

    assert str(source.produced_type) == (
        "ROW<s STRING, i INT, u LONG, d SQL_DATE, l LIST<LONG>, t ROW<x LONG, y STRING>>"
    )
    (row,) = read(source)
    assert tuple(row) == ("a", 1, 2**32 - 1, day, [1, None], (1, "z"))
    assert row.t.y == "z"


def test_chosen_parquet_columns_come_in_the_order_of_the_choice(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", {"a": [1, 2], "b": ["x", "y"], "c": [True, False]})

    assert read(FileSource.parquet(tmp_path, columns=["c", "a"])) == [(True, 1), (False, 2)]
    with pytest.raises(ConfigurationError, match="no column d, only a, b, c"):
        FileSource.parquet(tmp_path, columns=["d"])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"a": ["text"], "b": [1]}, 'column "a" is string, but LONG is expected'),
        ({"b": [1]}, 'no column "a"'),
        ({"a": [1], "b": [1], "c": [1]}, "further columns c"),
    ],
)
def test_a_parquet_file_unlike_the_first_is_refused_by_name(tmp_path: Path, other: Any, message: str) -> None:
    write_parquet(tmp_path / "1.parquet", {"a": [1], "b": [1]})
    write_parquet(tmp_path / "2.parquet", other)

    with pytest.raises(RecordError, match=rf"2\.parquet.*{message}"):
        read(FileSource.parquet(tmp_path))


def test_further_columns_are_fine_where_columns_are_chosen(tmp_path: Path) -> None:
    write_parquet(tmp_path / "1.parquet", {"a": [1]})
    write_parquet(tmp_path / "2.parquet", {"b": [9], "a": [2]})

    assert read(FileSource.parquet(tmp_path, columns=["a"])) == [(1,), (2,)]


def test_a_parquet_file_without_rows_is_passed_over(tmp_path: Path) -> None:
    for number in range(20):
        write_parquet(tmp_path / f"{number:02d}.parquet", {"a": pa.array([], pa.int64())})
    write_parquet(tmp_path / "99.parquet", {"a": [1]})

    assert read(FileSource.parquet(tmp_path)) == [(1,)]


def test_a_broken_parquet_file_fails_by_name_or_is_skipped_and_counted(tmp_path: Path) -> None:
    write_parquet(tmp_path / "1.parquet", {"a": [1]})
    whole = (tmp_path / "1.parquet").read_bytes()
    (tmp_path / "2.parquet").write_bytes(whole[: len(whole) // 2])

    with pytest.raises(RecordError, match=r"2\.parquet: it is no readable Parquet file"):
        read(FileSource.parquet(tmp_path))
    driver = SourceDriver(FileSource.parquet(tmp_path, on_error="skip"))
    driver.run()
    assert driver.values == [(1,)]
    assert skipped(driver) == {Problem.FILE: 1}
    (tmp_path / "0.parquet").write_text("nothing of the kind")
    with pytest.raises(ConfigurationError, match=r"0\.parquet is no readable Parquet file"):
        FileSource.parquet(tmp_path)


def test_an_empty_watched_folder_needs_the_row_type_and_then_reads_what_comes(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="type_info="):
        FileSource.parquet(tmp_path)
    row = Types.ROW_NAMED(["a"], [Types.LONG()])
    driver = SourceDriver(FileSource.parquet(tmp_path, type_info=row).monitor_continuously(10))
    write_parquet(tmp_path / "1.parquet", {"a": [1, 2]})
    driver.discover()
    driver.discover()

    assert [r.value for r in driver.run()] == [(1,), (2,)]


def test_a_column_without_a_row_type_is_refused_with_its_name(tmp_path: Path) -> None:
    write_parquet(tmp_path / "1.parquet", {"a": [1], "big": pa.array([2**64 - 1], pa.uint64())})

    with pytest.raises(ConfigurationError, match='column "big" of type uint64'):
        FileSource.parquet(tmp_path)
    assert read(FileSource.parquet(tmp_path, columns=["a"])) == [(1,)]


def test_row_groups_before_the_position_are_not_decoded_again(tmp_path: Path) -> None:
    write_parquet(tmp_path / "1.parquet", {"a": list(range(100))}, rows_per_group=10)
    first = SourceDriver(FileSource.parquet(tmp_path))
    first.run(records=35, limit=5)
    metadata = pq.read_metadata(tmp_path / "1.parquet")
    group = metadata.row_group(2).column(0)
    # Destroy the data of a group that is behind us, and keep what the file looks like from outside.
    looks = os.stat(tmp_path / "1.parquet")
    with (tmp_path / "1.parquet").open("r+b") as file:
        file.seek(group.dictionary_page_offset or group.data_page_offset)
        file.write(b"\xff" * group.total_compressed_size)
    os.utime(tmp_path / "1.parquet", ns=(looks.st_atime_ns, looks.st_mtime_ns))

    second = SourceDriver(FileSource.parquet(tmp_path), restored=first.snapshot())

    assert [r.value.a for r in second.run()] == list(range(35, 100))
    with pytest.raises(RecordError, match="cannot be decoded after row"):
        read(FileSource.parquet(tmp_path))


def test_parquet_batches_are_slices_of_the_decoded_columns(tmp_path: Path) -> None:
    write_parquet(tmp_path / "1.parquet", {"a": list(range(1_000))}, rows_per_group=1_000)
    driver = SourceDriver(FileSource.parquet(tmp_path))
    driver.poll(0)
    one, two = driver.poll(0, 100), driver.poll(0, 100)

    assert isinstance(one, SourceBatch)
    assert isinstance(two, SourceBatch)
    assert one.columns is not None
    assert two.columns is not None
    assert one.columns.column(0).buffers()[1].address == two.columns.column(0).buffers()[1].address
