"""What a job asks of Spark, and what a session that cannot give it is told."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigurationError
from headrace.plan.buffers import READER_BYTES, WRITER_BYTES, bytes_in_flight, network_buffer_size
from headrace.runtime.spark.errors import SettingMismatch, SparkSettingsError
from headrace.runtime.spark.settings import (
    NETWORK_BUFFER_SIZE,
    READER_MAX_MEMORY,
    STATIC_SETTINGS,
    WRITER_MAX_MEMORY,
    spark_conf,
    wrong_settings,
)


def names(mismatches: list[SettingMismatch]) -> set[str]:
    return {mismatch.name for mismatch in mismatches}


def test_our_own_settings_are_right() -> None:
    for slots in (1, 2, 4, 8, 64):
        conf = spark_conf(2 * slots, slots)
        assert wrong_settings(conf, conf) == []


def test_an_empty_application_lacks_exactly_what_spark_does_not_default_to() -> None:
    assert names(wrong_settings({}, spark_conf(4, 2))) == {
        "spark.python.udf.pipelined.enabled",
        "spark.python.unix.domain.socket.enabled",
        "spark.python.worker.reuse",
        "spark.python.daemon.module",
        "spark.shuffle.streaming.writerMaxMemory",
        "spark.shuffle.streaming.readerMaxMemory",
        "spark.shuffle.streaming.networkBufferSize",
        "spark.shuffle.streaming.networkBufferMaxWaitTimeMs",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.speculation", "true"),
        ("spark.dynamicAllocation.enabled", "TRUE"),
        ("spark.task.cpus", "2"),
        ("spark.python.use.daemon", "false"),
        ("spark.python.worker.reuse", "true"),
        ("spark.python.worker.killOnIdleTimeout", "true"),
        ("spark.python.daemon.module", "pyspark.daemon"),
        ("spark.scheduler.pipelinedGroup.slotCheck.enabled", "false"),
        (WRITER_MAX_MEMORY, "33554432"),
        (READER_MAX_MEMORY, "32m"),
        (NETWORK_BUFFER_SIZE, "0"),
    ],
)
def test_a_wrong_value_is_refused_by_name_with_the_wanted_one(name: str, value: str) -> None:
    wanted = spark_conf(4, 2)
    assert wrong_settings({**wanted, name: value}, wanted) == [SettingMismatch(name, value, wanted[name])]


def test_booleans_are_compared_as_spark_reads_them() -> None:
    wanted = spark_conf(4, 2)
    assert wrong_settings({**wanted, "spark.python.worker.reuse": " False"}, wanted) == []


def test_an_application_made_for_a_wider_job_serves_a_narrow_one_but_not_the_other_way_round() -> None:
    wide, narrow = spark_conf(32, 16), spark_conf(4, 2)
    assert int(wide[NETWORK_BUFFER_SIZE]) < int(narrow[NETWORK_BUFFER_SIZE])
    assert NETWORK_BUFFER_SIZE not in names(wrong_settings(wide, narrow))
    assert NETWORK_BUFFER_SIZE in names(wrong_settings(narrow, wide))


def test_buffers_shrink_as_a_level_widens_and_stop_at_a_useful_size() -> None:
    sizes = [network_buffer_size(slots) for slots in (1, 2, 4, 8, 16, 64)]
    assert sizes == [131072, 131072, 65536, 32768, 16384, 16384]


def test_the_writer_may_keep_two_buffers_for_each_slot_so_that_spark_does_not_warn() -> None:
    for slots in (1, 2, 3, 8, 64):
        conf = spark_conf(slots, slots)
        assert int(conf[WRITER_MAX_MEMORY]) >= 2 * slots * int(conf[NETWORK_BUFFER_SIZE])


def test_bytes_in_flight_grow_with_the_slots_and_not_with_their_square() -> None:
    assert sum(bytes_in_flight([8, 8])) < 5 * sum(bytes_in_flight([2, 2]))


def test_bytes_in_flight_are_told_between_each_level_and_the_next() -> None:
    assert bytes_in_flight([4]) == []
    first, second = bytes_in_flight([2, 2, 1])
    assert (first, second) == (2 * WRITER_BYTES + 2 * READER_BYTES, 2 * WRITER_BYTES + READER_BYTES)


def test_a_level_wider_than_the_job_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="largest_level_slots is 3 and total_slots is 2"):
        spark_conf(2, 3)


def test_one_error_lists_every_setting_and_the_way_out() -> None:
    error = SparkSettingsError(wrong_settings({"spark.speculation": "true"}, STATIC_SETTINGS))
    text = str(error)
    assert "spark.speculation is 'true', wanted 'false'" in text
    assert "spark.python.worker.reuse is not set, wanted 'false'" in text
    assert "headrace.spark_conf()" in text
    assert len(error.mismatches) == 9
