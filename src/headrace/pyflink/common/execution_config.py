"""What concerns execution as a whole, under the name of `pyflink.common.execution_config`."""

from __future__ import annotations

from headrace.datastream import config
from headrace.datastream.ignored import ignored
from headrace.durations import DurationLike

__all__ = ["ExecutionConfig"]


class ExecutionConfig(config.ExecutionConfig):
    """Headrace's own, with PyFlink's settings that do nothing here."""

    def set_auto_watermark_interval(self, interval: DurationLike) -> ExecutionConfig:
        ignored("set_auto_watermark_interval()", "watermarks follow every batch of records, so there is no interval.")
        return self

    def set_latency_tracking_interval(self, interval: DurationLike) -> ExecutionConfig:
        ignored("set_latency_tracking_interval()", "latency is always measured; `headrace status` shows it.")
        return self

    def set_task_cancellation_interval(self, interval: DurationLike) -> ExecutionConfig:
        ignored("set_task_cancellation_interval()", "Spark ends the tasks of a cancelled job.")
        return self

    def set_task_cancellation_timeout(self, timeout: DurationLike) -> ExecutionConfig:
        ignored("set_task_cancellation_timeout()", "Spark ends the tasks of a cancelled job.")
        return self

    def enable_force_kryo(self) -> ExecutionConfig:
        ignored("enable_force_kryo()", "there is no Java serialisation.")
        return self

    def enable_force_avro(self) -> ExecutionConfig:
        ignored("enable_force_avro()", "there is no Java serialisation.")
        return self

    def enable_auto_generated_uids(self) -> ExecutionConfig:
        ignored("enable_auto_generated_uids()", "operators without a uid() always get a generated one.")
        return self

    def disable_auto_generated_uids(self) -> ExecutionConfig:
        ignored("disable_auto_generated_uids()", "operators without a uid() always get a generated one.")
        return self
