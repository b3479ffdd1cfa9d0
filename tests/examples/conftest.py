"""One Spark application for all examples, wide enough for the widest of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import StreamExecutionEnvironment
from headrace.runtime.spark.session import obtain_session

EXAMPLES = Path(__file__).parents[2] / "examples"
SLOTS = 6
WIDEST_LEVEL = 3


@pytest.fixture(scope="module")
def spark_application() -> Iterator[None]:
    # Before Spark starts: its workers get the driver's module path, and the examples import each other by it.
    sys.path.insert(0, str(EXAMPLES))
    handle = obtain_session(None, SLOTS, WIDEST_LEVEL, "examples", None)
    yield
    handle.stop()
    sys.path.remove(str(EXAMPLES))


@pytest.fixture
def env(spark_application: None) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment()
