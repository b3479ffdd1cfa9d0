"""How an async call is made again, under the name of `pyflink.datastream.async_retry_strategies`."""

from headrace.operators.async_functions import AsyncRetryStrategy

__all__ = [
    "AsyncRetryStrategy",
]
