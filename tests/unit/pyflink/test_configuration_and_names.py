"""Keys of Flink without a meaning say so once; names that stand for what Spark decides are there and can be asked."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from running import collected, environment

from headrace.datastream import ignored as ignored_options
from headrace.errors import ConfigurationError, RecordError
from headrace.pyflink import HeadraceIgnoredOption
from headrace.pyflink.common import Configuration, Instant, Row, Types
from headrace.pyflink.datastream import MemorySize, SlotSharingGroup, StreamExecutionEnvironment
from headrace.pyflink.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ignored_options, "_said", set())
    return


def said_by(configuration: Configuration) -> list[str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        StreamExecutionEnvironment.get_execution_environment(configuration).configure(configuration)
    assert all(warning.category is HeadraceIgnoredOption for warning in said)
    return [str(warning.message) for warning in said]


def test_keys_of_flink_without_a_meaning_are_told_once_each() -> None:
    said = said_by(
        Configuration()
        .set_string("taskmanager.memory.process.size", "4g")
        .set_string("python.fn-execution.bundle.size", "1000")
    )
    assert len(said) == 2
    assert "'taskmanager.memory.process.size' has no effect: Spark" in said[0]
    assert "'python.fn-execution.bundle.size' has no effect: operators are Python already" in said[1]


def test_keys_with_a_meaning_and_keys_of_the_program_are_not_told() -> None:
    configuration = Configuration()
    configuration.set_string("execution.checkpointing.interval", "10 s")
    configuration.set_string("state.backend", "rocksdb")  # a former name of state.backend.type
    configuration.set_string("execution.sorted-inputs.memory", "64 mb")
    configuration.set_string("my.own.key", "x")
    assert said_by(configuration) == []


def test_an_instant_is_a_point_of_time_of_a_typed_stream() -> None:
    instant = Instant.of_epoch_milli(1_700_000_000_123)
    assert (instant.seconds, instant.nanos) == (1_700_000_000, 123_000_000)
    assert instant.to_epoch_milli() == 1_700_000_000_123
    assert instant == Instant(1_700_000_000, 123_000_000) == datetime.fromtimestamp(1_700_000_000.123, UTC)
    assert pickle.loads(pickle.dumps(instant)) == instant
    assert type(pickle.loads(pickle.dumps(instant))) is Instant
    assert (instant + timedelta(seconds=1)).seconds == 1_700_000_001
    assert Instant.of_epoch_milli(-1) == Instant(-1, 999_000_000)
    env = environment()
    stream = env.from_collection([instant], Types.INSTANT()).map(lambda at: at, output_type=Types.INSTANT())
    (found,) = collected(stream)
    assert Instant.of(found) == instant


def test_a_slot_sharing_group_keeps_what_it_was_told() -> None:
    group = (
        SlotSharingGroup.builder("heavy")
        .set_cpu_cores(1.5)
        .set_task_heap_memory_mb(64)
        .set_managed_memory(MemorySize.parse("2 mb"))
        .set_external_resource("gpu", 1)
        .build()
    )
    assert group.get_name() == "heavy"
    assert group.get_cpu_cores() == 1.5
    assert group.get_task_heap_memory() == MemorySize.of_mebi_bytes(64)
    assert group.get_managed_memory() == MemorySize(2 * 1024 * 1024)
    assert group.get_task_off_heap_memory() is None
    assert group.get_external_resources() == {"gpu": 1.0}
    env = environment()
    with pytest.warns(HeadraceIgnoredOption):
        env.register_slot_sharing_group(group)
    with pytest.warns(HeadraceIgnoredOption):
        env.from_collection([1]).slot_sharing_group(group)


def test_fields_of_a_row_cannot_be_renamed_and_the_error_says_how_to_make_another() -> None:
    row = Row("ann", 32)
    with pytest.raises(TypeError, match=r"Row\(\*\*dict\(zip\(\['name', 'age'\], row\)\)\)"):
        row.set_field_names(["name", "age"])
    assert Row(**dict(zip(["name", "age"], row, strict=True))).age == 32


SCHEMA = """{"type": "object", "properties": {
    "id": {"type": "integer"}, "name": {"type": ["string", "null"]}, "ratio": {"type": "number"},
    "tags": {"type": "array", "items": {"type": "string"}}, "known": {"type": "boolean"}}}"""


def test_a_json_schema_gives_the_type_of_rows() -> None:
    schema = JsonRowDeserializationSchema.builder().json_schema(SCHEMA).build()
    assert schema.produced_type == Types.ROW_NAMED(
        ["id", "name", "ratio", "tags", "known"],
        [Types.LONG(), Types.STRING(), Types.DOUBLE(), Types.LIST(Types.STRING()), Types.BOOLEAN()],
    )
    row = schema.deserialize(b'{"id": 7, "ratio": 0.5, "tags": ["x"], "known": true}')
    assert (row.id, row.name, row.tags, row.known) == (7, None, ["x"], True)
    with pytest.raises(ConfigurationError, match=r"\$\.id is"):
        JsonRowDeserializationSchema.builder().json_schema('{"type": "object", "properties": {"id": {}}}')


def test_json_objects_that_lack_a_field_can_be_bad_records_and_bad_records_can_be_left_out() -> None:
    builder = JsonRowDeserializationSchema.builder().type_info(Types.ROW_NAMED(["a", "b"], [Types.LONG()] * 2))
    assert not builder.build().skips_bad_records
    strict = builder.fail_on_missing_field().ignore_parse_errors().build()
    assert strict.skips_bad_records
    assert tuple(strict.deserialize(b'{"a": 1, "b": 2}')) == (1, 2)
    with pytest.raises(RecordError, match="lacks b"):
        strict.deserialize(b'{"a": 1}')
    with pytest.raises(RecordError, match="lacks b"):
        strict.deserialize_all([b'{"a": 1, "b": 2}', b'{"a": 1}'])
    out = JsonRowSerializationSchema.builder().with_type_info(Types.ROW_NAMED(["a"], [Types.LONG()])).build()
    assert out.serialize(Row(a=1)) == b'{"a":1}'


def test_python_files_travel_with_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "of_the_job.py").write_text("ANSWER = 42\n")
    (tmp_path / "folder").mkdir()
    env = StreamExecutionEnvironment.get_execution_environment()
    for name in ("of_the_job.py", "folder", "of_the_job.py"):
        env.add_python_file(str(tmp_path / name))
    env.from_collection([1]).print()
    assert env.build("job")[1].python_files == (str(tmp_path / "of_the_job.py"), str(tmp_path / "folder"))
