"""A PyFlink program on Spark: `execute_and_collect`, `execute_async` and the job client."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.pyflink.common import Configuration, Encoder, JobStatus, Types
from headrace.pyflink.datastream import (
    DataStream,
    FlatMapFunction,
    KeyedStream,
    ReduceFunction,
    StreamExecutionEnvironment,
)
from headrace.pyflink.datastream.connectors.file_system import FileSink, OutputFileConfig

pytestmark = pytest.mark.spark

LINES = ["the river runs", "the race runs on", "on the river"]
PAIR = Types.TUPLE([Types.STRING(), Types.INT()])


class Split(FlatMapFunction):
    def flat_map(self, value: str) -> Iterator[tuple[str, int]]:
        for word in value.split():
            yield word, 1


class AddCounts(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return value1[0], value1[1] + value2[1]


def counts(env: StreamExecutionEnvironment) -> DataStream:
    words: KeyedStream = env.from_collection(LINES, Types.STRING()).flat_map(Split(), PAIR).key_by(lambda p: p[0])
    return words.reduce(AddCounts())


def test_word_count_gives_a_new_count_for_every_word_and_a_list_with_a_limit(spark_slots: Any) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    with counts(env).execute_and_collect("pyflink word count") as results:
        found = list(results)
    assert [n for word, n in found if word == "the"] == [1, 2, 3]
    assert len(found) == 10
    assert len(counts(env).execute_and_collect("pyflink word count, first three", 3)) == 3


def test_a_job_client_tells_when_the_job_has_finished(spark_slots: Any, tmp_path: Path) -> None:
    config = Configuration()
    config.set_string("execution.runtime-mode", "BATCH")
    config.set_string("execution.checkpointing.interval", "1 s")
    config.set_string("execution.checkpointing.dir", (tmp_path / "checkpoints").as_uri())
    env = StreamExecutionEnvironment.get_execution_environment(config)
    names = OutputFileConfig.builder().with_part_prefix("count").with_part_suffix(".txt").build()
    sink = FileSink.for_row_format(str(tmp_path / "out"), Encoder.simple_string_encoder()).with_output_file_config(
        names
    )
    counts(env).map(lambda p: f"{p[0]} {p[1]}", Types.STRING()).sink_to(sink.build())
    client = env.execute_async("pyflink word count to files")
    client.get_job_execution_result().result()
    assert client.get_job_status().result() is JobStatus.FINISHED
    lines = [line for path in (tmp_path / "out").glob("count*.txt") for line in path.read_text().splitlines()]
    assert sorted(lines) == ["on 2", "race 1", "river 2", "runs 2", "the 3"]


def shout(word: str) -> str:
    from shipped_folder import MARK
    from shipped_module import louder

    return str(louder(word) + MARK)


def test_python_files_of_a_job_reach_workers_that_started_without_them(
    spark_slots: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "shipped_module.py").write_text("louder = str.upper\n")
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "shipped_folder.py").write_text("MARK = '!'\n")
    env = StreamExecutionEnvironment.get_execution_environment()
    env.add_python_file(str(tmp_path / "shipped_module.py"))
    env.add_python_file(str(tmp_path / "library"))
    with env.from_collection(["on"], Types.STRING()).map(shout, Types.STRING()).execute_and_collect("shout") as results:
        assert list(results) == ["ON!"]
