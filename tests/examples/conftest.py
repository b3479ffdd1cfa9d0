"""Where the examples lie, and an environment for each of them in the Spark application that all tests share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from headrace import StreamExecutionEnvironment

EXAMPLES = Path(__file__).parents[2] / "examples"

# When tests are collected, so before Spark starts: its workers get the driver's module path, and look for the
# functions of an example in the example.
if str(EXAMPLES) not in sys.path:
    sys.path.append(str(EXAMPLES))


@pytest.fixture
def env(spark_slots: Any) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment()
