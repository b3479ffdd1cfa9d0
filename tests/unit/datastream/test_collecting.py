"""Iterating over the results of a running job."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from headrace.datastream.collect import CloseableIterator
from headrace.errors import JobFailedError


class Done:
    """A future that is done."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def result(self) -> None:
        if self._error is not None:
            raise self._error


class ScriptedClient:
    """A job that gives these results, then ends as told."""

    def __init__(self, values: Iterator[Any], error: Exception | None = None) -> None:
        self._values = values
        self._error = error
        self.cancelled = 0

    def collect(self, collector: str) -> Iterator[Any]:
        assert collector == "c"
        return self._values

    def cancel(self) -> Done:
        self.cancelled += 1
        return Done()

    def get_job_execution_result(self) -> Done:
        return Done(self._error)


def test_all_results_of_a_bounded_job_are_iterated_and_nothing_is_cancelled() -> None:
    client = ScriptedClient(iter([1, 2, 3]))
    with CloseableIterator(client, "c") as results:
        assert list(results) == [1, 2, 3]
    assert client.cancelled == 0


def test_leaving_early_ends_the_job_once() -> None:
    client = ScriptedClient(count())
    with CloseableIterator(client, "c") as results:
        assert next(results) == 0
    results.close()
    assert client.cancelled == 1
    assert list(results) == []


def test_a_limit_takes_so_many_and_ends_the_job() -> None:
    client = ScriptedClient(count())
    assert CloseableIterator(client, "c").take(3) == [0, 1, 2]
    assert client.cancelled == 1


def test_a_limit_above_the_results_gives_them_all() -> None:
    client = ScriptedClient(iter([1, 2]))
    assert CloseableIterator(client, "c").take(10) == [1, 2]
    assert client.cancelled == 0


def test_a_failure_is_not_taken_for_an_end() -> None:
    results = CloseableIterator(ScriptedClient(iter([1]), JobFailedError("gone")), "c")
    assert next(results) == 1
    with pytest.raises(JobFailedError, match="gone"):
        next(results)
