"""When an async call is made again, under the names of `pyflink.datastream.async_retry_predicates`."""

from headrace.operators.async_functions import empty_result_predicate, has_exception_predicate

__all__ = [
    "empty_result_predicate",
    "has_exception_predicate",
]
