"""Who creates a file only if it is not there: Spark's JVM where nobody said otherwise, and not without a JVM."""

from __future__ import annotations

import pytest
from pyspark import SparkContext

from headrace.checkpoint.storage.arrow import exclusive_create_for, register_exclusive_create
from headrace.checkpoint.storage.base import storage_for
from headrace.errors import ConfigurationError
from headrace.runtime.job.exclusive_create import goes_by_the_jvm, offer_exclusive_create
from headrace.runtime.spark.hadoop_files import create_exclusively


@pytest.fixture(autouse=True)
def nobody_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.checkpoint.storage.arrow._CREATORS", {})
    monkeypatch.setattr("headrace.checkpoint.storage.arrow._REPLACERS", {})


def of_my_own(uri: str, data: bytes) -> None:
    raise FileExistsError(uri)


def test_a_way_that_the_user_registered_stays() -> None:
    register_exclusive_create("hdfs", of_my_own)
    offer_exclusive_create()
    offer_exclusive_create()
    assert exclusive_create_for("hdfs") is of_my_own
    assert exclusive_create_for("gs") is exclusive_create_for("viewfs") is create_exclusively
    assert exclusive_create_for("abfs") is None


def test_only_storage_that_has_no_other_way_waits_for_spark() -> None:
    remote = ("hdfs://namenode/checkpoints", "gs://bucket/checkpoints", "gcs://bucket/checkpoints")
    assert all(goes_by_the_jvm(storage_for(uri)) for uri in remote)
    offer_exclusive_create()
    assert all(goes_by_the_jvm(storage_for(uri)) for uri in remote), "the application may have ended since"
    register_exclusive_create("hdfs", of_my_own)
    others = ("hdfs://namenode/checkpoints", "s3://bucket/checkpoints", "/tmp/checkpoints", "memory:", "abfs://c@a/x")
    assert not any(goes_by_the_jvm(storage_for(uri)) for uri in others if "@" not in uri)


def test_without_a_spark_application_it_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    with pytest.raises(ConfigurationError, match=r"hdfs://namenode/x.*JVM of a Spark application"):
        create_exclusively("hdfs://namenode/x", b"")


@pytest.mark.parametrize("uri", ["file:///tmp/x", "abfs://container/x"])
def test_a_file_system_that_cannot_keep_the_promise_is_not_tried(uri: str) -> None:
    with pytest.raises(ConfigurationError, match=r"no way to create.*hdfs:, viewfs:, gs:"):
        create_exclusively(uri, b"")
