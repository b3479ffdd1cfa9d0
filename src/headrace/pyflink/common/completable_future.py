"""What a job client answers with, under the name of `pyflink.common.completable_future`."""

from concurrent.futures import Future as CompletableFuture

__all__ = [
    "CompletableFuture",
]
