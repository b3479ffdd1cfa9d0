"""One Spark application for all code blocks of the pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.runtime.spark.session import obtain_session

SLOTS = 6
WIDEST_LEVEL = 3


@pytest.fixture(scope="module")
def spark_application() -> Iterator[None]:
    handle = obtain_session(None, SLOTS, WIDEST_LEVEL, "docs", None)
    yield
    handle.stop()
