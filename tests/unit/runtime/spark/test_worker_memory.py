"""How much memory workers need beside the JVM, and what is said where there is less."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.backends.heap.options import HeapOptions
from headrace.backends.rocksdb.options import RocksDBOptions
from headrace.plan.memory import DAEMON_BYTES, MemoryNeed, database_bytes, need_of_slots
from headrace.runtime.spark.memory import available_memory, memory_of_an_executor, memory_on_this_machine

MIB = 1 << 20
NEED = MemoryNeed(largest_worker=300 * MIB, workers=1_000 * MIB, state_on_top=False)


def test_a_database_is_bounded_by_its_settings_alone() -> None:
    small = RocksDBOptions(
        cache_entries=20_000, block_cache_mb=8, write_buffer_mb=4, max_open_files=32, timers_in_memory=10_000
    )
    assert database_bytes(small) < 50 * MIB < database_bytes(RocksDBOptions())
    keys = need_of_slots(4, RocksDBOptions(), entries=10**9)
    assert keys == need_of_slots(4, RocksDBOptions())
    assert not keys.state_on_top


def test_heap_state_is_reckoned_by_its_keys_and_said_to_come_on_top_where_nobody_knows_them() -> None:
    unknown, none = need_of_slots(2, HeapOptions()), need_of_slots(2, HeapOptions(), entries=0)
    assert unknown.state_on_top
    assert not none.state_on_top
    assert unknown.workers == none.workers
    million = need_of_slots(2, HeapOptions(), entries=1_000_000)
    assert 100 * MIB < million.workers - none.workers < 500 * MIB
    assert million.largest_worker - none.largest_worker == (million.workers - none.workers) // 2


@pytest.mark.parametrize(
    ("settings", "master", "overhead"),
    [
        ({}, "spark://host:7077", "384 MiB"),
        ({"spark.executor.memory": "8g"}, "yarn", "819 MiB"),
        ({"spark.executor.memory": "8g"}, "k8s://https://host", "3.2 GiB"),
        ({"spark.executor.memoryOverhead": "512"}, "yarn", "512 MiB"),
        ({"spark.executor.memoryOverhead": "1g", "spark.executor.pyspark.memory": "2g"}, "yarn", "3.0 GiB"),
        ({"spark.executor.memory": "4g", "spark.executor.memoryOverheadFactor": "0.5"}, "yarn", "2.0 GiB"),
    ],
)
def test_what_an_executor_has_beside_its_jvm_is_reckoned_as_spark_does(
    settings: dict[str, str], master: str, overhead: str
) -> None:
    found = memory_of_an_executor(NEED, settings, master, slots=4).found
    assert found == f"{overhead} beside the JVM of an executor, for 4 tasks"


def test_too_little_overhead_is_advice_that_names_the_setting_and_a_value_that_is_enough() -> None:
    settings = {"spark.executor.memory": "4g", "spark.executor.cores": "2"}
    finding = memory_of_an_executor(NEED, settings, "yarn", slots=8)
    assert finding.ok
    assert finding.is_advice
    enough = 2 * 300 + DAEMON_BYTES // MIB
    assert f"Set spark.executor.memoryOverhead={enough}m" in finding.remedy
    assert finding.remedy in str(finding)
    again = memory_of_an_executor(NEED, settings | {"spark.executor.memoryOverhead": f"{enough}m"}, "yarn", slots=8)
    assert not again.is_advice


def test_a_machine_with_less_memory_than_its_workers_may_take_is_told() -> None:
    enough = NEED.workers + DAEMON_BYTES
    assert not memory_on_this_machine(NEED, enough).is_advice
    assert memory_on_this_machine(NEED, enough - 1).is_advice
    assert not memory_on_this_machine(NEED, None).is_advice
    on_top = MemoryNeed(1, 1, state_on_top=True)
    assert memory_on_this_machine(on_top, enough).wanted.endswith("outside of the JVM, and the state itself")


def test_a_container_with_less_than_its_machine_counts(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  16000000 kB\nMemAvailable:    8000000 kB\n")
    assert available_memory(tmp_path) == 8_000_000 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("123\n")
    assert available_memory(tmp_path) == 8_000_000 * 1024
    (group / "memory.max").write_text(f"{2 << 30}\n")
    (group / "memory.current").write_text(f"{1 << 30}\n")
    assert available_memory(tmp_path) == 1 << 30
