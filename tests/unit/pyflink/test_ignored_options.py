"""Options of Flink without a meaning here are taken and said once; the rest of the environment has Flink's defaults."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from running import collected, environment

from headrace.connectors.source import Boundedness
from headrace.datastream import ignored as ignored_options
from headrace.errors import JobDefinitionError
from headrace.pyflink import HeadraceIgnoredOption
from headrace.pyflink.common import Configuration, Encoder, RestartStrategies, Time, Types, WatermarkStrategy
from headrace.pyflink.datastream import (
    CheckpointingMode,
    EmbeddedRocksDBStateBackend,
    ExternalizedCheckpointRetention,
    PredefinedOptions,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
)
from headrace.pyflink.datastream.connectors.file_system import FileSink
from headrace.pyflink.datastream.connectors.kafka import KafkaTopicPartition
from headrace.pyflink.datastream.window import TumblingEventTimeWindows
from headrace.testing import ManualSource

Environment = StreamExecutionEnvironment


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ignored_options, "_said", set())
    return


IGNORED: dict[str, Callable[[Environment], Any]] = {
    "add_jars": lambda env: env.add_jars("file:///connector.jar"),
    "add_classpaths": lambda env: env.add_classpaths("file:///classes"),
    "set_python_executable": lambda env: env.set_python_executable("python3"),
    "set_python_requirements": lambda env: env.set_python_requirements("requirements.txt", "cached"),
    "add_python_archive": lambda env: env.add_python_archive("venv.zip", "venv"),
    "register_cached_file": lambda env: env.register_cached_file("table.csv", "table"),
    "register_slot_sharing_group": lambda env: env.register_slot_sharing_group("slots"),
    "enable_changelog_state_backend": lambda env: env.enable_changelog_state_backend(True),
    "set_default_local_parallelism": lambda env: env.set_default_local_parallelism(3),
    "set_buffer_timeout(-1)": lambda env: env.set_buffer_timeout(-1),
    "set_auto_watermark_interval": lambda env: env.get_config().set_auto_watermark_interval(100),
    "set_latency_tracking_interval": lambda env: env.get_config().set_latency_tracking_interval(100),
    "set_uid_hash": lambda env: env.from_collection([1]).set_uid_hash("0" * 32),
    "set_description": lambda env: env.from_collection([1]).print().set_description("prints"),
    "slot_sharing_group": lambda env: env.from_collection([1]).slot_sharing_group("group"),
    "DataStream.set_buffer_timeout": lambda env: env.from_collection([1]).set_buffer_timeout(10),
    "set_db_storage_paths": lambda env: EmbeddedRocksDBStateBackend().set_db_storage_paths("/fast"),
    "set_predefined_options": lambda env: EmbeddedRocksDBStateBackend().set_predefined_options(
        PredefinedOptions.FLASH_SSD_OPTIMIZED
    ),
    "set_number_of_transfer_threads": lambda env: EmbeddedRocksDBStateBackend().set_number_of_transfer_threads(2),
    "enable_compact": lambda env: FileSink.for_row_format("out", Encoder.simple_string_encoder()).enable_compact(),
}


@pytest.mark.parametrize("option", IGNORED)
def test_an_option_without_a_meaning_is_said_once_at_the_line_of_the_program(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StreamExecutionEnvironment, "_default_local_parallelism", 2)
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.warns(HeadraceIgnoredOption) as said:
        IGNORED[option](env)
    assert option in str(said[0].message)
    assert " has no effect: " in str(said[0].message)
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        IGNORED[option](env)


def test_ignored_calls_chain_as_they_do_in_flink(recwarn: pytest.WarningsRecorder) -> None:
    stream = environment().from_collection([1, 2], Types.INT()).map(lambda n: n * 2, Types.INT())
    chained = (
        stream.name("double").slot_sharing_group("a").set_description("doubles").set_buffer_timeout(5).uid("double")
    )
    assert chained.get_name() == "double"
    assert collected(chained) == [2, 4]


def test_the_environment_has_flinks_defaults() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    config = env.get_checkpoint_config()
    assert not config.is_checkpointing_enabled()
    assert config.get_checkpoint_interval() == -1
    assert config.get_checkpoint_timeout() == 600_000
    assert config.get_min_pause_between_checkpoints() == 0
    assert config.get_max_concurrent_checkpoints() == 1
    assert config.get_tolerable_checkpoint_failure_number() == 0
    assert config.get_checkpointing_mode() == CheckpointingMode.EXACTLY_ONCE
    assert config.get_externalized_checkpoint_retention() == ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
    assert env.get_checkpointing_consistency_mode() is CheckpointingMode.EXACTLY_ONCE
    assert env.is_changelog_state_backend_enabled() is False


def test_a_configured_number_of_tolerable_failures_is_kept() -> None:
    config = Configuration()
    config.set_integer("execution.checkpointing.tolerable-failed-checkpoints", 7)
    env = StreamExecutionEnvironment.get_execution_environment(config)
    assert env.get_checkpoint_config().get_tolerable_checkpoint_failure_number() == 7


def test_a_record_that_keeps_failing_is_retried_as_in_flink_unless_a_limit_is_set() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(1_000)
    env.from_collection([1]).print()
    assert env.build("job")[1].restart.same_record_limit is None
    chosen = (
        RestartStrategies.fixed_delay_restart(3, 1),
        RestartStrategies.failure_rate_restart(3, 1, 1),
        RestartStrategies.exponential_delay_restart(),
    )
    assert [strategy.same_record_limit for strategy in chosen] == [None] * 3

    config = Configuration()
    config.set_string("restart-strategy.type", "fixed-delay")
    env = StreamExecutionEnvironment.get_execution_environment(config)
    assert env.get_restart_strategy().same_record_limit is None
    config.set_integer("restart-strategy.same-record-limit", 4)
    env = StreamExecutionEnvironment.get_execution_environment(config)
    assert env.get_restart_strategy().same_record_limit == 4
    env.configure(Configuration({"restart-strategy.same-record-limit": "0"}))
    assert env.get_restart_strategy().same_record_limit is None


def test_flinks_configuration_keys_choose_backend_and_restart_strategy() -> None:
    config = Configuration()
    config.set_string("state.backend.type", "rocksdb")
    config.set_string("restart-strategy.type", "fixed-delay")
    config.set_string("restart-strategy.fixed-delay.attempts", "3")
    config.set_string("execution.checkpointing.interval", "10 s")
    env = StreamExecutionEnvironment.get_execution_environment(config)
    assert type(env.get_state_backend()).__name__ == "RocksDBOptions"
    assert "3" in env.get_restart_strategy().describe()
    assert env.get_checkpoint_interval() == 10_000


def test_a_python_file_of_the_job_is_found_by_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "shared_with_the_job.py").write_text("ANSWER = 42\n")
    env = StreamExecutionEnvironment.get_execution_environment()
    env.add_python_file(str(tmp_path / "shared_with_the_job.py"))
    assert str(tmp_path) in sys.path
    with pytest.raises(JobDefinitionError, match=r"is not there\. Give a file or a folder"):
        env.add_python_file(str(tmp_path / "missing.py"))


def test_input_formats_of_java_are_refused_with_the_way_out() -> None:
    with pytest.raises(JobDefinitionError, match=r"class of Java.*FileSource"):
        StreamExecutionEnvironment.get_execution_environment().create_input(object())


def test_batch_mode_refuses_a_source_without_an_end_and_automatic_mode_streams_it() -> None:
    class Endless(ManualSource):
        @property
        def boundedness(self) -> Boundedness:
            return Boundedness.UNBOUNDED

    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_source(Endless(int), WatermarkStrategy.no_watermarks(), "ticks").key_by(lambda n: n).sum(0).print()
    env.set_runtime_mode(RuntimeExecutionMode.AUTOMATIC)
    env.build("ticks")
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    with pytest.raises(JobDefinitionError, match=r'Source "ticks" has no end'):
        env.build("ticks")


def test_in_batch_mode_nothing_is_late() -> None:
    source = ManualSource(Types.TUPLE([Types.STRING(), Types.LONG()]))
    env = environment()
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value[1])
    stream = env.from_source(source, strategy, "events")
    source.emit(("a", 90_000), ("a", 1_000), ("a", 2_000))
    source.end()
    windows = stream.key_by(lambda v: v[0]).window(TumblingEventTimeWindows.of(Time.minutes(1)))
    assert collected(windows.sum(1)) == [("a", 3_000), ("a", 90_000)]


def test_what_is_declared_is_forgotten_when_the_environment_is_closed() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([1]).print()
    env.close()
    assert env.get_execution_plan().count('"id"') == 0


def test_a_partition_of_kafka_is_a_pair() -> None:
    assert KafkaTopicPartition("clicks", 3) == ("clicks", 3)
