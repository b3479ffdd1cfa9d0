"""One Nexmark query on Spark: two sources, state and a join of both, as `python -m bench nexmark` runs it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from bench.nexmark.model import Course
from bench.nexmark.queries import QUERIES
from bench.nexmark.reference import ANSWERS, house
from bench.nexmark.streams import Events

from headrace import StreamExecutionEnvironment

pytestmark = pytest.mark.spark

COURSE = Course(seed=3, rate=200)
EVENTS = 6_000


def test_a_query_with_two_sources_gives_what_plain_python_gives(spark_slots: Any) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    with QUERIES["q3"](Events(env, EVENTS, COURSE)).execute_and_collect("nexmark q3") as results:
        found = Counter(map(tuple, results))
    assert found == Counter(ANSWERS["q3"](house(EVENTS, COURSE)))
