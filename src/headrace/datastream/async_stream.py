"""`AsyncDataStream`: where a program says that a stream asks something outside for every record."""

from __future__ import annotations

from typing import Any

from headrace.datastream.streams import DataStream
from headrace.durations import DurationLike, to_millis
from headrace.errors import ConfigurationError, JobDefinitionError
from headrace.operators.async_functions import AsyncFunction, AsyncRetryStrategy
from headrace.operators.async_io import AsyncFactory
from headrace.types.information import TypeLike

DEFAULT_CAPACITY = 100


class AsyncDataStream:
    """Adds an async operator to a stream. Back-pressure sets in when `capacity` records are in flight in a subtask."""

    @staticmethod
    def unordered_wait(
        data_stream: DataStream,
        async_function: AsyncFunction,
        timeout: DurationLike,
        capacity: int = DEFAULT_CAPACITY,
        output_type: TypeLike | None = None,
    ) -> DataStream:
        """Results leave as they come; only watermarks keep their place among them."""
        retry = AsyncRetryStrategy.no_restart()
        return _added(data_stream, async_function, timeout, retry, capacity, output_type, ordered=False)

    @staticmethod
    def ordered_wait(
        data_stream: DataStream,
        async_function: AsyncFunction,
        timeout: DurationLike,
        capacity: int = DEFAULT_CAPACITY,
        output_type: TypeLike | None = None,
    ) -> DataStream:
        """Results leave in the order of their records."""
        retry = AsyncRetryStrategy.no_restart()
        return _added(data_stream, async_function, timeout, retry, capacity, output_type, ordered=True)

    @staticmethod
    def unordered_wait_with_retry(
        data_stream: DataStream,
        async_function: AsyncFunction,
        timeout: DurationLike,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = DEFAULT_CAPACITY,
        output_type: TypeLike | None = None,
    ) -> DataStream:
        """The same with retries; `timeout` counts from the first call to the last."""
        return _added(data_stream, async_function, timeout, async_retry_strategy, capacity, output_type, ordered=False)

    @staticmethod
    def ordered_wait_with_retry(
        data_stream: DataStream,
        async_function: AsyncFunction,
        timeout: DurationLike,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = DEFAULT_CAPACITY,
        output_type: TypeLike | None = None,
    ) -> DataStream:
        """The same in order, with retries."""
        return _added(data_stream, async_function, timeout, async_retry_strategy, capacity, output_type, ordered=True)


def _added(
    stream: DataStream,
    function: Any,
    timeout: DurationLike,
    retry: Any,
    capacity: int,
    output_type: TypeLike | None,
    *,
    ordered: bool,
) -> DataStream:
    name = "ordered_wait" if ordered else "unordered_wait"
    if not isinstance(stream, DataStream):
        raise JobDefinitionError(f"{name}() got {stream!r}, which is no stream.")
    if not isinstance(function, AsyncFunction):
        hint = f" Write {function.__name__}(...)." if isinstance(function, type) else ""
        raise JobDefinitionError(f"{name}() got {function!r}; wanted an AsyncFunction object.{hint}")
    if not isinstance(retry, AsyncRetryStrategy):
        raise JobDefinitionError(
            f"{name}_with_retry() got {retry!r}; wanted an AsyncRetryStrategy, such as "
            "AsyncRetryStrategy.fixed_delay(3, 100, exception_predicate=has_exception_predicate)."
        )
    timeout_ms = to_millis(timeout, f"the timeout of {name}()")
    if timeout_ms <= 0:
        raise ConfigurationError(f"The timeout of {name}() is {timeout_ms} ms; it must be above 0.")
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise ConfigurationError(f"The capacity of {name}() is {capacity!r}; wanted a whole number from 1 up.")
    return stream._then(name, AsyncFactory(function, ordered, timeout_ms, capacity, retry), output_type)
