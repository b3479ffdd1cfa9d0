"""The environment: settings, the last call wins, and how a job is handed over."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.backends.heap.options import HeapOptions
from headrace.backends.rocksdb.options import RocksDBOptions
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.storage.memory import JobManagerCheckpointStorage
from headrace.datastream.backends import (
    EmbeddedRocksDBStateBackend,
    FsStateBackend,
    HashMapStateBackend,
    MemoryStateBackend,
    RocksDBStateBackend,
)
from headrace.datastream.environment import StreamExecutionEnvironment
from headrace.datastream.overrides import Overrides, overriding
from headrace.durations import Duration, Time
from headrace.errors import ConfigurationError, JobDefinitionError
from headrace.options import Configuration
from headrace.plan.graph import JobPlan
from headrace.plan.restart import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FallBackRestart,
    FixedDelayRestart,
    NoRestart,
    RestartStrategies,
)
from headrace.plan.settings import CheckpointingMode, ControlSettings, ExternalizedCheckpointRetention, JobSettings


def new_env(**options: Any) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(Configuration(options))
    env.from_collection([1, 2, 3]).print()
    return env


def settings_of(env: StreamExecutionEnvironment) -> JobSettings:
    return env.build("job")[1]


def test_defaults() -> None:
    settings = settings_of(new_env())
    assert (settings.name, settings.job_id) == ("job", "job")
    assert (settings.parallelism, settings.max_parallelism, settings.buffer_timeout_ms) == (1, 128, 5)
    assert settings.initialization_timeout_ms == 1_800_000
    assert settings.control == ControlSettings(None, 0, 2_000, 50_000)
    assert settings.checkpointing.interval_ms is None
    assert isinstance(settings.checkpointing.storage, JobManagerCheckpointStorage)
    assert settings.backend == HeapOptions()
    assert settings.restart == NoRestart()
    assert settings.restore_from is None


def test_the_documents_program() -> None:
    env = new_env()
    env.set_parallelism(2)
    env.enable_checkpointing(1_000)
    env.get_checkpoint_config().set_checkpoint_storage("file:///checkpoints")
    env.set_state_backend(EmbeddedRocksDBStateBackend())
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(60, 10_000))
    settings = settings_of(env)
    assert settings.parallelism == 2
    assert settings.checkpointing.interval_ms == 1_000
    assert settings.checkpointing.mode is CheckpointingMode.EXACTLY_ONCE
    assert settings.checkpointing.storage.location == "file:///checkpoints"
    assert settings.backend == RocksDBOptions()
    assert settings.restart == FixedDelayRestart(60, 10_000)


@pytest.mark.parametrize("interval", [1_500, timedelta(seconds=1.5), Time.seconds(1.5), Duration.of_millis(1_500)])
def test_durations_are_the_same_in_every_form(interval: Any) -> None:
    env = new_env().enable_checkpointing(interval, CheckpointingMode.AT_LEAST_ONCE)
    assert env.get_checkpoint_interval() == 1_500
    assert env.get_checkpointing_mode() is CheckpointingMode.AT_LEAST_ONCE


def test_checkpointing_brings_restarts_unless_the_program_says_otherwise() -> None:
    env = new_env().enable_checkpointing(1_000)
    assert settings_of(env).restart == ExponentialDelayRestart()
    env.set_restart_strategy(RestartStrategies.no_restart())
    assert settings_of(env).restart == NoRestart()
    env.set_restart_strategy(RestartStrategies.fall_back_restart())
    assert settings_of(env).restart == ExponentialDelayRestart()
    assert env.get_restart_strategy() == FallBackRestart()


def test_the_last_state_backend_wins_with_its_storage(tmp_path: Path) -> None:
    env = new_env()
    env.set_state_backend(FsStateBackend(tmp_path.as_uri()))
    storage = settings_of(env).checkpointing.storage
    assert isinstance(storage, FileSystemCheckpointStorage)
    assert storage.root == tmp_path
    env.set_state_backend(MemoryStateBackend(max_state_size=1_000, asynchronous_snapshots=False))
    settings = settings_of(env)
    assert settings.backend == HeapOptions(asynchronous_snapshots=False)
    assert isinstance(settings.checkpointing.storage, JobManagerCheckpointStorage)
    assert settings.checkpointing.storage.max_state_size == 1_000
    env.set_state_backend(RocksDBStateBackend(str(tmp_path), enable_incremental_checkpointing=False))
    settings = settings_of(env)
    assert settings.backend == RocksDBOptions(incremental=False)
    assert settings.checkpointing.storage.location == tmp_path.as_uri()


def test_a_backend_takes_the_storage_of_an_older_name_away_again(tmp_path: Path) -> None:
    env = new_env().set_state_backend(FsStateBackend(str(tmp_path)))
    env.set_state_backend(HashMapStateBackend())
    assert isinstance(settings_of(env).checkpointing.storage, JobManagerCheckpointStorage)


def test_a_storage_of_its_own_stays_when_the_backend_changes(tmp_path: Path) -> None:
    env = new_env().set_checkpoint_storage(str(tmp_path))
    env.set_state_backend(EmbeddedRocksDBStateBackend())
    assert settings_of(env).checkpointing.storage.location == tmp_path.as_uri()


def test_a_storage_chosen_after_an_older_name_wins(tmp_path: Path) -> None:
    env = new_env().set_state_backend(FsStateBackend(str(tmp_path / "a")))
    env.set_checkpoint_storage(str(tmp_path / "b"))
    env.set_state_backend(HashMapStateBackend())
    assert settings_of(env).checkpointing.storage.location == (tmp_path / "b").as_uri()


def test_checkpoint_config_has_flinks_setters() -> None:
    env = new_env()
    config = env.get_checkpoint_config()
    assert not config.is_checkpointing_enabled()
    assert (config.get_checkpoint_interval(), config.get_checkpoint_timeout()) == (-1, 600_000)
    assert config.get_tolerable_checkpoint_failure_number() == 3
    assert not config.is_externalized_checkpoints_enabled()
    config.set_checkpoint_interval(500).set_checkpoint_timeout(Time.minutes(1)).set_min_pause_between_checkpoints(50)
    config.set_max_concurrent_checkpoints(2).set_tolerable_checkpoint_failure_number(5).set_num_retained_checkpoints(4)
    retain = ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    config.set_externalized_checkpoint_retention(retain).enable_unaligned_checkpoints()
    config.set_aligned_checkpoint_timeout(Duration.of_seconds(2)).set_force_unaligned_checkpoints()
    found = settings_of(env).checkpointing
    assert (found.interval_ms, found.timeout_ms, found.min_pause_ms) == (500, 60_000, 50)
    assert (found.max_concurrent, found.tolerable_failures, found.retain) == (2, 5, 4)
    assert (found.retention, found.unaligned, found.aligned_timeout_ms) == (retain, True, 2_000)
    assert config.get_aligned_checkpoint_timeout() == Duration.of_seconds(2)
    assert config.get_alignment_timeout() == timedelta(seconds=2)
    assert config.is_force_unaligned_checkpoints()
    assert env.is_unaligned_checkpoints_enabled()
    assert not config.disable_unaligned_checkpoints().is_unaligned_checkpoints_enabled()
    assert config.set_fail_on_checkpointing_errors(True).get_tolerable_checkpoint_failure_number() == 0
    assert not config.set_fail_on_checkpointing_errors(False).is_fail_on_checkpointing_errors()


def test_unaligned_checkpoints_make_no_sense_at_least_once() -> None:
    env = new_env().enable_checkpointing(1_000, CheckpointingMode.AT_LEAST_ONCE)
    env.get_checkpoint_config().enable_unaligned_checkpoints()
    with pytest.raises(ConfigurationError, match=r"AT_LEAST_ONCE.*disable_unaligned_checkpoints"):
        env.build("job")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda env: env.set_parallelism(0), "parallelism is 0"),
        (lambda env: env.set_max_parallelism(32_769), "max parallelism is 32769"),
        (lambda env: env.enable_checkpointing(0), "checkpoint interval is 0 ms"),
        (lambda env: env.enable_checkpointing("1 s"), "is no duration"),
        (lambda env: env.set_buffer_timeout(-1), "buffer timeout is -1 ms"),
        (lambda env: new_env(**{"execution.initialization.timeout": "0"}), "execution.initialization.timeout is 0 ms"),
        (lambda env: env.set_state_backend("rocksdb"), r"wanted HashMapStateBackend\(\)"),
        (lambda env: env.set_restart_strategy("fixed-delay"), "wanted one of RestartStrategies"),
        (lambda env: env.set_checkpoint_storage(7), "wanted a URI"),
        (lambda env: env.set_checkpoint_storage("gopher://x"), "gopher"),
        (lambda env: env.get_checkpoint_config().set_num_retained_checkpoints(0), "retained checkpoints is 0"),
    ],
)
def test_a_wrong_setting_names_itself_and_the_wanted_value(call: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        call(new_env())


def test_a_configuration_sets_what_setters_set(tmp_path: Path) -> None:
    settings = settings_of(
        new_env(
            **{
                "parallelism.default": "4",
                "pipeline.max-parallelism": "256",
                "pipeline.object-reuse": "true",
                "pipeline.global-job-parameters": "city:Graz, limit:90",
                "execution.buffer-timeout.interval": "20 ms",
                "execution.initialization.timeout": "2 h",
                "control.bind-address": "10.0.0.7",
                "control.port": "7077",
                "heartbeat.interval": "1 s",
                "heartbeat.timeout": "2 min",
                "execution.checkpointing.interval": "30s",
                "execution.checkpointing.mode": "AT_LEAST_ONCE",
                "execution.checkpointing.alignment.max-size": "8 mb",
                "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
                "state.checkpoints.num-retained": "3",
                "state.checkpoints.dir": str(tmp_path),
                "state.backend.type": "rocksdb",
                "state.backend.rocksdb.block.cache-size": "128mb",
                "execution.checkpointing.incremental": "false",
                "restart-strategy.type": "failure-rate",
                "restart-strategy.failure-rate.max-failures-per-interval": "3",
                "restart-strategy.failure-rate.delay": "5 s",
                "execution.savepoint.path": "/savepoints/one",
                "unknown.key": "kept",
            }
        )
    )
    assert (settings.parallelism, settings.max_parallelism, settings.buffer_timeout_ms) == (4, 256, 20)
    assert settings.initialization_timeout_ms == 7_200_000
    assert settings.control == ControlSettings("10.0.0.7", 7077, 1_000, 120_000)
    assert settings.object_reuse
    assert settings.job_parameters == {"city": "Graz", "limit": "90"}
    checkpointing = settings.checkpointing
    assert (checkpointing.interval_ms, checkpointing.mode) == (30_000, CheckpointingMode.AT_LEAST_ONCE)
    assert (checkpointing.retain, checkpointing.alignment_max_bytes) == (3, 8 * 2**20)
    assert checkpointing.retention is ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    assert checkpointing.storage.location == tmp_path.as_uri()
    assert settings.backend == RocksDBOptions(incremental=False, block_cache_mb=128)
    assert settings.restart == FailureRateRestart(3, 60_000, 5_000)
    assert settings.restore_from == "/savepoints/one"


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        ("none", NoRestart()),
        ("off", NoRestart()),
        ("fixed-delay", FixedDelayRestart(1, 1_000)),
        ("failure-rate", FailureRateRestart()),
        ("exponential-delay", ExponentialDelayRestart()),
    ],
)
def test_restart_strategies_by_configuration(kind: str, strategy: Any) -> None:
    assert settings_of(new_env(**{"restart-strategy.type": kind})).restart == strategy


def test_a_file_system_without_a_directory_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"Set execution\.checkpointing\.dir"):
        new_env(**{"execution.checkpointing.storage": "filesystem"})


def test_environment_variables_come_first_and_the_program_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PARALLELISM_DEFAULT", "3")
    monkeypatch.setenv("HEADRACE_EXECUTION_CHECKPOINTING_INTERVAL", "2 s")
    env = new_env()
    assert (env.get_parallelism(), env.get_checkpoint_interval()) == (3, 2_000)
    env.set_parallelism(5)
    assert settings_of(env).parallelism == 5


def test_rocksdb_options_of_the_configuration_hold_for_a_backend_the_program_chooses() -> None:
    env = new_env(**{"execution.checkpointing.incremental": "false", "state.backend.rocksdb.files.open": "99"})
    env.set_state_backend(EmbeddedRocksDBStateBackend())
    assert settings_of(env).backend == RocksDBOptions(incremental=False, max_open_files=99)
    env.set_state_backend(EmbeddedRocksDBStateBackend(True))
    assert settings_of(env).backend == RocksDBOptions(incremental=True, max_open_files=99)


def test_the_command_line_wins_over_the_program(tmp_path: Path) -> None:
    env = new_env().set_parallelism(2).enable_checkpointing(1_000).set_state_backend(HashMapStateBackend())
    env.from_collection([1]).map(str).set_parallelism(7)
    said = Overrides(
        parallelism=4, checkpoint_dir=str(tmp_path), backend="rocksdb", restore_from="/old", take_over=True
    )
    with overriding(said):
        plan, settings = env.build("job")
    assert settings.parallelism == 4
    assert settings.checkpointing.storage.location == tmp_path.as_uri()
    assert settings.backend == RocksDBOptions()
    assert (settings.restore_from, settings.take_over) == ("/old", True)
    assert [n.parallelism for n in plan.graph.nodes] == [1, 4, 1, 7]
    assert settings_of(env).parallelism == 2


def test_the_command_lines_backend_keeps_the_programs_options_for_it() -> None:
    env = new_env().set_state_backend(RocksDBOptions(cache_entries=77_777))
    with overriding(Overrides(backend="rocksdb")):
        assert settings_of(env).backend == RocksDBOptions(cache_entries=77_777)
    with overriding(Overrides(backend="heap")):
        assert settings_of(env).backend == HeapOptions()
    with (
        overriding(Overrides(backend="redis")),
        pytest.raises(ConfigurationError, match=r"state.backend.type \(from --backend\) is 'redis'"),
    ):
        env.build("job")


class Interceptor:
    """Stands where the runtime would."""

    def __init__(self) -> None:
        self.seen: list[tuple[JobPlan, JobSettings]] = []

    def __call__(self, plan: JobPlan, settings: JobSettings) -> str:
        self.seen.append((plan, settings))
        return "intercepted"


def test_execution_can_be_intercepted_without_running() -> None:
    interceptor = Interceptor()
    env = new_env()
    with overriding(Overrides(on_execute=interceptor)):
        assert env.execute("one") == "intercepted"
        env.from_collection([1]).print()
        assert env.execute_async("two") == "intercepted"
        with env.from_collection([1]).execute_and_collect("three") as results:
            assert list(results) == []
        assert env.from_collection([1]).execute_and_collect("four", limit=3) == []
    assert [settings.name for _, settings in interceptor.seen] == ["one", "two", "three", "four"]
    assert [len(plan.graph.nodes) for plan, _ in interceptor.seen] == [2, 2, 2, 2]


def test_a_stream_can_be_used_by_a_second_job() -> None:
    interceptor = Interceptor()
    env = StreamExecutionEnvironment.get_execution_environment()
    numbers = env.from_collection([1, 2]).map(str)
    with overriding(Overrides(on_execute=interceptor)):
        numbers.execute_and_collect("first", limit=1)
        numbers.execute_and_collect("second", limit=1)
    assert [[n.name for n in plan.graph.nodes] for plan, _ in interceptor.seen] == [
        ["collection", "map", "collect"]
    ] * 2


def test_an_empty_job_is_refused() -> None:
    with pytest.raises(JobDefinitionError, match="has no operators"):
        StreamExecutionEnvironment.get_execution_environment().execute("nothing")


def test_jobs_without_a_name_are_named_after_the_program_and_told_apart() -> None:
    interceptor = Interceptor()
    env = new_env()
    with overriding(Overrides(on_execute=interceptor)):
        env.execute()
        env.from_collection([1]).print()
        env.execute()
    first, second = (settings.name for _, settings in interceptor.seen)
    assert second == f"{first}-2"


def test_a_collector_runs_beside_the_operator_before_it() -> None:
    interceptor = Interceptor()
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(3)
    with overriding(Overrides(on_execute=interceptor)):
        env.from_collection([1]).execute_and_collect("job")
    ((plan, _),) = interceptor.seen
    assert len(plan.levels) == 1


def test_chaining_and_object_reuse_can_be_switched() -> None:
    env = new_env().disable_operator_chaining()
    assert not env.is_chaining_enabled()
    assert len(env.build("job")[0].levels) == 2
    config = env.get_config().enable_object_reuse().set_global_job_parameters({"limit": 90})
    assert config.is_object_reuse_enabled()
    settings = settings_of(env)
    assert (settings.object_reuse, settings.job_parameters) == (True, {"limit": "90"})


def test_the_execution_plan_is_json() -> None:
    nodes = json.loads(new_env().get_execution_plan())["nodes"]
    assert [node["type"] for node in nodes] == ["collection", "print"]
